"""The file of what was bought: killed at any byte it keeps what stands whole, and two processes do not share it."""

from __future__ import annotations

import json
import stat
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from cases import each, each_of
from damaged_files import mutant

from hybrid.errors import UsageError
from hybrid.prob import Dense, TopK
from hybrid.run.text_rows import TextRows
from hybrid.tune.buying import LabelFile, PairNames, bought_before
from hybrid.tune.labels import LabelledText

PAIR = PairNames("local", "http://scripted", "scripted")


def bought(number):
    row = Dense.from_logits(np.array([1.0 + number, 0.0, 0.5]))
    return LabelledText.of_rows((number,), TextRows((1,), (0,), False, (row,), (TopK.from_dense(row, 2, 0),)))


def test_cut_at_every_byte_it_keeps_every_line_that_stands_whole_and_grows_again_as_if_nothing_were(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("hybrid.store.files.os.fsync", lambda _: None)  # whether the disk holds it is not asked
    path = tmp_path / "labels" / "pair.jsonl"
    file = LabelFile(path, PAIR)
    for number in range(2):
        file.add(f"q{number}", "local", bought(number))
    file.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    header = whole.index(b"\n") + 2
    for cut in each_of((*range(header), *range(header, len(whole), 7), *range(len(whole) - 3, len(whole) + 1))):
        path.write_bytes(whole[:cut])
        file = LabelFile(path, PAIR)
        stands = max(0, whole[:cut].count(b"\n") - 1)
        assert len(file) == stands
        assert [file.has(f"q{n}", "local") for n in range(2)] == [n < stands for n in range(2)]
        for number in range(stands, 2):
            file.add(f"q{number}", "local", bought(number))
        file.close()
        assert path.read_bytes() == whole


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    path = tmp_path / "pair.jsonl"
    LabelFile(path, PAIR).close()
    for other in (
        PairNames("local", "http://scripted", "another"),
        PairNames("another", "http://scripted", "scripted"),
    ):
        with pytest.raises(UsageError, match="did not write"):
            LabelFile(path, other)
    for junk in (b"hello\n", b"[]\n", path.read_bytes() + b'{"question": 1}\n', path.read_bytes() + b"\xff\n"):
        path.write_bytes(junk)
        with pytest.raises(UsageError, match="did not write"):
            LabelFile(path, PAIR)
        assert path.read_bytes() == junk


def test_two_do_not_buy_at_once(tmp_path):
    file = LabelFile(tmp_path / "pair.jsonl", PAIR)
    with pytest.raises(UsageError, match="another process is buying"):
        LabelFile(tmp_path / "pair.jsonl", PAIR)
    file.close()
    LabelFile(tmp_path / "pair.jsonl", PAIR).close()


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "pair.jsonl"
    file = LabelFile(path, PAIR)
    file.add("q0", "local", bought(0))
    before = path.read_bytes()

    def full(fd, raw):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("hybrid.store.files.os.write", full)
        with pytest.raises(OSError, match=r"pair\.jsonl: No space left"):
            file.add("q1", "local", bought(1))
    assert path.read_bytes() == before
    assert not file.has("q1", "local")
    file.close()


def test_what_was_bought_of_a_model_at_an_endpoint_is_found_whatever_stood_there(tmp_path):
    for pair in (
        PAIR,
        PairNames("local", "http://scripted", "newer"),
        PairNames("other", "http://scripted", "scripted"),
    ):
        LabelFile(pair.file(tmp_path), pair).close()
    (tmp_path / "junk.jsonl").write_bytes(b"junk\n")
    found = bought_before(tmp_path, "local", "http://scripted")
    assert {each.model for each in found.values()} == {"scripted", "newer"}
    assert all(path == pair.file(tmp_path) for path, pair in found.items())


def test_a_damaged_file_is_refused_as_it_stands_or_holds_what_can_have_been_bought(tmp_path, monkeypatch):
    """By number. What was paid for is neither lost nor believed to be another number."""
    monkeypatch.setattr("hybrid.store.files.os.fsync", lambda _: None)
    path, counts = tmp_path / "pair.jsonl", Counter()
    file = LabelFile(path, PAIR)
    for number in range(3):
        for writer in ("local", "cloud"):
            file.add(f"q{number}", writer, bought(number))
    file.close()
    whole = path.read_bytes()
    for number in range(100):
        what, raw = mutant(whole, 20261125, number, "json lines")
        path.write_bytes(raw)
        bought_before(tmp_path, "local", "http://scripted")
        with suppress(UsageError):
            file = LabelFile(path, PAIR)
            counts["read"] += 1
            for question in each_of(filter(None, (file.question(f"q{n}") for n in range(3))), least=0):
                for text in (question.draft, question.written):
                    assert text.nanousd is None or 0 <= text.nanousd < 2**63, what
                    assert LabelledText.from_json(text.to_json()).to_json() == text.to_json(), what
            file.close()
            continue
        counts["refused"] += 1
        assert path.read_bytes() == raw, what
    assert min(counts.values()) > 20, counts


@each(
    "spoilt",
    [
        ("nanousd", 10**400),
        ("nanousd", -1),
        ("nanousd", "7"),
        ("noise", ["1", 0.0]),
        ("noise", [-1.0, 0.0]),
        ("prompt_tokens", 2.5),
        ("prompt_tokens", "text"),
        ("words", [1, "a"]),
        ("tokens", [-1]),
        ("ended", 1),
        ("writer", "nobody"),
        ("question", 7),
    ],
)
def test_a_value_that_no_text_can_have_is_refused(tmp_path_factory, spoilt):
    path = tmp_path_factory.mktemp("labels") / "pair.jsonl"
    file = LabelFile(path, PAIR)
    file.add("q", "local", bought(1))
    file.close()
    header, line = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(line) | dict([spoilt]))}\n")
    with pytest.raises(UsageError, match="did not write"):
        LabelFile(path, PAIR)


def test_a_file_whose_first_line_is_no_text_was_bought_of_nobody(tmp_path):
    """It ended the search for what was bought before in a traceback."""
    (tmp_path / "spoilt.jsonl").write_bytes(b'{"labels":"\xe4')
    (tmp_path / "nested.jsonl").write_bytes(b'{"labels":' + b"[" * 100_000)
    (tmp_path / "folder.jsonl").mkdir()
    assert bought_before(tmp_path, "local", "http://scripted") == {}
