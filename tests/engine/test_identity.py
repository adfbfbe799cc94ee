"""A model is known by what its file holds, and a file that did not change is not read again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import hybrid
from hybrid.engine import identity
from hybrid.engine.gguf_header import read_header
from hybrid.engine.identity import BLOCK_BYTES, MOST_FILES, NUM_BLOCKS, identify
from hybrid.store.json_store import JsonStore

SMALL = Path(hybrid.__file__).parent / "models" / "small.gguf"
LONG_AGO = 10**18


@pytest.fixture
def model(tmp_path):
    return Path(shutil.copy(SMALL, tmp_path / "model.gguf"))


@pytest.fixture
def read(monkeypatch):
    """The files that were read, in order."""
    digest, seen = identity._digest, []
    monkeypatch.setattr(identity, "_digest", lambda path: (seen.append(path), digest(path))[1])
    return seen


def settle(path, at=LONG_AGO):
    os.utime(path, ns=(at, at))


def test_every_byte_of_the_header_and_the_tensor_table_counts(model):
    raw, start = model.read_bytes(), read_header(model).data_start
    seen = {identify(model)}
    for position in (4, 100, start // 2, start - 33):
        model.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        seen.add(identify(model))
    assert len(seen) == 5


def test_a_change_of_a_64th_of_the_weights_is_seen_wherever_it_lies(tmp_path):
    """As a merged adapter or a requantised tensor changes a file. The size counts, too."""
    size, model = 64 * 3 * BLOCK_BYTES, tmp_path / "weights"
    model.write_bytes(bytes(size))
    seen, part = {identify(model)}, size // NUM_BLOCKS + 2 * BLOCK_BYTES
    for first in range(0, size - part + 1, part // 2):
        model.write_bytes(bytes(first) + b"\1" * part + bytes(size - part - first))
        seen.add(identify(model))
    assert len(seen) == len(range(0, size - part + 1, part // 2)) + 1
    model.write_bytes(bytes(size + 1))
    assert identify(model) not in seen


def test_the_first_and_the_last_bytes_of_the_weights_are_sampled(tmp_path):
    model = tmp_path / "weights"
    seen = set()
    for raw in (bytes(10**7), b"\1" + bytes(10**7 - 1), bytes(10**7 - 1) + b"\1"):
        model.write_bytes(raw)
        seen.add(identify(model))
    assert len(seen) == 3


def test_where_a_file_lies_and_what_it_is_called_change_nothing(model, tmp_path):
    assert identify(Path(shutil.copy(model, tmp_path / "other.gguf"))) == identify(model) == identify(SMALL)


def test_a_file_that_did_not_change_is_read_once(model, tmp_path, read):
    settle(model)
    cache = tmp_path / "cache" / "cache.json"
    first = identify(model, cache)
    assert (identify(model, cache), len(read)) == (first, 1)
    assert identify(model) == first
    assert cache.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["time", "size", "inode", "path"])
def test_whatever_differs_of_a_file_it_is_read_again(model, tmp_path, read, what):
    settle(model)
    cache = tmp_path / "cache.json"
    before = identify(model, cache)
    raw = model.read_bytes()
    changed = raw[:-1] + bytes([raw[-1] ^ 1])
    if what == "time":
        model.write_bytes(changed)
        settle(model, LONG_AGO + 1)
    elif what == "size":
        model.write_bytes(raw + b"\0")
        settle(model)
    elif what == "inode":
        (tmp_path / "new").write_bytes(changed)
        settle(tmp_path / "new")
        (tmp_path / "new").replace(model)
    else:
        model = model.rename(tmp_path / "moved.gguf")
    assert (identify(model, cache) == before) == (what == "path")
    assert len(read) == 2


def test_what_was_written_a_moment_ago_is_not_remembered(model, tmp_path):
    """It may be written again within the same tick, with the same size, time and inode."""
    model.write_bytes(raw := model.read_bytes())
    cache = tmp_path / "cache.json"
    before, stat = identify(model, cache), model.stat()
    model.write_bytes(raw[:-1] + b"\xff")
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert identify(model, cache) != before


def test_entries_of_another_shape_are_nothing_and_the_file_stays_small(model, tmp_path, read):
    settle(model)
    cache = tmp_path / "cache.json"
    store = JsonStore(cache, "identities")
    store.change(lambda _: {str(model.resolve()): ["x"], **{str(n): ["0" * 32] for n in range(MOST_FILES)}})
    first = identify(model, cache)
    assert (identify(model, cache), len(read)) == (first, 1)
    assert len(store.read_entries()) == MOST_FILES
