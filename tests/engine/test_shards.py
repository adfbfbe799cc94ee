"""Split models: the same rows as of the whole file, whichever of the files is named; and no half of one."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from cases import each, each_of
from gguf_mutants import Gguf
from model_trees import COUNT, NO, TENSORS, split_model

from hybrid.engine.gguf_header import first_shard, read_header, read_model, shard_files, shard_names, shard_stem
from hybrid.engine.identity import identify
from hybrid.engine.llama import Weights
from hybrid.engine.model_check import check_model
from hybrid.engine.real_models import model_file
from hybrid.engine.token_table import OutputMatrix
from hybrid.errors import EngineError
from hybrid.settings.names import MODELS

SMALL = MODELS / "small.gguf"
U16, I32, STRING = 2, 5, 8
IDS = (5, 9, 40, 41, 17)


@pytest.fixture(scope="module")
def whole():
    return Gguf.read(SMALL)


@pytest.fixture
def parts(whole, tmp_path):
    return split_model(whole, tmp_path / "split")


def rows(path):
    weights = Weights(path)
    engine = weights.context(64, threads=1)
    found = engine.extend(IDS, num_rows=len(IDS)).copy()
    engine.close()
    weights.close()
    return found


def refusal(path):
    with pytest.raises(EngineError) as error:
        Weights(path)
    return str(error.value)


@pytest.mark.parametrize(("count", "empty_first"), [(2, False), (3, True)])
def test_a_split_model_gives_the_rows_of_the_whole_file_whichever_of_its_files_is_named(
    whole, tmp_path, count, empty_first
):
    expected = rows(SMALL)
    for path in each_of(split_model(whole, tmp_path / "split", count, empty_first=empty_first)):
        assert model_file(path) == tmp_path / "split" / f"small-00001-of-{count:05}.gguf"
        np.testing.assert_array_equal(rows(path), expected)


def test_its_output_matrix_is_read_from_the_part_in_which_it_lies(parts):
    whole = OutputMatrix(SMALL)
    np.testing.assert_array_equal(OutputMatrix(parts[2]).read(0, 384), whole.read(0, 384))


def test_its_header_is_that_of_the_whole_file(parts):
    single, joined = read_header(SMALL), read_model(parts[2])
    assert (joined.tensors, joined.tokens) == (single.tensors, single.tokens)
    assert [header.path for header in joined.others] == parts[1:]
    check_model(joined)


def test_links_to_the_files_of_a_split_are_a_split(parts, tmp_path):
    """As in Hugging Face's cache, where the files themselves are called by their digests."""
    folder = tmp_path / "links"
    folder.mkdir()
    for number, part in enumerate(parts):
        (folder / part.name).symlink_to(part.rename(part.with_name(f"blob{number}")))
    np.testing.assert_array_equal(rows(folder / parts[1].name), rows(SMALL))


