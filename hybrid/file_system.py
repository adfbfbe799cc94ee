"""What file systems do differently, answered once: locks, renames, flushes and modes.

Windows neither renames nor replaces nor removes a file that somebody has open, be it for a moment (a reader, a virus
scanner), and opens none that is being replaced, so both are tried again there. It flushes no folder. Nobody else can
read the part of a file that is locked there, so a file is locked by another one beside it. Modes mean nothing there:
who may read a file is the matter of ACLs, which are inherited from the user's folder, and neither set nor checked here.

The law (``tests/test_file_system.py``): a file is replaced whole or not at all, and what is made is for its owner alone
where a system has modes.
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
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

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
