"""The output of a batch: every line once, in order, wherever the process is killed."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path

import pytest

from hybrid.cli import questions
from hybrid.cli.batch_output import BatchOutput
from hybrid.errors import UsageError

INPUT = b'"one"\n\n{"prompt":"two"}\nthree\n"four"\n'


def lines(raw=INPUT):
    return questions.lines(io.BytesIO(raw))


def result(line):
    """An answer that names its line, with characters of two and of three bytes to be cut within."""
    return {"id": line.number, "text": f"é中 {line.content.decode()}\n"}


def go_on(path, raw=INPUT, stop_after=None):
    """Answer what is left, or so many lines of it; return the numbers of those kept and of those answered."""
    kept, done = [], []
    journal = BatchOutput(path)
    try:
        for line in journal.remaining(lines(raw), lambda entry: kept.append(entry.line)):
            if len(done) == stop_after:
                break
            done.append(journal.add(line, result(line)).line)
    finally:
        journal.close()
    return kept, done


@pytest.fixture
def whole(tmp_path):
    """What an uninterrupted batch writes."""
    path = tmp_path / "whole"
    assert go_on(path) == ([], [1, 3, 4, 5])
    return path.read_bytes()


def test_a_file_cut_at_any_byte_ends_in_the_same_lines(tmp_path, whole):
    """A process that is killed leaves the beginning of what it would have written: here is every one of them."""
    path = tmp_path / "out"
    numbers = [1, 3, 4, 5]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        num_whole = whole[:cut].count(b"\n")
        assert go_on(path) == (numbers[:num_whole], numbers[num_whole:])
        assert path.read_bytes() == whole


def test_stopping_after_any_line_and_going_on_is_the_same_as_not_stopping(tmp_path, whole):
    path = tmp_path / "out"
    for _ in range(4):
        go_on(path, stop_after=1)
    assert go_on(path) == ([1, 3, 4, 5], [])
    assert path.read_bytes() == whole


def test_an_input_that_has_grown_goes_on(tmp_path, whole):
    path = tmp_path / "out"
    path.write_bytes(whole)
    assert go_on(path, INPUT + b'"five"') == ([1, 3, 4, 5], [6])
    assert path.read_bytes().startswith(whole)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"my diary\n", "something that no batch wrote"),
        (b"my diary, without a line break", "something that no batch wrote"),
        (b'"one"\n', "something that no batch wrote"),
        (b'{"line":2,', "something that no batch wrote"),
        (b"\n", "something that no batch wrote"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_was(tmp_path, content, said):
    """Somebody has given the two names in the wrong order, or the wrong one."""
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        go_on(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (INPUT.replace(b"two", b"too"), "line 3 there does not answer line 3 of the input"),
        (b"\n" + INPUT, "line 1 there does not answer line 2"),
        (INPUT.replace(b"\n\n", b"\n"), "line 3 there does not answer line 2"),
        (b'"one"\n', "holds more lines than the input"),
        (b"", "holds more lines than the input"),
    ],
    ids=["changed", "moved down", "moved up", "shortened", "emptied"],
)
@pytest.mark.parametrize("torn", [0, 5])
def test_another_input_than_the_one_begun_with_is_refused_and_nothing_changed(tmp_path, whole, raw, said, torn):
    path = tmp_path / "out"
    content = whole[: len(whole) - torn]
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        go_on(path, raw)
    assert path.read_bytes() == content


def test_a_file_is_written_by_one_process_at_a_time(tmp_path):
    path = tmp_path / "out"
    first = BatchOutput(path)
    (tmp_path / "link").symlink_to(path)
    for name in ("out", "link"):
        with pytest.raises(UsageError, match="another process is writing it"):
            BatchOutput(tmp_path / name)
    first.close()
    BatchOutput(path).close()


@pytest.mark.parametrize("name", ["", "none/out", "x" * 300])
def test_a_path_that_cannot_be_written_is_a_sentence(tmp_path, name):
    with pytest.raises(UsageError, match=f"^{tmp_path}.*: "):
        BatchOutput(tmp_path / name)


def test_a_device_is_refused():
    """It keeps nothing that one could go on from."""
    with pytest.raises(UsageError, match="not a file"):
        BatchOutput(Path(os.devnull))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_line_that_cannot_be_written_whole_is_not_begun(tmp_path, whole, monkeypatch, error):
    path, write = tmp_path / "out", os.write
    go_on(path, stop_after=2)
    before = path.read_bytes()

    def fill(fd, raw):
        monkeypatch.setattr(os, "write", fail)
        return write(fd, raw[:7])

    def fail(fd, raw):
        raise error

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(type(error)):
        go_on(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    go_on(path)
    assert path.read_bytes() == whole


def test_a_line_is_on_the_disk_before_it_is_counted(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda fd: order.append(os.fstat(fd).st_size))
    path = tmp_path / "out"
    go_on(path, stop_after=1)
    assert order == [path.stat().st_size]


def test_what_json_cannot_hold_is_null(tmp_path):
    path = tmp_path / "out"
    journal = BatchOutput(path)
    (line, *_) = journal.remaining(lines(), print)
    journal.add(line, {"certificate": float("inf")})
    journal.close()
    assert path.read_bytes().endswith(b'"certificate":null}\n')


def test_a_batch_that_version_0_1_0_began_goes_on(tmp_path):
    """A line that was answered then has fewer keys; it is counted, and not asked again."""
    answer = json.loads((Path(__file__).parent.parent / "run/recorded_0_1_0/doubt.json").read_text())
    assert not {"policy", "guarantee", "degraded_kind"} & answer.keys()
    path, first = tmp_path / "out", next(lines())
    path.write_text(json.dumps({"line": 1, "input": first.digest, "id": None, **answer}, separators=(",", ":")) + "\n")
    assert go_on(path) == ([1], [3, 4, 5])
