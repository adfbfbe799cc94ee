"""The output of a batch: every line once, in order, wherever the process is killed."""

from __future__ import annotations

import errno
import io
import json
import os
from contextlib import closing
from pathlib import Path

import pytest
from cases import each_of

from hybrid.batch import output as batch_part
from hybrid.batch import questions
from hybrid.batch.output import BatchOutput
from hybrid.batch.output_lines import encode
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
    with closing(BatchOutput(path)) as output:
        for line in output.remaining(lines(raw), lambda entry, _: kept.append(entry.line)):
            if len(done) == stop_after:
                break
            output.begin(line)
            done += [entry.line for entry in output.add(line.number, encode(line, result(line)))]
    return kept, done


@pytest.fixture
def whole(tmp_path):
    """What an uninterrupted batch writes."""
    path = tmp_path / "whole"
    assert go_on(path) == ([], [1, 3, 4, 5])
    return path.read_bytes()


def test_a_file_cut_at_any_byte_ends_in_the_same_lines(tmp_path, whole, monkeypatch):
    """A process that is killed leaves the beginning of what it would have written: here is every one of them."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "out"
    numbers = [1, 3, 4, 5]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        num_whole = whole[:cut].count(b"\n")
        assert go_on(path) == (numbers[:num_whole], numbers[num_whole:])
        assert path.read_bytes() == whole


LONG = b"\n\n".join(b'"question %d"' % i for i in range(1, 6)) + b"\n"
SCRIPTS = {  # lines, by number, in the order in which they are finished; 1 to 9, every second one blank
    "the first last": [3, 5, 7, 9, 1],
    "one in the middle last": [1, 5, 7, 9, 3],
    "backwards": [9, 7, 5, 3, 1],
    "in pairs": [3, 1, 7, 5, 9],
}


def finish(path, wanted, asked, most=None):
    """Begin all lines that are left and finish them in an order, each noted in ``asked`` before it is kept."""
    with closing(BatchOutput(path, 4)) as output:
        todo = {line.number: line for line in output.remaining(lines(LONG), lambda *_: None)}
        for line in todo.values():
            output.begin(line)
        for number in [each for each in wanted if each in todo][:most]:
            asked.append(number)
            output.add(number, encode(todo[number], result(todo[number])))


class DiskStates:
    """Notes what the files of a folder hold whenever one changes: after each byte, cut and removal."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.seen = folder, []
        write, truncate, unlink, replace = os.write, os.ftruncate, Path.unlink, Path.replace

        def written(fd, raw):
            for i in range(len(raw)):
                assert write(fd, bytes(raw[i : i + 1])) == 1
                self.note()
            return len(raw)

        def noted(change):
            def changed(*args, **named):
                done = change(*args, **named)
                self.note()
                return done

            return changed

        monkeypatch.setattr(os, "write", written)
        monkeypatch.setattr(os, "fsync", lambda _: None)
        monkeypatch.setattr(os, "ftruncate", noted(truncate))
        monkeypatch.setattr(Path, "unlink", noted(unlink))
        monkeypatch.setattr(Path, "replace", noted(replace))

    def note(self):
        found = {each.name: each.read_bytes() for each in self.folder.iterdir()}
        if not self.seen or self.seen[-1] != found:
            self.seen.append(found)


