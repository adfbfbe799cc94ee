"""The user's own folders for configuration, state and cache. What lies in them is the business of those who ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hybrid.errors import UsageError

# The name of this program's folders among the user's own; without an author, which only Windows would show.
APP = "hybrid-llm"


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
