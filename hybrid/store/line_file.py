"""A file of one's own that grows by whole lines: a process that is killed leaves whole lines, perhaps a torn one.

The law: what ``append`` was given is on the disk whole when it returns, and nothing of it is there when it raises; no
two processes write one file (``tests/test_line_file.py``). What a line means, and what is done about a torn one, is the
business of those who read it. On Windows the lock is a file beside it, so that it can be read meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout, lock_descriptor

from hybrid.errors import UsageError, to_one_line
from hybrid.store.files import BINARY, OWNERS, WINDOWS, file_lock, flush_folder, patiently, replace

# Of a file that is read whole: the concepts of 150,000 tokens take 4 MiB, and JSON becomes ten times as long in memory.
MOST_BYTES = 32 << 20


def open_regular(path: Path) -> TextIO:
    """Open a file of UTF-8 text to read. Raises UsageError for what is no file, before anything is read of it.

    A pipe waits for whoever writes it, and a device may have no end. Raises OSError where it cannot be opened.
    """
    if WINDOWS and path.is_dir():  # there it cannot even be opened
        msg = f"{path}: not a file"
        raise UsageError(msg)
    fd = patiently(lambda: os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)))  # Windows has nothing that waits
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, encoding="utf-8")
    os.close(fd)
    msg = f"{path}: not a file"
    raise UsageError(msg)


def read_regular(path: Path) -> bytes:
    """Read a file whole. Raises UsageError for what is no file or too long to be believed, and OSError."""
    with open_regular(path) as file:
        raw = file.buffer.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        msg = f"{path}: longer than {MOST_BYTES >> 20} MiB"
        raise UsageError(msg)
    return raw


class LineFile:
    """A file that is locked for as long as this lives. ``end``: its length in bytes."""

    def __init__(self, path: Path, busy: str = "another process is writing it") -> None:
        """Open or make the file; ``busy`` says what it means that another process has it.

        Raises UsageError where it cannot be opened, is no file (nothing else keeps what is written), or is locked.
        """
        self.path = path
        self._lock = _lock_beside(path, busy) if WINDOWS else None
        try:
            self._fd = _opened(path) if self._lock else _locked(path, busy)
        except BaseException:
            self._unlock()
            raise
        self.end = os.fstat(self._fd).st_size

    def check_there(self) -> None:
        """Raise OSError where the file has lost its name: it was removed, or another one was put in its place."""
        if self._lock is None and not _is_there(self.path, self._fd):
            raise OSError(errno.ENOENT, f"{self.path}: it was removed or replaced while it was written")

    def append(self, lines: Iterable[bytes], *, durable: bool = True) -> None:
        """Write some bytes behind the last and wait until the disk has them, once for all of them.

        ``durable``: False leaves it to the system when the disk has them. Raises OSError, naming the file, where they
        cannot be written; what was there before stays.
        """
        start = self.end
        try:
            for raw in lines:
                left = memoryview(raw)
                while left:
                    left = left[os.write(self._fd, left) :]
                self.end += len(raw)
            if durable:
                os.fsync(self._fd)
        except BaseException as error:
            self.cut(start)
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{self.path}: {error.strerror}") from error
            raise

    def cut(self, end: int) -> None:
        """Shorten the file to so many bytes."""
        os.ftruncate(self._fd, end)
        self.end = end

    def read(self, start: int, size: int) -> bytes:
        """Return so many bytes. ``lines`` goes on where it was: Windows has no pread."""
        place = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            os.lseek(self._fd, start, os.SEEK_SET)
            return os.read(self._fd, size)
        finally:
            os.lseek(self._fd, place, os.SEEK_SET)

    def lines(self) -> Iterator[bytes]:
        """Yield what stands there, from the start and line by line; the last may have no line break."""
        os.lseek(self._fd, 0, os.SEEK_SET)
        with open(self._fd, "rb", closefd=False) as file:
            yield from file

    def take_place_of(self, other: LineFile) -> None:
        """Have another file's name, in one step that the disk has when this returns; the other one can only be closed.

        Links are followed. Raises OSError: both are as they were, or, where only the folder cannot be flushed, the name
        is this file's, and the disk may not have that yet.
        """
        target = other.path.resolve()
        other.check_there()
        os.fsync(self._fd)
        with self._renamable(), other._renamable():
            replace(self.path, target)
            self.path = target
            self._lock, other._lock = other._lock, self._lock
        flush_folder(target.parent)

    def remove(self) -> None:
        """Remove the file, and close it only then: nobody else is to lock what is about to go."""
        with self._renamable(lasts=False):
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file and give the lock back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._unlock()

    @contextmanager
    def _renamable(self, *, lasts: bool = True) -> Iterator[None]:
        """Have the file closed meanwhile where an open one keeps its name: there the lock is another file's."""
        if self._lock is None:
            yield
            return
        fd, self._fd = self._fd, -1
        os.close(fd)
        try:
            yield
        finally:
            if lasts:
                self._fd = _opened(self.path)

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _lock_beside(path: Path, busy: str) -> FileLock:
    _check_kind(path)
    try:
        lock = file_lock(path.resolve())
        lock.acquire(timeout=0)
    except Timeout:
        msg = f"{path}: {busy}"
        raise UsageError(msg) from None
    except (OSError, RuntimeError) as error:
        msg = f"{path}: cannot be locked: {getattr(error, 'strerror', None) or to_one_line(error)}"
        raise UsageError(msg) from None
    return lock


def _locked(path: Path, busy: str) -> int:
    """Return a descriptor of the file that has the name now, locked as ``flock`` locks it."""
    while True:
        fd = _opened(path)
        try:
            is_locked = lock_descriptor(fd, blocking=False)
            if is_locked and _is_there(path, fd):
                return fd
        except OSError as error:
            os.close(fd)
            msg = f"{path}: cannot be locked: {error.strerror}"
            raise UsageError(msg) from None
        os.close(fd)  # where it is locked, another file has taken its place since: that one is meant
        if not is_locked:
            msg = f"{path}: {busy}"
            raise UsageError(msg)


def _is_there(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _opened(path: Path) -> int:
    _check_kind(path)
    try:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, OWNERS)
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise UsageError(msg) from None


def _check_kind(path: Path) -> None:
    try:
        path.parent.stat()  # filelock would make it
        if not path.exists() or path.is_file():
            return
        why = "not a file"
    except OSError as error:
        why = str(error.strerror)
    msg = f"{path}: {why}"
    raise UsageError(msg)