@pytest.mark.parametrize("script", SCRIPTS)
def test_killed_at_every_byte_of_both_files_and_between_them_it_ends_in_the_same_lines(tmp_path, monkeypatch, script):
    """A line that was whole in either file is not asked again: its money was spent."""
    (tmp_path / "a").mkdir()
    with monkeypatch.context() as patched:
        states = DiskStates(tmp_path / "a", patched)
        finish(tmp_path / "a" / "out", SCRIPTS[script], [])
    expected = states.seen[-1]
    assert expected.keys() == {"out"}, "nothing is left beside it"
    assert expected["out"].count(b"\n") == 5
    monkeypatch.setattr(os, "fsync", lambda _: None)
    for number, state in each_of(enumerate(states.seen)):
        (tmp_path / str(number)).mkdir()
        for name, content in state.items():
            (tmp_path / str(number) / name).write_bytes(content)
        asked = []
        finish(tmp_path / str(number) / "out", SCRIPTS[script], asked)
        assert {each.name: each.read_bytes() for each in (tmp_path / str(number)).iterdir()} == expected
        whole = {
            each.split(b",")[0] for content in state.values() for each in content.splitlines(True) if b"\n" in each
        }
        assert sorted(asked) == [each for each in (1, 3, 5, 7, 9) if b'{"line":%d' % each not in whole]
    assert len(states.seen) > 500


def test_killed_many_times_over_each_line_is_asked_once(tmp_path):
    path, asked = tmp_path / "out", []
    for _ in range(5):
        finish(path, SCRIPTS["backwards"], asked, most=1)
    assert asked == SCRIPTS["backwards"]
    finish(path, SCRIPTS["backwards"], asked)
    assert len(asked) == 5
    assert [path] == list(tmp_path.iterdir())


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


@pytest.mark.parametrize(("cut", "broken"), [("", 2), ("\n", 2), ("\n", 3)])
def test_a_damaged_line_is_named_and_nothing_changed(tmp_path, whole, cut, broken):
    """It may be one of thousands that are paid."""
    path, found = tmp_path / "out", whole.splitlines(keepends=True)
    found[broken - 1] = found[broken - 1][:40] + cut.encode()
    path.write_bytes(b"".join(found))
    said = (
        f"out holds something that no batch wrote in line {broken}: give another file, or only the lines of this one "
    )
    with pytest.raises(UsageError, match=f"{said}before line {broken}"):
        go_on(path)
    assert path.read_bytes() == b"".join(found)
    path.write_bytes(b"".join(found[: broken - 1]))
    assert go_on(path) == ([1, 3, 4, 5][: broken - 1], [1, 3, 4, 5][broken - 1 :])


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


def test_a_line_that_waits_is_on_the_disk_before_it_is_counted(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda fd: order.append(os.fstat(fd).st_size))
    finish(tmp_path / "out", [5, 7], [])
    assert order[-1] == (tmp_path / "out.part").stat().st_size > order[0] > 0


def test_what_json_cannot_hold_is_null(tmp_path):
    path = tmp_path / "out"
    with closing(BatchOutput(path)) as output:
        (line, *_) = output.remaining(lines(), print)
        output.begin(line)
        output.add(line.number, encode(line, {"certificate": float("inf")}))
    assert path.read_bytes().endswith(b'"certificate":null}\n')


def test_a_batch_that_version_0_1_0_began_goes_on(tmp_path):
    """A line that was answered then has fewer keys; it is counted, and not asked again."""
    answer = json.loads((Path(__file__).parent / "recorded_answer_0_1_0.json").read_text())
    assert not {"policy", "guarantee", "degraded_kind"} & answer.keys()
    path, first = tmp_path / "out", next(lines())
    path.write_text(json.dumps({"line": 1, "input": first.digest, "id": None, **answer}, separators=(",", ":")) + "\n")
    assert go_on(path) == ([1], [3, 4, 5])


@pytest.fixture
def waiting(tmp_path):
    """An output that holds one line, and two that wait behind another."""
    finish(tmp_path / "out", [1, 7, 5], [], most=3)
    return tmp_path / "out.part"


@pytest.mark.parametrize("part", [b"my diary\n", b"my diary", b'{"line":5}\n', b'{"line":x', b'"one"\n'])
def test_a_foreign_file_in_the_place_of_the_lines_that_wait_is_refused_and_left_as_it_was(tmp_path, waiting, part):
    whole = waiting.read_bytes()
    for content in (part, whole + part):
        waiting.write_bytes(content)
        before = (tmp_path / "out").read_bytes()
        with pytest.raises(UsageError, match=r"out.part holds something that no batch wrote"):
            finish(tmp_path / "out", [3], [])
        assert (waiting.read_bytes(), (tmp_path / "out").read_bytes()) == (content, before)


