"""The output of a batch: every line answered once, wherever the process is killed."""

from __future__ import annotations

import errno
import io
import json
import os
from contextlib import closing
from itertools import permutations
from pathlib import Path

import pytest
from cases import each_of

from hybrid.batch import questions
from hybrid.batch.output import BatchOutput, CloudNames, Outcome, encode
from hybrid.errors import UsageError

INPUT = b'"one"\n\n{"prompt":"two"}\nthree\n"four"\n'


def lines(raw=INPUT):
    return questions.lines(io.BytesIO(raw))


def result(line):
    """An answer that names its line, with characters of two and of three bytes to be cut within."""
    return {"id": line.number, "text": f"é中 {line.content.decode()}\n"}


def go_on(path, raw=INPUT, stop_after=None, backwards=False):
    """Answer what is left, or so many lines of it; return the numbers of those kept and of those answered."""
    done = []
    with closing(BatchOutput(path)) as output:
        todo = output.remaining(lines(raw), CloudNames())
        kept = list(output.entries)
        for line in list(todo)[::-1] if backwards else todo:
            if len(done) == stop_after:
                break
            output.add(line, result(line))
            done.append(line.number)
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


def test_lines_in_any_order_cut_at_any_byte_end_in_one_line_a_question(tmp_path, whole, monkeypatch):
    """A line that is whole was paid, and is not asked again; the file never loses a byte of it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path, found = tmp_path / "out", whole.splitlines(keepends=True)
    for order in each_of(permutations(found)):
        raw = b"".join(order)
        for cut in range(len(raw) + 1):
            path.write_bytes(raw[:cut])
            kept, done = go_on(path)
            assert kept == [json.loads(line)["line"] for line in order[: raw[:cut].count(b"\n")]]
            assert done == sorted({1, 3, 4, 5} - set(kept))
            stored = path.read_bytes()
            assert stored.startswith(raw[: cut and raw[:cut].rfind(b"\n") + 1])
            assert sorted(stored.splitlines(keepends=True)) == sorted(found)


def again(path, said, asked=frozenset({Outcome.DEGRADED})):
    """Answer the degraded lines, and those that are missing, once more."""
    with closing(BatchOutput(path)) as output:
        todo = list(output.remaining(lines(), CloudNames(), asked))
        for line in todo:
            output.add(line, result(line) | {"text": said, "bill": {"nanousd": 3, "cloud_only_nanousd": 3}})
        return [line.number for line in todo]


def newest(path):
    """The line that counts of each number."""
    return {line["line"]: line for line in map(json.loads, path.read_bytes().splitlines())}


def test_asked_again_and_cut_at_any_byte_the_newest_whole_line_counts(tmp_path, monkeypatch):
    """An answer that was bought in the place of a degraded one is bought once, and its predecessor's cost stays."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path, old = tmp_path / "out", {"degraded": "gone", "bill": {"nanousd": 7, "cloud_only_nanousd": 7}}
    begun = b"".join(encode(line, result(line) | (old if line.number > 3 else {})) for line in lines())
    path.write_bytes(begun)
    assert again(path, "second") == [4, 5]
    raw = path.read_bytes()
    assert raw.startswith(begun)
    for cut in each_of(range(len(begun), len(raw) + 1)):
        path.write_bytes(raw[:cut])
        held = raw[len(begun) : cut].count(b"\n")
        assert again(path, "third") == [4, 5][held:]
        found = newest(path)
        assert [found[i]["text"] for i in (4, 5)] == ["second"] * held + ["third"] * (2 - held)
        assert [found[i]["discarded_nanousd"] for i in (4, 5)] == [7, 7]
        assert again(path, "fourth") == []


def test_sorted_it_has_one_line_a_question_in_order_and_killed_around_that_it_has_all(tmp_path, whole, monkeypatch):
    path = tmp_path / "out"
    go_on(path, backwards=True)
    path.write_bytes(whole.replace(b"one", b"old").splitlines(keepends=True)[0] + path.read_bytes())
    before, replace, found = path.read_bytes(), Path.replace, []

    def dying(self, target):
        found.append(self.read_bytes())
        raise OSError("killed")

    for change in (dying, replace):
        monkeypatch.setattr(Path, "replace", change)
        with closing(BatchOutput(path)) as output:
            assert list(output.remaining(lines(), CloudNames())) == []
            if change is dying:
                with pytest.raises(OSError, match="killed"):
                    output.sort()
                assert path.read_bytes() == before
            else:
                output.sort()
                with pytest.raises(UsageError, match="another process is writing it"):
                    BatchOutput(path)
    assert found == [path.read_bytes()] == [whole]
    assert list(tmp_path.iterdir()) == [path, *tmp_path.glob("whole")]


