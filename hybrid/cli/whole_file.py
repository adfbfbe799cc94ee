"""Files that are there whole or not at all, and files of one's own.

The law: whether a file can be written is told before the work whose result it shall hold, and a failure while it is
written leaves what stood there before. What hybrid makes holds prompts and answers, so that it is for its owner alone
(mode 0600), whatever the umask; a file that is there keeps its mode (``tests/cli/test_whole_file.py``).
"""

from __future__ import annotations

import os
from pathlib import Path

from hybrid.errors import UsageError
from hybrid.file_system import OWNERS, beside_of, replace_content


def check_writable(flag: str, path: Path) -> None:
    """Try to make a file beside ``path`` and leave nothing. Raises UsageError, naming the flag, where that fails."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            msg = f"{flag} {path}: not a file"
            raise UsageError(msg)
        if target.exists() and not os.access(target, os.W_OK):
            msg = f"{flag} {path}: write-protected"
            raise UsageError(msg)
        beside = beside_of(target)
        beside.touch(OWNERS, exist_ok=False)
        beside.unlink()
    except OSError as error:
        msg = f"{flag} {path}: {error.strerror}"
        raise UsageError(msg) from None
    except RuntimeError:  # links that lead to each other
        msg = f"{flag} {path}: a link that leads nowhere"
        raise UsageError(msg) from None


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text beside ``path`` and put it in its place in one step; links are followed, a file's mode is kept.

    Raises OSError, with nothing changed, where the text cannot be written.
    """
    replace_content(path.resolve(), text.encode(errors="replace"), keep_mode=True)
