"""A file that grows by whole lines: all of them or none, and one process at a time."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from cases import each_of

from hybrid.errors import UsageError
from hybrid.store import files as line_file
from hybrid.store.files import LineFile


@pytest.fixture(autouse=True, params=["", "windows"])
def windows(request, monkeypatch):
    """Every law also as Windows needs it: the lock is a file beside, and whoever is renamed or removed is closed."""
    monkeypatch.setattr(line_file, "WINDOWS", bool(request.param))
    return bool(request.param)


def test_what_was_appended_stands_behind_the_last_and_is_read_back(tmp_path):
    with closing(LineFile(tmp_path / "a")) as file:
        file.append([b"one\n", b"two\n"])
        file.append(iter([b"three\n"]))
        assert list(file.lines()) == list(file.lines()) == [b"one\n", b"two\n", b"three\n"]
        assert file.end == 14
        file.cut(4)
        file.append([b"x\n"])
    with closing(LineFile(tmp_path / "a")) as file:
        assert file.end == 6
        assert list(file.lines()) == [b"one\n", b"x\n"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_several_lines_are_written_all_or_none(tmp_path, monkeypatch, error, after):
    write, times = os.write, iter(range(9))

    def fill(fd, raw):
        if next(times) == after:
            raise error
        return write(fd, raw[:3])

    with closing(LineFile(tmp_path / "a")) as file:
        file.append([b"one\n"])
        monkeypatch.setattr(os, "write", fill)
        with pytest.raises(type(error)) as caught:
            file.append([b"two\n", b"three\n"])
        assert (tmp_path / "a").read_bytes() == b"one\n"
        assert file.end == 4
    if isinstance(error, OSError):
        assert str(tmp_path / "a") in caught.value.strerror


def test_the_disk_is_waited_for_once(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(os, "fsync", lambda fd: waits.append(os.fstat(fd).st_size))
    with closing(LineFile(tmp_path / "a")) as file:
        file.append([b"one\n", b"two\n"])
    assert waits == [8]


def test_two_have_not_one_file_and_whoever_waits_for_it_is_told_why(tmp_path):
    with closing(LineFile(tmp_path / "a")), pytest.raises(UsageError, match="a: somebody reads it aloud"):
        LineFile(tmp_path / "a", "somebody reads it aloud")
    LineFile(tmp_path / "a").close()


def test_a_file_that_was_replaced_while_it_was_opened_is_not_the_one_that_is_locked(tmp_path, monkeypatch, windows):
    """Else what is written goes into a file that has no name any more."""
    if windows:
        return  # there nobody replaces an open file
    path, opened, places = tmp_path / "a", os.open, iter([True, False])
    path.write_bytes(b"old\n")
    (tmp_path / "b").write_bytes(b"new\n")

    def replaced(*args):
        fd = opened(*args)
        if next(places):
            (tmp_path / "b").replace(path)
        return fd

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", replaced)
        file = LineFile(path)
    file.append([b"more\n"])
    file.close()
    assert path.read_bytes() == b"new\nmore\n"


@pytest.mark.parametrize("path", [Path(os.devnull), Path("/"), Path("none/a")])
def test_what_is_no_file_is_refused(path):
    with pytest.raises(UsageError, match=f"^{path}: "):
        LineFile(path)


def test_what_is_read_in_between_does_not_disturb_whoever_reads_line_by_line(tmp_path):
    """Windows has no pread, so the place in the file is one for all."""
    content = [b"%d %s\n" % (i, b"x" * 3000) for i in range(20)]
    with closing(LineFile(tmp_path / "a")) as file:
        file.append(content)
        seen = []
        for raw in each_of(file.lines(), least=0):
            assert file.read(len(content[0]), len(content[1])) == content[1]
            seen.append(raw)
        assert seen == content
        file.append([b"more\n"])
    assert (tmp_path / "a").read_bytes() == b"".join([*content, b"more\n"])


def test_a_file_takes_the_place_of_another_and_is_the_one_that_is_locked_then(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "old")
    with closing(LineFile(tmp_path / "link")) as old, closing(LineFile(tmp_path / "new")) as new:
        old.append([b"old\n"])
        new.append([b"new\n"])
        new.take_place_of(old)
        old.close()
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "old").read_bytes() == b"new\n"
        assert not (tmp_path / "new").exists()
        with pytest.raises(UsageError, match="writing"):
            LineFile(tmp_path / "old")
        new.append([b"more\n"])
        assert new.read(0, 9) == b"new\nmore\n"
        assert new.path == tmp_path / "old"
    LineFile(tmp_path / "old").close()


def test_a_file_that_cannot_take_the_place_of_another_leaves_both_as_they_were_and_locked(tmp_path, monkeypatch):
    with closing(LineFile(tmp_path / "old")) as old, closing(LineFile(tmp_path / "new")) as new:
        new.append([b"new\n"])
        with monkeypatch.context() as patched:
            patched.setattr(line_file, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(OSError, match="No space"):
                new.take_place_of(old)
        for file in (old, new):
            file.append([b"more\n"])
            with pytest.raises(UsageError, match="writing"):
                LineFile(file.path)
    assert {name: (tmp_path / name).read_bytes() for name in ("old", "new")} == {
        "old": b"more\n",
        "new": b"new\nmore\n",
    }


def test_a_file_that_is_removed_is_gone_before_anybody_else_may_lock_it(tmp_path, monkeypatch):
    """Whoever locked it in between would write into a file that has no name."""
    file, unlink, refused = LineFile(tmp_path / "a"), Path.unlink, []

    def unlinked(path, **named):
        if path == tmp_path / "a":
            with pytest.raises(UsageError, match="writing"):
                LineFile(tmp_path / "a")
            refused.append(path)
        unlink(path, **named)

    monkeypatch.setattr(Path, "unlink", unlinked)
    file.remove()
    assert refused == [tmp_path / "a"]
    assert not (tmp_path / "a").exists()
    LineFile(tmp_path / "a").close()


def test_who_reads_a_locked_file_is_not_kept_from_it(tmp_path, windows):
    """On Windows nobody else reads what is locked in a file: there another file is locked."""
    with closing(LineFile(tmp_path / "a")) as file:
        file.append([b"one\n"])
        assert (tmp_path / "a").read_bytes() == b"one\n"
        assert {each.name for each in tmp_path.iterdir()} == ({"a", "a.lock"} if windows else {"a"})