def test_a_file_in_the_way_of_a_sorted_one_is_kept_unless_it_is_a_leftover(tmp_path, whole):
    """It was overwritten, through a link, too."""
    path, place, precious = tmp_path / "out", tmp_path / "out.sorting", tmp_path / "precious"
    precious.write_text("precious\n")
    go_on(path, backwards=True)
    before = path.read_bytes()
    for in_the_way in (lambda: place.write_text("precious\n"), lambda: place.symlink_to(precious), place.mkdir):
        in_the_way()
        with closing(BatchOutput(path)) as output:
            assert list(output.remaining(lines(), CloudNames())) == []
            with pytest.raises(UsageError, match=r"out\.sorting: --sort writes a file of this name"):
                output.sort()
        assert (path.read_bytes(), precious.read_text()) == (before, "precious\n")
        place.rmdir() if place.is_dir() else place.unlink()
    for size in range(len(whole) + 1):
        place.write_bytes(whole[:size])
        with closing(BatchOutput(path)) as output:
            list(output.remaining(lines(), CloudNames()))
            output.sort()
        assert (path.read_bytes(), place.exists()) == (whole, False)


@pytest.mark.parametrize("replaced", [True, False])
def test_an_output_that_was_moved_meanwhile_is_neither_gone_on_with_nor_overwritten(tmp_path, replaced):
    path = tmp_path / "out"
    go_on(path, stop_after=2)
    with closing(BatchOutput(path)) as output:
        line, *_ = output.remaining(lines(), CloudNames())
        path.rename(tmp_path / "moved")
        if replaced:
            path.write_text("precious\n")
        for work in (output.sort, lambda: output.add(line, result(line))):
            with pytest.raises(OSError, match="out: it was removed or replaced while it was written"):
                work()
    assert path.exists() == replaced
    assert not replaced or path.read_text() == "precious\n"


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
        (b"\n" + INPUT, "line 4 there does not answer line 4"),
        (INPUT.replace(b"\n\n", b"\n"), "line 3 there does not answer line 3"),
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


def test_what_json_cannot_hold_is_null(tmp_path):
    path = tmp_path / "out"
    with closing(BatchOutput(path)) as output:
        (line, *_) = output.remaining(lines(), CloudNames())
        output.add(line, {"certificate": float("inf")})
    assert path.read_bytes().endswith(b'"certificate":null}\n')


def test_a_batch_that_version_0_1_0_began_goes_on(tmp_path):
    """A line that was answered then has fewer keys; it is counted, and not asked again."""
    answer = json.loads((Path(__file__).parent / "recorded_answer_0_1_0.json").read_text())
    assert not {"policy", "guarantee", "degraded_kind"} & answer.keys()
    path, first = tmp_path / "out", next(lines())
    path.write_text(json.dumps({"line": 1, "input": first.digest, "id": None, **answer}, separators=(",", ":")) + "\n")
    assert go_on(path) == ([1], [3, 4, 5])


# ---- files that earlier versions left beside an output ---------------------------------------------------------------


def test_killed_at_every_byte_of_an_earlier_versions_files_no_line_is_asked_again(tmp_path, whole, monkeypatch):
    """Lines 4 and 5 wait in OUT.part for line 3; a kill may have left 4 in both, and either file torn."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    found = whole.splitlines(keepends=True)
    part = found[3] + found[2]
    for out, held in ((found[0], {1}), (found[0] + found[1] + found[2], {1, 3, 4})):
        for num_out, num_part in each_of(
            [*((len(out), i) for i in range(len(part) + 1)), *((i, len(part)) for i in range(len(out) + 1))]
        ):
            (tmp_path / "out").write_bytes(out[:num_out])
            (tmp_path / "out.part").write_bytes(part[:num_part])
            whole_lines = [*out[:num_out].splitlines(True), *part[:num_part].splitlines(True)]
            stood = {json.loads(line)["line"] for line in whole_lines if line.endswith(b"\n")}
            kept, done = go_on(tmp_path / "out")
            assert (set(kept), done) == (stood, sorted({1, 3, 4, 5} - stood))
            assert sorted((tmp_path / "out").read_bytes().splitlines(keepends=True)) == sorted(found)
            assert not (tmp_path / "out.part").exists()
        assert held <= {1, 3, 4}


def test_what_an_earlier_version_had_asked_again_is_taken_over_where_it_is_better(tmp_path, whole):
    """Its ``--again`` was killed before its file took the output's place."""
    path, found = tmp_path / "out", whole.splitlines(keepends=True)
    better = found[1].replace(b"two", b"more")
    path.write_bytes(found[0] + found[1].replace(b'"id":3', b'"id":3,"degraded":"gone"') + found[2] + found[3])
    (tmp_path / "out.again-degraded").write_bytes(found[0] + better[:-3])
    (tmp_path / "out.again-degraded.part").write_bytes(better)
    assert go_on(path) == ([1, 3, 4, 5], [])
    assert newest(path)[3] == json.loads(better)
    assert path.read_bytes().count(b"\n") == 5
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize(
    "part", [b"my diary\n", b"my diary", b'{"line":5}\n', b'{"line":x', encode(questions.InputLine(5, b"x"), {})]
)
def test_a_foreign_file_in_the_place_of_one_of_an_earlier_version_is_refused_and_left_as_it_was(tmp_path, whole, part):
    path = tmp_path / "out"
    go_on(path, stop_after=1)
    before = path.read_bytes()
    (tmp_path / "out.part").write_bytes(part)
    with pytest.raises(UsageError, match=r"out.part(: line 5 there does not| holds something that no batch wrote)"):
        go_on(path)
    assert (path.read_bytes(), (tmp_path / "out.part").read_bytes()) == (before, part)
