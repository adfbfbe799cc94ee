"""Files of one's own: what file systems do differently, answered once, and the user's own folders.

Locks, renames, flushes and modes are here; what lies in the folders is the business of those who ask. The law
(``tests/test_folders.py``): a folder that is made here is for its owner alone (0700), whatever the umask. One of this
program's own that is there already becomes so; one that the user named keeps its mode.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock
from platformdirs import user_cache_path, user_state_path

from hybrid.errors import UsageError

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
