"""The files of a model while llama.cpp has them mapped: what a file loses meanwhile is read as a fault of the memory.

Such a fault (SIGBUS) ends the process, and nothing here can catch it. So the files are looked at before each question:
of one that has shrunk or been written to since, no more is read. A file that another one has replaced is still there
for whoever has mapped it, and changes nothing. The law: ``tests/engine/test_mapped_files.py``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hybrid.errors import EngineError


class MappedFiles:
    """Open files, and their sizes and times as they were when this was made."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files. Raises EngineError where that cannot be."""
        self._files: dict[int, tuple[Path, tuple[int, int]]] = {}
        try:
            for path in paths:
                fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
                self._files[fd] = (path, _state_of(fd))
        except OSError as error:
            self.close()
            msg = f"the model file {path} cannot be read: {error.strerror}"
            raise EngineError(msg) from error

    def check_named(self) -> None:
        """Raise EngineError where another file has a name by now: which of the two was loaded is not known."""
        for fd, (path, _) in self._files.items():
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(fd)):
                    continue
            msg = f"the model file {path} was replaced while it was loaded: try again"
            raise EngineError(msg)

    def check_unchanged(self) -> None:
        """Raise EngineError where a file has another size, or was written to."""
        for fd, (path, state) in self._files.items():
            if _state_of(fd) != state:
                msg = f"the model file {path} was changed while it was in use: start again, and replace it by a rename"
                raise EngineError(msg)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files:
            os.close(fd)
        self._files.clear()


def _state_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns
