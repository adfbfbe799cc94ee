"""The user's own folders for configuration, state and cache. What lies in them is the business of those who ask.

The law (``tests/test_folders.py``): a folder that is made here is for its owner alone (0700), whatever the umask. One
of this program's own that is there already becomes so; one that the user named keeps its mode.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path, user_state_path

from hybrid.errors import UsageError

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
