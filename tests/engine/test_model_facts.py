"""What headers tell of models: figures that llama.cpp confirms, one word for one vocabulary, and nothing read twice."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from copy import deepcopy
from pathlib import Path

import pytest
from cases import each_of
from gguf_mutants import ARRAY, STRING, Gguf, items
from model_trees import split_model

from hybrid.engine import model_check as model_facts
from hybrid.engine.gguf_header import read_header
from hybrid.engine.llama import Weights
from hybrid.engine.model_check import read_facts, vocabulary_word
from hybrid.errors import EngineError
from hybrid.settings.names import BUNDLED, MODELS
from hybrid.store.json_store import JsonStore

SMALL = MODELS / "small.gguf"
U32, I32 = 4, 5


@pytest.fixture(scope="module")
def whole():
    return Gguf.read(SMALL)


def written(file, path):
    path.write_bytes(file.dump())
    return path


def padded(whole, texts, types):
    """Add tokens at the end of a vocabulary, of these types."""
    file = deepcopy(whole)
    for key, added in (("tokenizer.ggml.tokens", texts), ("tokenizer.ggml.token_type", types)):
        kind, held = items(file.keys[file.find(key)][2])
        file.set(key, ARRAY, (kind, [*held, *added]))
    return file


def test_the_figures_are_those_of_the_loaded_model():
    for name in each_of(BUNDLED):
        facts = read_facts(path := MODELS / f"{name}.gguf")
        with closing(Weights(path)) as weights:
            assert (facts.parameters, facts.num_tokens) == (weights.num_parameters, weights.num_tokens)
            assert facts.architecture == weights.metadata("general.architecture")
        assert facts.bytes == path.stat().st_size
        assert facts.quantisation == "F16"


def test_models_have_one_word_where_their_vocabularies_have_one_digest():
    words, digests = {}, {}
    for name in BUNDLED:
        with closing(Weights(MODELS / f"{name}.gguf")) as weights:
            digests.setdefault(weights.vocabulary_digest, set()).add(name)
        words.setdefault(read_facts(MODELS / f"{name}.gguf").vocabulary, set()).add(name)
    assert sorted(map(sorted, words.values())) == sorted(map(sorted, digests.values()))
    assert len(words) == 3
    assert all(len(word) == 8 for word in words)


def test_padding_is_no_part_of_a_vocabulary(whole, tmp_path):
    """Converters fill a family's vocabulary up to other lengths; the word is still one, as the pair is."""
    plain = vocabulary_word(read_header(SMALL))
    count = plain[0]
    kinds = {
        "by type": ([b"<unused1>", b"<unused2>"], [5, 5]),
        "by name": ([b"[PAD%d]" % count, b"[PAD%d]" % (count + 1)], [1, 1]),
    }
    for texts, types in kinds.values():
        assert vocabulary_word(read_header(written(padded(whole, texts, types), tmp_path / "m.gguf"))) == plain
    other = vocabulary_word(read_header(written(padded(whole, [b"<new>", b"x"], [1, 5]), tmp_path / "m.gguf")))
    assert other[0] == count + 1
    assert other[1] != plain[1]


def test_the_types_of_a_long_vocabulary_are_read(whole, tmp_path):
    more = 1000 - read_facts(SMALL).num_tokens
    file = padded(whole, [b"t%d" % number for number in range(more)], [1] * (more - 1) + [5])
    assert vocabulary_word(read_header(written(file, tmp_path / "m.gguf")))[0] == 999


def test_the_quantisation_is_llama_cpps_name_or_its_number(whole, tmp_path):
    for kind, name in ((15, "Q4_K_M"), (0, "F32"), (7, "Q8_0"), (9999, "type 9999")):
        path = written(deepcopy(whole).set("general.file_type", U32, kind), tmp_path / "m.gguf")
        assert read_facts(path).quantisation == name
    path = written(deepcopy(whole).drop("general.file_type"), tmp_path / "m.gguf")
    assert read_facts(path).quantisation == ""


def test_the_figures_of_a_split_model_are_those_of_all_its_files(whole, tmp_path):
    parts, single = split_model(whole, tmp_path / "split"), read_facts(SMALL)
    facts = read_facts(parts[2])
    assert (facts.parameters, facts.vocabulary) == (single.parameters, single.vocabulary)
    assert facts.bytes == sum(part.stat().st_size for part in parts)


def test_what_llama_cpp_would_not_survive_has_no_facts(whole, tmp_path):
    path = written(deepcopy(whole).set("general.type", STRING, "adapter"), tmp_path / "m.gguf")
    with pytest.raises(EngineError, match="an adapter"):
        read_facts(path, tmp_path / "cache.json")
    with pytest.raises(EngineError, match="cannot be read"):
        read_facts(tmp_path / "none.gguf")
    assert not (tmp_path / "cache.json").exists()


def test_a_model_that_did_not_change_is_read_once(whole, tmp_path, monkeypatch):
    read, seen, kept = model_facts.read_model, [], tmp_path / "cache.json"
    monkeypatch.setattr(model_facts, "read_model", lambda path: (seen.append(path), read(path))[1])
    parts = split_model(whole, tmp_path / "split")
    for part in parts:
        os.utime(part, ns=(2, 2))  # what was written a moment ago is not remembered
    first = read_facts(parts[0], kept)
    assert (read_facts(parts[1], kept), len(seen)) == (first, 1)
    os.utime(parts[2], ns=(1, 1))
    assert (read_facts(parts[0], kept), len(seen)) == (first, 2)
    JsonStore(kept, "headers").change(lambda held: {name: [1, {}] for name in held})
    assert (read_facts(parts[0], kept), len(seen)) == (first, 3)
    copied = Path(shutil.copy(SMALL, tmp_path / "other.gguf"))
    os.utime(copied, ns=(2, 2))
    assert read_facts(copied, kept).vocabulary == first.vocabulary
    assert len(JsonStore(kept, "headers").read_entries()) == 2
