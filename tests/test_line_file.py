"""A file that grows by whole lines: all of them or none, and one process at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hybrid.errors import UsageError
from hybrid.line_file import LineFile


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


def test_the_disk_is_waited_for_once_and_only_where_that_is_wanted(tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(os, "fsync", lambda fd: waits.append(os.fstat(fd).st_size))
    with closing(LineFile(tmp_path / "a")) as file:
        file.append([b"one\n", b"two\n"])
        file.append([b"three\n"], durable=False)
    assert waits == [8]


def test_two_have_not_one_file_and_whoever_waits_for_it_is_told_why(tmp_path):
    with closing(LineFile(tmp_path / "a")), pytest.raises(UsageError, match="a: somebody reads it aloud"):
        LineFile(tmp_path / "a", "somebody reads it aloud")
    LineFile(tmp_path / "a").close()


def test_a_file_that_was_replaced_while_it_was_opened_is_not_the_one_that_is_locked(tmp_path, monkeypatch):
    """Else what is written goes into a file that has no name any more."""
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


WITHOUT_UNIX = """
import asyncio, filelock, os, pathlib, psutil, subprocess, sys  # on Windows they load others in these places
sys.modules.update(dict.fromkeys(["fcntl", "resource"]))
del os.O_NONBLOCK, os.O_CLOEXEC
import hybrid.defer, hybrid.run, hybrid.spend, hybrid.engine.template_trial, hybrid.serve.app
from hybrid.errors import UsageError
from hybrid.line_file import LineFile, read_regular
path = pathlib.Path("kept.json")
path.write_text("{}")
assert read_regular(path) == b"{}"
try:
    LineFile(path)
except UsageError as error:
    print(error)
"""


def test_what_windows_lacks_is_missed_by_whoever_locks_a_line_file_and_by_nobody_else(tmp_path):
    """An unknown template is tried there too, and its verdict is kept in a file."""
    program = [sys.executable, "-c", WITHOUT_UNIX]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("kept.json: cannot be locked: this system has no such locks\n", "")
