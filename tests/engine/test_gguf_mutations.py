"""Damaged model files: a sentence or an answer, whatever is wrong with them, and never a dead process.

The law is held over mutants by number (``tests/oracles/gguf_mutants.py``); those that ended the process before there
was ``engine.model_check`` are named one by one.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path

import gguf
import pytest
from cases import each, each_of
from gguf_mutants import ARRAY, STRING, Gguf, items, mutant
from gguf_opener import Opener

from hybrid.cli.command import EXIT_ENGINE
from hybrid.engine import gguf_header, llama, native
from hybrid.engine.gguf_header import read_header
from hybrid.engine.model_check import check_model
from hybrid.errors import EngineError

KINDS = ("bundled", "attention", "sliding", "recurrent", "hybrid")
SEED, QUICK, ALL = 20261122, 150, 5000
U32, F32, I32, F16, Q8_1 = 4, 6, 26, 1, 9


@pytest.fixture(scope="module")
def bases(weights):
    return {kind: Gguf.read(weights[kind].path) for kind in KINDS}


@pytest.fixture(scope="module")
def opener(tmp_path_factory):
    opener = Opener(tmp_path_factory.mktemp("opener"))
    yield opener
    opener.close()


def ended(bases, opener, folder, numbers) -> Counter:
    """Open mutants by number; return how many ended how, and which ended badly."""
    files, path, found = list(bases.values()), folder / "mutant.gguf", Counter()
    for number in numbers:
        what, raw = mutant(files, SEED, number)
        path.write_bytes(raw)
        how, said = opener.open(path)
        if how == "refused":
            how = "refused" if " is damaged" in said or "llama.cpp cannot run" in said else "refused by llama.cpp"
        found[
            how if how in {"loaded", "refused", "refused by llama.cpp", "given up"} else (number, what, how, said)
        ] += 1
    return found


def none_badly(found: Counter) -> bool:
    return not [how for how in found if isinstance(how, tuple)]


def test_a_damaged_file_is_a_sentence_or_an_answer(bases, opener, tmp_path):
    found = ended(bases, opener, tmp_path, range(QUICK))
    assert none_badly(found), found
    assert min(found["loaded"], found["refused"], found["refused by llama.cpp"]) >= 5, found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_damaged_files_are_sentences_or_answers(bases, opener, tmp_path):
    """One in a thousand may end the process, with a sentence and the exit code of a model that cannot be used."""
    found = ended(bases, opener, tmp_path, range(ALL))
    print(found)
    assert none_badly(found), found
    assert found["given up"] <= ALL / 1000, found


def set_all(key, kind, value):
    return lambda file: file.set(key, kind, value)


def tokens(change):
    def changed(file):
        kind, held = items(file.keys[file.find("tokenizer.ggml.tokens")][2])
        return file.set("tokenizer.ggml.tokens", ARRAY, (kind, change(held)))

    return changed


def of(architecture):
    """Rename the architecture and its keys."""

    def changed(file):
        old = file.keys[file.find("general.architecture")][2][8:] + b"."
        file.keys = [(key.replace(old, f"{architecture}.".encode(), 1), *rest) for key, *rest in file.keys]
        return file.set("general.architecture", STRING, architecture)

    return changed


def without(name):
    def changed(file):
        del file.tensors[file.place(name)]
        return file.settle()

    return changed


DEADLY = {
    "no layers": ("bundled", set_all("llama.block_count", U32, 0), "block_count is 0"),
    "513 layers": ("bundled", set_all("llama.block_count", U32, 513), "block_count is 513"),
    "more layers to predict with than there are": (
        "bundled",
        set_all("llama.nextn_predict_layers", U32, 4),
        "nextn_predict_layers is 4 of 3",
    ),
    "a context of 3": ("attention", set_all("llama.context_length", U32, 3), "do not fit the context of 3"),
    "a negative epsilon": (
        "bundled",
        set_all("llama.attention.layer_norm_rms_epsilon", F32, -1.0),
        "layer_norm_rms_epsilon is -1.0",
    ),
    "an epsilon that is no number": (
        "recurrent",
        set_all("mamba.attention.layer_norm_rms_epsilon", F32, float("nan")),
        "layer_norm_rms_epsilon is nan",
    ),
    "a token twice": ("bundled", tokens(lambda held: [*held[:-1], held[5]]), "two of its tokens are the same text"),
    "tokens that differ after a NUL": (
        "bundled",
        tokens(lambda held: [*held[:-2], b"long\0a", b"long\0b"]),
        "two of its tokens are the same text",
    ),
    "no vocabulary": ("bundled", set_all("tokenizer.ggml.model", STRING, "none"), "it has no vocabulary"),
    "SentencePiece without bytes": (
        "bundled",
        set_all("tokenizer.ggml.model", STRING, "llama"),
        "no tokens for single",
    ),
    "an alignment of 4": ("bundled", set_all("general.alignment", U32, 4), "no multiple of 32"),
    "an odd rotation": ("hybrid", set_all("qwen35.rope.dimension_count", U32, 7), "rope.dimension_count is 7"),
    "a rotation wider than a head": (
        "hybrid",
        set_all("qwen35.rope.dimension_count", U32, 34),
        "dimension_count is 34",
    ),
    "a rotation of billions": ("hybrid", set_all("qwen35.rope.dimension_count", U32, 2**32 - 8), "dimension_count is"),
    "sections wider than a head": (
        "hybrid",
        set_all("qwen35.rope.dimension_sections", ARRAY, (5, [2, 16, 1, 0])),
        "rope.dimension_sections are 2, 16, 1, 0",
    ),
    "an unknown scaling": ("bundled", set_all("llama.rope.scaling.type", STRING, "cubic"), "an unknown way"),
    "a window of billions": (
        "sliding",
        set_all("gemma3.attention.sliding_window", U32, 0xFF000008),
        "attention.sliding_window is 4278190088",
    ),
    "groups of no experts": ("bundled", set_all("llama.expert_group_count", U32, 2), "groups of 0 experts"),
    "more experts used than there are": ("bundled", set_all("llama.expert_used_count", U32, 2), "2 of 0 experts"),
    "none of its experts used": ("bundled", set_all("llama.expert_count", U32, 8), "0 of 8 experts"),
    "an architecture of experts without any": ("hybrid", of("qwen35moe"), "it has no experts"),
    "no heads": ("recurrent", of("phimoe"), "attention.head_count is 0"),
    "full attention every 0 layers": (
        "hybrid",
        set_all("qwen35.full_attention_interval", U32, 0),
        "full_attention_interval is 0",
    ),
    "states of another size": (
        "hybrid",
        set_all("qwen35.ssm.inner_size", U32, 2),
        "ssm.inner_size is 2, not 16 times 4",
    ),
    "a delta net without its product": ("hybrid", without("blk.0.attn_qkv.weight"), "blk.0.attn_qkv.weight is missing"),
    "a delta net without its gate": ("hybrid", without("blk.0.attn_gate.weight"), "blk.0.attn_gate.weight is missing"),
    "a norm in halves": (
        "bundled",
        lambda f: f.reshape("output_norm.weight", kind=F16).settle(),
        "output_norm.weight has",
    ),
    "a matrix of whole numbers": (
        "attention",
        lambda f: f.reshape("output.weight", kind=I32),
        "output.weight has type",
    ),
    "a chat template that is not UTF-8": (
        "bundled",
        set_all("tokenizer.chat_template", STRING, b"{{ '\xff' }}"),
        "its chat template is not UTF-8 text",
    ),
}


@each("what", DEADLY)
def test_what_ends_llama_cpp_is_refused_before(bases, opener, tmp_path, what):
    """Each of these ended the process (the template: in a traceback); none needs llama.cpp to be told."""
    kind, change, words = DEADLY[what]
    path = tmp_path / "deadly.gguf"
    path.write_bytes(change(deepcopy(bases[kind])).dump())
    how, said = opener.open(path)
    assert how == "refused", said
    assert words in said


SOUND = {
    "a matrix of one row in halves": (
        "bundled",
        lambda f: f.reshape("output_norm.weight", dims=[64, 1], kind=F16).settle(),
    ),
    "a vector with as many dimensions as llama.cpp has": (
        "bundled",
        lambda f: f.reshape("output_norm.weight", dims=[64, 1, 1, 1]),
    ),
    "a dense model that counts itself as one expert": (
        "bundled",
        lambda f: of("hunyuan-dense")(f).set("hunyuan-dense.expert_count", U32, 1),
    ),
    "a model that names no window": ("sliding", lambda f: f.set("gemma3.attention.sliding_window", U32, 0)),
    "a table of token ids": ("attention", lambda f: f.reshape("output.weight", called=b"d2t", kind=27).settle()),
    "a vocabulary with an empty token": ("bundled", tokens(lambda held: [*held[:-2], b"", b""])),
}


@each("what", SOUND)
def test_what_llama_cpp_survives_is_not_refused(bases, tmp_path, what):
    """Real files have these; a rule that is too wide costs somebody a model that works."""
    kind, change = SOUND[what]
    path = tmp_path / "sound.gguf"
    path.write_bytes(change(deepcopy(bases[kind])).dump())
    check_model(read_header(path))


def test_an_assertion_that_no_rule_foresees_is_a_sentence_and_the_exit_code_of_an_unusable_model(bases, tmp_path):
    """Otherwise: a core dump, a debugger's help text on standard error, and a shell that says Aborted."""
    path = tmp_path / "deadly.gguf"
    path.write_bytes(deepcopy(bases["bundled"]).set("llama.block_count", U32, 0).dump())
    program = f"""
from hybrid.engine import llama
llama.check_model = lambda header: None
llama.Weights({str(path)!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (EXIT_ENGINE, "")
    assert done.stderr.startswith("hybrid: llama.cpp cannot go on with this model: llama-model.cpp:")
    assert done.stderr.count("\n") == 1
    assert "n_layer_all > 0" in done.stderr


def test_the_exit_code_is_the_command_lines():
    assert native.EXIT_ENGINE == EXIT_ENGINE


# ---- the header ------------------------------------------------------------------------------------------------------


def refusal(path: Path, raw: bytes) -> str:
    path.write_bytes(raw)
    with pytest.raises(EngineError) as caught:
        read_header(path)
    said = str(caught.value)
    assert str(path) in said
    assert said.isprintable()
    return said.removeprefix(f"{path} is ")


@pytest.mark.slow
def test_no_damage_is_more_than_a_sentence_to_the_reader_of_headers(bases, tmp_path):
    path, files, refused = tmp_path / "mutant.gguf", list(bases.values()), 0
    passed = 0
    for number in range(1500):
        path.write_bytes(mutant(files, SEED, number)[1])
        try:
            check_model(read_header(path))
        except EngineError as error:
            refused += str(error).isprintable()
        else:
            passed += 1
    assert refused + passed == 1500
    assert min(refused, passed) > 100


def test_a_file_that_ends_anywhere_within_its_header_is_told_so(bases, tmp_path):
    """At every field's begin, and in the middle of it."""
    path, base = tmp_path / "cut.gguf", bases["attention"]
    whole = base.dump()
    for at, size in each_of(base.fields[1::7]):
        for end in (at, at + size // 2):
            assert "cut off" in (said := refusal(path, whole[:end])) or "claims" in said
    assert "its tensors end at byte" in refusal(path, whole[:-1000])


HEADERS = {
    "another version": (lambda f: setattr(f, "version", 4), "GGUF version 4 is not 2 or 3"),
    "the first version": (lambda f: setattr(f, "version", 1), "GGUF version 1 is not 2 or 3"),
    "big-endian": (lambda f: setattr(f, "version", 3 << 24), "big-endian"),
    "billions of keys": (lambda f: setattr(f, "num_keys", 2**40), "claims 1099511627776"),
    "all the tensors there can be": (lambda f: setattr(f, "num_tensors", 2**64 - 1), "claims 18446744073709551615"),
    "a key twice": (lambda f: f.keys.append(f.keys[3]), "stands twice"),
    "a key without a name": (lambda f: f.keys.append((b"", U32, bytes(4))), "the name of a key is empty"),
    "a key that is not UTF-8": (lambda f: f.keys.append((b"\xff", U32, bytes(4))), "the name of a key is"),
    "a value of an unknown type": (lambda f: f.keys.append((b"a", 13, bytes(4))), "the unknown type 13"),
    "an array of arrays": (lambda f: f.keys.append((b"a", ARRAY, bytes([9, *bytes(11)]))), "the unknown type 9"),
    "numbers without end": (
        lambda f: f.keys.append((b"a", ARRAY, struct.pack("<IQ", U32, 2**62))),
        "the 4611686018427387904 numbers of a do not fit",
    ),
    "texts without end": (lambda f: f.keys.append((b"a", ARRAY, struct.pack("<IQ", STRING, 2**62))), "a claims 46"),
    "an endless text": (lambda f: f.keys.append((b"a", STRING, struct.pack("<Q", 2**63))), "a text of 92"),
    "an alignment of 48": (lambda f: f.set("general.alignment", U32, 48), "general.alignment is not a power of two"),
    "no alignment": (lambda f: f.set("general.alignment", U32, 0), "general.alignment is not a power of two"),
    "a tensor twice": (lambda f: f.tensors.insert(1, f.tensors[0]), "stands twice or is too long"),
    "a tensor's long name": (lambda f: f.reshape("output.weight", called=b"x" * 64), "stands twice or is too long"),
    "five dimensions": (lambda f: f.reshape("output.weight", dims=[1] * 5), "has 5 dimensions"),
    "a dimension of 0": (lambda f: f.reshape("output.weight", dims=[32, 0]), "has the dimensions 32, 0"),
    "more numbers than can be counted": (
        lambda f: f.reshape("output.weight", dims=[2**32, 2**32]),
        "has the dimensions 4294967296, 4294967296",
    ),
    "half a block": (lambda f: f.reshape("output.weight", dims=[260, 31], kind=8), "hold 260 numbers, its type"),
    "a gap": (lambda f: f.reshape("output.weight", offset=32), "does not begin where the one before it ends"),
    "beyond the file": (
        lambda f: f.reshape("output.weight", offset=2**40),
        "does not begin where the one before it ends",
    ),
}


@each("what", HEADERS)
def test_a_header_that_cannot_be_is_told_what_is_wrong(bases, tmp_path, what):
    change, words = HEADERS[what]
    file = deepcopy(bases["attention"])
    change(file)
    assert words in refusal(tmp_path / "wrong.gguf", file.dump())


@each("kind", KINDS)
def test_what_a_header_says_is_what_another_reader_reads(weights, kind):
    path = weights[kind].path
    header, oracle = read_header(path), gguf.GGUFReader(path)
    check_model(header)
    assert header.data_start == oracle.data_offset
    assert {name: (list(t.dims), t.kind) for name, t in header.tensors.items()} == {
        tensor.name: (tensor.shape.tolist(), int(tensor.tensor_type)) for tensor in oracle.tensors
    }
    said = {name: field.contents() for name, field in oracle.fields.items() if not name.startswith("GGUF.")}
    assert [text.decode() for text in header.tokens] == said["tokenizer.ggml.tokens"]
    assert header.values.keys() == said.keys()
    for name, value in each_of(header.values.items()):
        assert value is None or (list(value) if isinstance(value, tuple) else value) == said[name]


def test_the_sizes_of_blocks_are_those_of_the_library_that_writes_such_files():
    assert {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()} == gguf_header._BLOCKS


def test_a_tensor_of_a_newer_type_is_left_to_llama_cpp(bases, tmp_path):
    """It knows its own types, and says what it does not know."""
    path = tmp_path / "newer.gguf"
    path.write_bytes(deepcopy(bases["bundled"]).reshape("token_embd.weight", kind=999).dump())
    check_model(read_header(path))
    with pytest.raises(EngineError, match=r"^llama\.cpp cannot load"):
        llama.Weights(path)


def test_a_large_vocabulary_is_read_soon(bases, tmp_path):
    """150,000 tokens and as many merges: some 0.1 s on an idle core; the bound is for a busy one."""
    file, path, count = deepcopy(bases["bundled"]), tmp_path / "large.gguf", 150_000
    for name in ("tokens", "merges"):
        file.set(f"tokenizer.ggml.{name}", ARRAY, (STRING, [f"{name} {i}".encode() for i in range(count)]))
    path.write_bytes(file.dump())
    began = time.process_time()
    header = read_header(path)
    check_model(header)
    assert time.process_time() - began < 2
    assert (len(header.tokens), header.tokens[-1]) == (count, b"tokens 149999")


@pytest.mark.slow
def test_the_children_die_alone(opener, tmp_path):
    """The instrument: a file that is not there is refused, and a dead child is told from a refusal."""
    assert opener.open(tmp_path / "none.gguf") == ("refused", f"there is no model file {tmp_path / 'none.gguf'}")
    opener._child.kill()
    opener._child.wait()  # its pipe is closed by now, every time
    assert opener.open(tmp_path / "none.gguf")[0] == "dead -9"
    assert opener.open(tmp_path / "none.gguf")[0] == "refused"