@each(
    ("name", "names"),
    [
        ("a-00002-of-00002.gguf", ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")),
        *((name, (name,)) for name in (
            "a.gguf", "a-00001-of-00001.gguf", "a-00003-of-00002.gguf", "a-00000-of-00002.gguf", "a-1-of-2.gguf",
            "-00001-of-00002.gguf", "a-00001-of-00002.gguf.part", "a-00001-of-99999.gguf", "a-00001-of-00002",
        )),
    ],
)  # fmt: skip
def test_the_files_of_a_split_are_told_by_their_names(name, names):
    assert shard_names(name) == names
    assert shard_stem(name) == ("a" if len(names) == 2 else name.removesuffix(".gguf"))
    assert [path.name for path in shard_files(Path("/x") / name)] == [*names]


@each("path", ["", ".", "/"])
def test_a_path_without_a_name_is_a_model_of_one_file(path):
    assert shard_files(Path(path)) == (Path(path),)


@each("missing", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_missing_files_are_named_before_anything_is_loaded(whole, tmp_path, missing):
    shutil.rmtree(tmp_path / "split", ignore_errors=True)
    parts = split_model(whole, tmp_path / "split")
    for number in missing:
        parts[number].unlink()
    there = next(path for path in parts if path.exists())
    named = ", ".join(parts[number].name for number in missing)
    said = f"of its 3 files {named} {'is' if len(missing) == 1 else 'are'} missing"
    assert refusal(there).endswith(said)
    with pytest.raises(EngineError, match=r"missing$"):
        model_file(there)


def test_a_whole_file_that_has_a_parts_name_is_opened_as_it_is(tmp_path):
    path = Path(shutil.copy(SMALL, tmp_path / "a-00002-of-00003.gguf"))
    assert first_shard(path) == path
    np.testing.assert_array_equal(rows(path), rows(SMALL))


def rewritten(path, change):
    file = Gguf.read(path)
    change(file)
    path.write_bytes(file.dump())


def test_a_part_that_has_no_parts_name_is_refused(parts, tmp_path):
    """As a blob of Ollama's has none."""
    lone = parts[0].rename(tmp_path / "lone.gguf")
    assert refusal(lone) == f"{lone} is the first of 3 files, which llama.cpp finds only as NAME-00001-of-00003.gguf"


@each(
    ("number", "change", "words"),
    [
        (1, lambda f: f.set(NO, U16, 2), "small-00002-of-00003.gguf is not file 2 of 3 of the model, as its name says"),
        (0, lambda f: f.set(NO, U16, 1), "small-00001-of-00003.gguf is not file 1 of 3"),
        (2, lambda f: f.set(COUNT, U16, 4), "small-00003-of-00003.gguf is not file 3 of 3"),
        (0, lambda f: f.set(COUNT, U16, 4), "is the first of 4 files"),
        (0, lambda f: f.set(TENSORS, I32, 7), "tensors, and the first tells of 7"),
        (2, lambda f: f.tensors.pop(), "tensors, and the first tells of"),
        (1, lambda f: f.reshape(f.tensors[0][0].decode(), called=b"token_embd.weight"), "lies in another file of"),
        (1, lambda f: f.reshape(f.tensors[0][0].decode(), kind=9).settle(), "which llama.cpp cannot compute with"),
        (1, lambda f: setattr(f, "data", f.data[:-64]), "small-00002-of-00003.gguf is damaged: it is cut off"),
        (2, lambda f: setattr(f, "version", 7), "small-00003-of-00003.gguf is damaged: GGUF version 7"),
    ],
)
def test_every_file_is_checked_before_llama_cpp_opens_one(whole, tmp_path, number, change, words):
    parts = split_model(whole, tmp_path / "split")
    rewritten(parts[number], change)
    assert words in refusal(parts[0])


def test_every_files_tensors_must_begin_where_llama_cpp_can_map_them(whole, tmp_path):
    parts = split_model(whole, tmp_path / "split")
    part, starts = Gguf.read(parts[1]).set("general.alignment", 4, 4), set()
    for text in ("", "four"):
        parts[1].write_bytes(raw := part.set("odd", STRING, text).dump())
        starts.add(start := read_header(parts[1]).data_start)
        parts[1].write_bytes(raw[:start] + part.data)  # dump() pads to 32 bytes
        if start % 32:
            assert refusal(parts[0]).endswith(f"byte {start} in {parts[1].name}, which is no multiple of 32")
    assert any(start % 32 for start in starts)


def test_an_adapter_and_a_projector_are_no_models(whole, tmp_path):
    path = tmp_path / "beside.gguf"
    for kind, words in (("adapter", "an adapter"), ("mmproj", "a projector"), ("imatrix", "statistics")):
        path.write_bytes(deepcopy(whole).set("general.type", STRING, kind).dump())
        assert f"it holds no model but {words}" in refusal(path)
    path.write_bytes(deepcopy(whole).set("general.architecture", STRING, "clip").dump())
    assert "a projector" in refusal(path)
    path.write_bytes(deepcopy(whole).set("general.type", STRING, "model").dump())
    np.testing.assert_array_equal(rows(path), rows(SMALL))


def test_a_split_model_is_identified_by_all_of_its_files(parts, tmp_path):
    seen = {identify(parts[0]), identify(SMALL)}
    assert {identify(part) for part in parts} == {identify(parts[0])}
    cache = tmp_path / "cache.json"
    for number, part in each_of(enumerate(parts)):
        before = part.read_bytes()
        assert identify(parts[1], cache) == identify(parts[0])
        part.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        seen |= {identify(parts[0]), identify(parts[2], cache)}
        assert len(seen) == 3 + number
        part.write_bytes(before)
