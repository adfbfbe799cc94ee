"""What file systems do differently: renames that wait, and files that are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybrid.store import files as file_system
from hybrid.store.files import flush_folder, replace, replace_content


@pytest.fixture
def busy(monkeypatch):
    """Have renames fail so many times, as they do on Windows while somebody reads the file; return how many came."""
    rests, tries, rename = [], [], Path.replace
    monkeypatch.setattr(file_system.time, "sleep", rests.append)

    def fail(times, *, windows):
        def renamed(path, target):
            tries.append(path)
            if len(tries) <= times:
                raise PermissionError(13, "The process cannot access the file")
            return rename(path, target)

        monkeypatch.setattr(file_system, "WINDOWS", windows)
        monkeypatch.setattr(Path, "replace", renamed)
        return tries, rests

    return fail


@pytest.mark.parametrize("times", [0, 1, 20])
def test_a_rename_over_a_file_that_somebody_reads_is_tried_again_on_windows(tmp_path, busy, times):
    tries, rests = busy(times, windows=True)
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    replace(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "new"
    assert (len(tries), len(rests)) == (times + 1, times)
    assert all(rest > 0 for rest in rests)


def test_a_rename_that_is_never_allowed_ends_with_its_error_and_both_files_stay(tmp_path, busy):
    """After at least a second, and at most ten: somebody waits."""
    _, rests = busy(10**9, windows=True)
    (tmp_path / "a").write_text("new")
    (tmp_path / "b").write_text("old")
    with pytest.raises(PermissionError):
        replace(tmp_path / "a", tmp_path / "b")
    assert 1 <= sum(rests) <= 10
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"a": "new", "b": "old"}


def test_elsewhere_it_is_tried_once(tmp_path, busy):
    """There it means that the folder is somebody else's, which does not pass."""
    tries, rests = busy(1, windows=False)
    (tmp_path / "a").write_text("new")
    with pytest.raises(PermissionError):
        replace(tmp_path / "a", tmp_path / "b")
    assert (len(tries), rests) == (1, [])


def test_a_folder_is_flushed_where_a_system_can(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.path.samestat(os.fstat(fd), tmp_path.stat())))
    flush_folder(tmp_path)
    assert flushed == [True]
    monkeypatch.setattr(file_system, "WINDOWS", True)
    monkeypatch.setattr(os, "open", None)  # it opens no folder
    flush_folder(tmp_path)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_content_and_nothing_beside_it(tmp_path, monkeypatch, fault, windows):
    path = tmp_path / "kept"
    path.write_text("before")

    def fill(self, raw):
        with self.open("wb") as file:
            file.write(raw[:3])
        raise fault

    monkeypatch.setattr(file_system, "WINDOWS", windows)
    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(type(fault)):
        replace_content(path, b"half a page")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"kept": "before"}


def test_what_is_made_is_for_its_owner_alone_from_its_first_byte_and_what_is_there_may_keep_its_mode(
    tmp_path, monkeypatch
):
    """Whatever the umask: it holds what somebody asked."""
    modes, write = [], Path.write_bytes

    def seen(path, raw):
        modes.append(path.stat().st_mode & 0o777)
        return write(path, raw)

    monkeypatch.setattr(Path, "write_bytes", seen)
    before = os.umask(0)
    try:
        replace_content(tmp_path / "a", b"1")
        modes.append((tmp_path / "a").stat().st_mode & 0o777)
        (tmp_path / "a").chmod(0o640)
        replace_content(tmp_path / "a", b"2", keep_mode=True)
        assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
        replace_content(tmp_path / "a", b"3")
        modes.append((tmp_path / "a").stat().st_mode & 0o777)
    finally:
        os.umask(before)
    assert modes == [0o600] * 5
    assert (tmp_path / "a").read_bytes() == b"3"
