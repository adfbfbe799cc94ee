"""``--trace FILE``: every event as one JSON object a line, written as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

import typer

from hybrid.errors import UsageError
from hybrid.file_system import owners
from hybrid.run.events import TRACE_VERSION, Event, to_json

# The first line of a trace has 12.
MOST_FIRST_BYTES = 100


class Trace:
    """A trace file, or nothing where none is wanted. A disk that fills up ends the trace, never the answer."""

    def __init__(self, path: Path | None) -> None:
        """Open the file; an older trace makes room. Raises UsageError where that cannot be, or for any other file."""
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            if path.is_file() and path.stat().st_size and not _is_trace(path):
                msg = f"--trace {path}: there is a file that is no trace: name another, or remove it"
                raise UsageError(msg)
            self._file = open(path, "w", encoding="utf-8", buffering=1, opener=owners)  # noqa: SIM115  (see close)
        except OSError as error:
            msg = f"--trace {path}: {error.strerror}"
            raise UsageError(msg) from None
        self._line({"trace": TRACE_VERSION})

    def write(self, event: Event) -> None:
        """Add an event."""
        self._line(to_json(event))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _line(self, value: object) -> None:
        if self._file is None:
            return
        try:
            print(json.dumps(value, ensure_ascii=False), file=self._file)
        except OSError as error:
            typer.echo(f"hybrid: the trace ends here: {error.strerror}", err=True)
            file, self._file = self._file, None
            _abandon(file)


def _is_trace(path: Path) -> bool:
    """Tell whether a file begins as a trace does; no more of it is read."""
    with path.open("rb") as file:
        try:
            first = json.loads(file.readline(MOST_FIRST_BYTES))
        except (ValueError, RecursionError):
            return False
    return isinstance(first, dict) and first.keys() == {"trace"}


def _abandon(file: TextIO) -> None:
    """Close a file that cannot take what it still holds."""
    try:
        file.close()
    except OSError:
        return
