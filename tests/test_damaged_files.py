"""Files that are named or kept, as a person, a disk or a stranger left them: read, or a sentence, and never a wait."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from cases import each, each_of
from damaged_files import mutant

from hybrid.errors import UsageError
from hybrid.pairs.store import PairStore, calibration_for
from hybrid.partitions.partition_file import PartitionFile, read_partition_file
from hybrid.spend.price_file import PriceFile
from hybrid.store.files import MOST_BYTES, read_regular
from hybrid.store.json_store import JsonStore

GROUPS = (((2, " big"), (5, " large")), ((3, "so"), (7, "thus"), (8, "hence")))
NUM_MUTANTS = 300


def a_pipe(path):
    os.mkfifo(path)


def a_device(path):
    path.symlink_to("/dev/zero")


def too_long(path):
    path.touch()
    os.truncate(path, MOST_BYTES + 1)


UNREADABLE = {"a pipe": a_pipe, "a device": a_device, "a folder": Path.mkdir, "too long": too_long}


@each("kind", UNREADABLE)
def test_what_is_no_file_or_too_long_is_refused_before_it_is_read(tmp_path_factory, kind):
    """A pipe waits for ever, a device has no end, and 100 MB of brackets take seconds and gigabytes."""
    path = tmp_path_factory.mktemp("named") / "named.json"
    UNREADABLE[kind](path)
    for read in (read_regular, read_partition_file, PriceFile.read):
        with pytest.raises(UsageError) as refused:
            read(path)
        said = str(refused.value)
        assert str(path) in said
        assert "\n" not in said


@each("kind", UNREADABLE)
def test_kept_files_that_are_none_hold_nothing(tmp_path_factory, monkeypatch, kind):
    state = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    UNREADABLE[kind](state / "kept.json")
    assert JsonStore(state / "kept.json", "entries").read_entries() == {}
    pair = PairStore("local", "cloud")
    for lines in (pair.outcomes, pair.calibrations):
        lines.path.parent.mkdir(parents=True, exist_ok=True)
        UNREADABLE[kind](lines.path)
    assert "is not used" in pair.learned("kl:0.7")[1]
    assert calibration_for("local", "cloud") is None


def test_a_damaged_file_of_concepts_is_a_sentence_or_says_what_a_file_may_say(tmp_path):
    """By number. What is read names each token once, all of them in the vocabulary, and is what the JSON says."""
    whole = PartitionFile("00ff00ff00ff00ff", 10, GROUPS, {"model": "m"}).dumps().encode()
    path, counts = tmp_path / "c.json", Counter()
    for number in each_of(range(NUM_MUTANTS)):
        what, raw = mutant(whole, 20261124, number)
        path.write_bytes(raw)
        try:
            found = read_partition_file(path)
        except UsageError as refused:
            counts["refused" if str(path) in str(refused) else "unnamed"] += 1
            continue
        counts["read"] += 1
        ids = [token for group in found.groups for token, _ in group]
        assert len(ids) == len(set(ids)), what
        assert all(0 <= token < found.num_tokens for token in ids), what
        said = [[tuple(token) for token in group] for group in json.loads(raw.decode("utf-8-sig"))["groups"]]
        assert [list(group) for group in found.groups] == [group for group in said if len(group) > 1], what
    assert counts.keys() == {"read", "refused"}
    assert min(counts.values()) > 10, counts
