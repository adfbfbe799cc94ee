"""Files of one's own: what file systems do differently, answered once, the user's folders, and a file of whole lines.

Locks, renames, flushes and modes are here; what lies in the folders is the business of those who ask. Laws: a folder
that is made here is for its owner alone (0700), whatever the umask; one of this program's own that is there already
becomes so, and one that the user named keeps its mode (``tests/test_folders.py``). What ``LineFile.append`` was given
is on the disk whole when it returns, and nothing of it is there when it raises; no two processes write one file
(``tests/test_line_file.py``). What a line means, and what is done about a torn one, is the business of those who read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, TypeVar

from filelock import FileLock, Timeout, lock_descriptor
from platformdirs import user_cache_path, user_state_path

from hybrid.errors import UsageError, to_one_line

Done = TypeVar("Done")
WINDOWS = sys.platform == "win32"
# The mode of a file that is made here: it holds questions and answers, so it is for its owner alone.
OWNERS = 0o600
# Without it Windows writes two bytes for a line break, and what was counted stands elsewhere.
BINARY: int = getattr(os, "O_BINARY", 0)
# How often something is tried on Windows, and how long it rests: two seconds are more than a virus scanner takes.
MOST_TRIES, REST_S = 100, 0.02


def patiently(act: Callable[[], Done]) -> Done:
    """Return what something comes to that Windows refuses for as long as somebody else has a file. Raises OSError."""
    for _ in range(MOST_TRIES if WINDOWS else 0):
        with contextlib.suppress(PermissionError):
            return act()
        time.sleep(REST_S)
    return act()


def replace(source: Path, target: Path) -> None:
    """Put a file in the place of another, or where none is, in one step. Raises OSError."""
    patiently(lambda: source.replace(target))


def flush_folder(folder: Path) -> None:
    """Wait until the disk has a folder's names, where a system tells. Raises OSError."""
    if WINDOWS:
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_content(path: Path, raw: bytes, *, keep_mode: bool = False) -> None:
    """Write a file beside ``path`` and put it in its place in one step: a reader sees the old content or the new one.

    ``keep_mode``: a file that is there keeps its mode. Raises OSError, with nothing changed.
    """
    beside = beside_of(path)
    try:
        beside.touch(OWNERS, exist_ok=False)
        beside.write_bytes(raw)
        if keep_mode and path.exists():
            shutil.copymode(path, beside)
        replace(beside, path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def beside_of(path: Path) -> Path:
    """Name a file that nobody else has, in the same folder: only there is a rename one step."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}")


def owners(path: str, flags: int) -> int:
    """Open as an ``opener`` of ``open`` does; what it makes is for its owner alone."""
    return os.open(path, flags, OWNERS)


def file_lock(path: Path, mode: int = OWNERS) -> FileLock:
    """Return the lock of a file against other processes; the lock's own file gets the mode, one that is there too."""
    lock = Path(f"{path}.lock")
    with contextlib.suppress(OSError):  # there is none yet, or it is somebody else's
        if not WINDOWS and stat.S_IMODE(lock.stat().st_mode) != mode:
            lock.chmod(mode)
    return FileLock(lock, mode=mode)


# The name of this program's folders among the user's own; without an author, which only Windows would show.
APP = "hybrid-llm"
# What lies in state and cache tells what its owner asked, and what it cost.
OWNER_ALONE = 0o700


def own_folder(kind: Callable[[str], Path]) -> Path | None:
    """Return a folder of the user's, of one of platformdirs' kinds; None where they have no home.

    A relative one, which older versions of platformdirs then give, is in the working directory, where anybody may have
    made it.
    """
    try:
        folder = kind(APP)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None


def home_folder(kind: Callable[[str], Path]) -> Path:
    """Return a folder of the user's. Raises UsageError where they have no home."""
    if (folder := own_folder(kind)) is None:
        raise UsageError("there is no home folder to keep files in: set HOME to an absolute path")
    return folder


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone. Raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was first
            each.mkdir()
            each.chmod(OWNER_ALONE)
    if not folder.is_dir():
        folder.mkdir()  # raises what it is
    own = [kept for kept in (own_folder(user_state_path), own_folder(user_cache_path)) if kept is not None]
    for each in (folder, *folder.parents):
        if any(each.is_relative_to(kept) for kept in own) and each.stat().st_mode & 0o077:
            with suppress(PermissionError):  # somebody else's: it is read and written as far as that goes
                each.chmod(OWNER_ALONE)


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
    """A file that is locked for as long as this lives. ``end``: its length in bytes.

    On Windows the lock is a file beside it, so that it can be read meanwhile.
    """

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

    def append(self, lines: Iterable[bytes]) -> None:
        """Write some bytes behind the last and wait until the disk has them, once for all of them.

        Raises OSError, naming the file, where they cannot be written; what was there before stays.
        """
        start = self.end
        try:
            for raw in lines:
                left = memoryview(raw)
                while left:
                    left = left[os.write(self._fd, left) :]
                self.end += len(raw)
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
