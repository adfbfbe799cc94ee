"""Damaged files as ``--cloud-vocabulary`` names them: a sentence or a vocabulary, and never a dead process."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy

import pytest
from cases import each
from gguf_mutants import ARRAY, Gguf, items, mutant
from gguf_opener import Opener

from hybrid.engine.vocabulary import VocabularyFile
from hybrid.errors import EngineError
from hybrid.settings.names import MODELS

SEED, NUM_VOCABULARIES = 20261122, 60


def vocabulary_mutants(numbers, folder, kinds=("loaded", "refused")):
    """Open mutants as ``--cloud-vocabulary`` names them; return how many ended how, and which ended badly."""
    bases = [Gguf.read(MODELS / f"{name}.gguf") for name in ("alien", "wordings-small")]
    bare = [Gguf(each.keys, [], b"") for each in deepcopy(bases)]
    opener, path, found = Opener(folder, "vocabulary"), folder / "mutant.gguf", Counter()
    for number in numbers:
        what, raw = mutant([*bases, *bare, *bare], SEED, number)
        path.write_bytes(raw)
        how, said = opener.open(path)
        found[how if how in kinds else (number, what, how, said)] += 1
    opener.close()
    return found


@pytest.mark.slow
def test_a_damaged_file_of_a_clouds_vocabulary_is_a_sentence_or_a_vocabulary(tmp_path):
    """Three quarters of the files hold nothing else, as llama.cpp's own do."""
    found = vocabulary_mutants(range(NUM_VOCABULARIES), tmp_path)
    assert found.keys() == {"loaded", "refused"}, found
    assert min(found["loaded"], found["refused"]) >= 10, found


@each("tokens_of", [lambda held: [*held[:-1], held[5]], lambda held: [*held[:-2], b"long\0a", b"long\0b"]])
def test_a_vocabulary_alone_with_a_token_twice_is_refused_before_llama_cpp_ends_the_process(tmp_path, tokens_of):
    base = Gguf.read(MODELS / "alien.gguf")
    path = tmp_path / "twice.gguf"
    kind, held = items(base.keys[base.find("tokenizer.ggml.tokens")][2])
    path.write_bytes(Gguf(base.keys, [], b"").set("tokenizer.ggml.tokens", ARRAY, (kind, tokens_of(held))).dump())
    with pytest.raises(EngineError, match="two of its tokens are the same text"):
        VocabularyFile(path)
