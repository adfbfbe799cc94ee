"""Files that are there whole or not at all, and a word in time where they cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hybrid.batch.output import BatchOutput
from hybrid.cli.command import check_writable, write_whole
from hybrid.cli.trace import TraceWriter
from hybrid.cloud.probe_result import ProbeCache, ProbeResult
from hybrid.errors import UsageError
from hybrid.record.events import TRACE_VERSION


def test_a_file_is_written_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "page.html"
    check_writable("--html", path)
    assert list(tmp_path.iterdir()) == []
    write_whole(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["none/page", "folder", "x" * 300, "file/page"])
def test_a_path_that_cannot_be_written_is_told_with_its_flag(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"^--svg {tmp_path}/{name}: "):
        check_writable("--svg", tmp_path / name)


def test_a_device_is_refused(tmp_path):
    """A rename would put a file in its place."""
    with pytest.raises(UsageError, match="not a file"):
        check_writable("--html", Path(os.devnull))


def test_a_write_protected_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "page"
    path.touch()
    monkeypatch.setattr(os, "access", lambda at, mode: at != path)  # the superuser may write anything
    with pytest.raises(UsageError, match="write-protected"):
        check_writable("--html", path)


def test_links_are_followed_and_permissions_kept(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    check_writable("--html", link)
    write_whole(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def _page(path):
    write_whole(path, "")


def _trace(path):
    TraceWriter(path).close()


def _batch(path):
    BatchOutput(path).close()


def _findings(path):
    ProbeCache(path, "0123").write(ProbeResult("http://there", "m", "vllm"))


@pytest.mark.parametrize("make", [_page, _trace, _batch, _findings])
def test_traces_batches_and_findings_are_for_their_owner_alone(tmp_path, no_umask, make):
    """They were 0644 and 0666 under the usual umasks: whoever shares the machine read every prompt."""
    make(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [_trace, _batch])
@pytest.mark.parametrize("mode", [0o640, 0o644])
def test_a_trace_or_batch_that_is_there_keeps_its_mode(tmp_path, make, mode):
    """Its owner has chosen it."""
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    make(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_trace_takes_the_place_of_an_older_one_and_of_nothing_else(tmp_path):
    """``--trace notes.txt`` had left nothing of the notes."""
    path = tmp_path / "file"
    for held in (b"", b'{"trace": 1}\n', b'{"trace": 4}\n{"event": "started"'):
        path.write_bytes(held)
        TraceWriter(path).close()
        assert path.read_text() == f'{{"trace": {TRACE_VERSION}}}\n'
    for held in (b"notes\n", b"\xff\xfe", b"7", b'{"trace": 4, "mine": 1}', b"\n", b"[" * 10**5, b'["trace"]'):
        path.write_bytes(held)
        with pytest.raises(UsageError, match=f"^--trace {path}: there is a file that is no trace"):
            TraceWriter(path)
        assert path.read_bytes() == held
    TraceWriter(Path("/dev/null")).close()


def test_text_that_utf_8_cannot_hold_is_written_with_replacements(tmp_path):
    write_whole(tmp_path / "page", "a\udc80b")
    assert (tmp_path / "page").read_text() == "a?b"


def test_links_that_lead_to_each_other_are_told_with_their_flag(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError, match=r"^--html .*: "):
        check_writable("--html", tmp_path / "a")
