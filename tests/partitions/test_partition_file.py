"""What a person may do to the file, and what they are told where it cannot be read."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.partitions import partition_file
from hybrid.partitions.partition_file import PartitionFile, load_partition, own_file, read_partition_file

DIGEST = "00ff00ff00ff00ff"
GROUPS = (((2, " big"), (5, " large")), ((3, 'quote " \\ \u201c'), (7, "\n"), (8, "\ufffd")))


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(PartitionFile(DIGEST, 10, GROUPS, {"model": "m"}).dumps(), encoding="utf-8")
    return path


def test_what_is_written_is_read_back(written):
    assert read_partition_file(written) == PartitionFile(DIGEST, 10, GROUPS, {"model": "m"})
    assert load_partition(written, DIGEST, 10).labels.tolist() == [0, 1, 2, 3, 4, 2, 5, 3, 3, 6]


@given(st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=4), max_size=5))
def test_any_texts_are_read_back_and_stand_a_line_a_group(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp() / "any.json"
    ids = iter(range(100))
    groups = tuple(tuple((next(ids), text.encode("utf-8", "replace").decode()) for text in group) for group in texts)
    file = PartitionFile(DIGEST, 100, groups)
    path.write_text(file.dumps(), encoding="utf-8")
    assert read_partition_file(path) == file
    assert sum(line.startswith("[[") for line in file.dumps().splitlines()) == len(groups)


def test_a_person_may_delete_a_group_and_move_a_token(written):
    said = json.loads(written.read_text(encoding="utf-8"))
    said["groups"][1] = [[8, "x"], [5, " large"]]
    said["groups"][0].pop()  # a group of one is none
    written.write_text(json.dumps(said, indent=3), encoding="utf-8")
    assert [[token for token, _ in group] for group in read_partition_file(written).groups] == [[8, 5]]


EDITS = [
    ('[5, " large"]', '[5 " large"]', r"c.json, line 9: Expecting"),
    ('[5, " large"]', '["5", " large"]', r'in group 1 stands \["5", " large"\], where a token is \[id, "text"\]'),
    ('[5, " large"]', "5", r"in group 1 stands 5, where"),
    ('[5, " large"]', '[true, "x"]', r"in group 1 stands \[true"),
    ('[5, " large"]', '[10, "x"]', r"c.json, line 9: there is no token 10, the vocabulary has 10"),
    ('[5, " large"]', '[-1, "x"]', r"c.json, line 9: there is no token -1"),
    ('[7, "\\n"]', '[2, " big"]', r"c.json, line 10: the token 2 stands here for the second time"),
    ('"version": 1', '"version": 9', r"has the version 9, and this program reads 1: build it again"),
    ('"groups"', '"group"', r"is no file of concepts: it needs"),
    ('"num_tokens": 10', '"num_tokens": "10"', r"is no file of concepts"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), EDITS)
def test_what_cannot_be_read_is_refused_with_its_line(written, old, new, said):
    text = written.read_text(encoding="utf-8")
    assert text.count(old) == 1
    written.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        read_partition_file(written)


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"[" * 100_000, b"", b"7"])
def test_a_file_that_is_something_else_is_refused(tmp_path, raw):
    (tmp_path / "c.json").write_bytes(raw)
    with pytest.raises(UsageError, match=r"c\.json"):
        read_partition_file(tmp_path / "c.json")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_partition_file(tmp_path / "none.json")


def test_a_file_for_another_vocabulary_is_never_used(written):
    for digest, num_tokens in [("11" * 8, 10), (DIGEST, 11)]:
        with pytest.raises(UsageError, match=r"for another vocabulary .* build one with hybrid concepts build"):
            load_partition(written, digest, num_tokens)


def test_the_users_own_file_wins_over_the_bundled_one_and_none_is_a_sentence(written, tmp_path, monkeypatch):
    monkeypatch.setattr(partition_file, "concepts_folder", lambda: tmp_path / "own")
    monkeypatch.setattr(partition_file, "_BUNDLED", tmp_path / "bundled")
    with pytest.raises(
        UsageError, match=r"no concepts are kept for this vocabulary .*: build them with hybrid concepts"
    ):
        load_partition(None, DIGEST, 10)
    (tmp_path / "bundled").mkdir()
    (tmp_path / "bundled" / f"{DIGEST}.json").write_text(PartitionFile(DIGEST, 10, ()).dumps())
    assert load_partition(None, DIGEST, 10).num_concepts == 10
    own_file(DIGEST).parent.mkdir()
    written.rename(own_file(DIGEST))
    assert load_partition(None, DIGEST, 10).num_concepts == 7
    np.testing.assert_array_equal(load_partition(None, DIGEST, 10).labels[[2, 5]], [2, 2])