@pytest.mark.parametrize(
    ("raw", "said"),
    [(LONG.replace(b"n 3", b"n x"), "line 5 there does not answer line 5"), (LONG[:28], "holds more lines than the")],
)
def test_lines_that_wait_for_another_input_are_refused_and_left_as_they_were(tmp_path, waiting, monkeypatch, raw, said):
    content, before = waiting.read_bytes(), (tmp_path / "out").read_bytes()
    monkeypatch.setitem(globals(), "LONG", raw)
    with pytest.raises(UsageError, match=f"out.part.*{said}"):
        finish(tmp_path / "out", [3], [])
    assert (waiting.read_bytes(), (tmp_path / "out").read_bytes()) == (content, before)


def test_lines_that_wait_for_an_output_that_is_gone_are_not_mixed_into_a_new_one(tmp_path, waiting):
    content = waiting.read_bytes()
    (tmp_path / "out").unlink()
    with pytest.raises(UsageError, match=r"out.part holds lines of an output that is gone"):
        finish(tmp_path / "out", [1], [])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"out.part": content}


def test_what_waits_is_locked_with_the_output(tmp_path, waiting):
    with closing(BatchOutput(tmp_path / "out")), pytest.raises(UsageError, match="another process is writing it"):
        BatchOutput(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    asked = []
    finish(tmp_path / "link", [3, 9], asked)
    assert asked == [3, 9], "a link leads to what waits beside the file"
    assert not waiting.exists()


def test_the_file_of_waiting_lines_does_not_grow_with_the_output(tmp_path, monkeypatch):
    """There is always one that waits, so that it is never empty."""
    monkeypatch.setattr(batch_part, "MOST_MOVED_BYTES", 2000)
    raw = b"".join(b'"question %d"\n' % i for i in range(200))
    sizes, path = [], tmp_path / "out"
    with closing(BatchOutput(path, 4)) as output:
        todo = list(output.remaining(lines(raw), print))
        for each in todo:
            output.begin(each)
        for early, late in zip(todo[2::2], todo[1::2], strict=False):
            output.add(early.number, encode(early, result(early)))
            if early.number == 3:
                output.add(1, encode(todo[0], result(todo[0])))
            sizes.append((tmp_path / "out.part").stat().st_size)
            if early.number > 3:
                output.add(late.number - 2, encode(todo[late.number - 3], result(todo[late.number - 3])))
        assert output.num_waiting > 0
    assert max(sizes) < 3000 < path.stat().st_size
    asked = []
    with closing(BatchOutput(path, 4)) as output:
        for each in output.remaining(lines(raw), print):
            output.begin(each)
            asked.append(each.number)
            output.add(each.number, encode(each, result(each)))
    assert asked == [198, 200]
    assert [json.loads(line)["line"] for line in path.read_bytes().splitlines()] == list(range(1, 201))


def test_lines_that_an_earlier_run_left_open_are_begun_though_more_wait_than_a_smaller_run_may_hold(tmp_path):
    path, raw = tmp_path / "out", b"".join(b'"question %d"\n' % i for i in range(100))
    with closing(BatchOutput(path, 4)) as output:
        todo = list(output.remaining(lines(raw), print))
        for each in todo:
            output.begin(each)
        for each in todo[2:]:
            output.add(each.number, encode(each, result(each)))
    with closing(BatchOutput(path, 1)) as output:
        for each in each_of(output.remaining(lines(raw), print)):
            assert not output.is_full
            output.begin(each)
            output.add(each.number, encode(each, result(each)))
    assert path.read_bytes().count(b"\n") == 100
