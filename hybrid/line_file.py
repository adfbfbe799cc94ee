"""A file of one's own that grows by whole lines: a process that is killed leaves whole lines, perhaps a torn one.

The law: what ``append`` was given is on the disk whole when it returns, and nothing of it is there when it raises; no
two processes write one file (``tests/test_line_file.py``). What a line means, and what is done about a torn one, is the
business of those who read it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from hybrid.errors import UsageError

# The mode of a file that is made here: it holds questions and answers, so it is for its owner alone.
OWNERS = 0o600
# Of a file that is read whole: the concepts of 150,000 tokens take 4 MiB, and JSON becomes ten times as long in memory.
MOST_BYTES = 32 << 20


def open_regular(path: Path) -> TextIO:
    """Open a file of UTF-8 text to read. Raises UsageError for what is no file, before anything is read of it.

    A pipe waits for whoever writes it, and a device may have no end. Raises OSError where it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # Windows has neither it nor what waits
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
        self.fd = _locked(path, busy)
        self.end = os.fstat(self.fd).st_size

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
                    left = left[os.write(self.fd, left) :]
                self.end += len(raw)
            if durable:
                os.fsync(self.fd)
        except BaseException as error:
            self.cut(start)
            if isinstance(error, OSError):
                raise OSError(error.errno, f"{self.path}: {error.strerror}") from error
            raise

    def cut(self, end: int) -> None:
        """Shorten the file to so many bytes."""
        os.ftruncate(self.fd, end)
        self.end = end

    def lines(self) -> Iterator[bytes]:
        """Yield what stands there, from the start and line by line; the last may have no line break."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        with open(self.fd, "rb", closefd=False) as file:
            yield from file

    def close(self) -> None:
        """Close the file and give the lock back."""
        os.close(self.fd)


def _locked(path: Path, busy: str) -> int:
    try:
        import fcntl  # noqa: PLC0415  (Windows has none, and reads such files all the same)
    except ImportError:
        msg = f"{path}: cannot be locked: this system has no such locks"
        raise UsageError(msg) from None
    while True:
        fd = _opened(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(path, fd):
                return fd
            os.close(fd)  # another file has taken its place since: that one is meant
        except OSError as error:
            os.close(fd)
            said = busy if isinstance(error, BlockingIOError) else f"cannot be locked: {error.strerror}"
            msg = f"{path}: {said}"
            raise UsageError(msg) from None


def _is_there(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _opened(path: Path) -> int:
    try:
        if path.exists() and not path.is_file():
            msg = f"{path}: not a file"
            raise UsageError(msg)
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, OWNERS)
    except OSError as error:
        msg = f"{path}: {error.strerror}"
        raise UsageError(msg) from None
