"""``--trace FILE``: every event as one JSON object a line, written as it happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

import typer

from hybrid.cli.whole_file import owners
from hybrid.errors import UsageError
from hybrid.run.events import TRACE_VERSION, Event, to_json


class Trace:
    """A trace file, or nothing where none is wanted. A disk that fills up ends the trace, never the answer."""

    def __init__(self, path: Path | None) -> None:
        """Open the file. Raises UsageError where it cannot be."""
        self._file: TextIO | None = None
        if path is None:
            return
        try:
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


def _abandon(file: TextIO) -> None:
    """Close a file that cannot take what it still holds."""
    try:
        file.close()
    except OSError:
        return
