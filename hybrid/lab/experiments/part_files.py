"""A folder's files of lines, one JSON object each: every process appends to one of its own.

The law (``tests/bench/test_part_files.py``): whatever a process that was killed has left of a line, the lines before it
and all that any process writes later are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO


def open_part(folder: Path, kind: str) -> TextIO:
    """Open this process's file of a kind, to append lines. A process of the same number may have begun it."""
    path = folder / f"{kind}-{os.getpid()}.jsonl"
    part = path.open("a", encoding="utf-8")
    if (raw := path.read_bytes()) and not raw.endswith(b"\n"):
        part.write("\n")
    return part


def read_lines(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of all files of a kind; a line that was cut off is passed over."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue
