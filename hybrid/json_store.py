"""Entries kept on disk between runs, by name: one JSON file that many processes read and change at once.

The law: whoever changes an entry leaves all others as they are, however many processes do so at once
(``tests/cloud/test_probe_result.py``). A file that cannot be read holds nothing; one that cannot be written is no
failure.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

# A change takes milliseconds; whoever holds the file longer than this is stuck.
PATIENCE_S = 5.0
POLL_S = 0.002


@dataclass(frozen=True)
class JsonStore:
    """The entries under one name of a file, which need not exist; those of another version are as good as none."""

    path: Path
    name: str
    version: int

    def entries(self) -> dict[str, Any]:
        """Read them all."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(kept, dict) and kept.get("version") == self.version and isinstance(kept.get(self.name), dict):
                return dict(kept[self.name])
        return {}

    def change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
        """Write the whole file beside itself and move it into place: a reader sees the old one or the new one.

        Tells whether that worked.
        """
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._alone():
                kept = {"version": self.version, self.name: change(self.entries())}
                beside.touch(0o600)
                beside.write_text(json.dumps(kept, indent=1), encoding="utf-8")
                beside.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from changing the file. Raises OSError where one does not let go of it."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(RuntimeError):  # filelock: this file system has no locks; the last one wins there
                held.enter_context(FileLock(f"{self.path}.lock").acquire(PATIENCE_S, POLL_S))
            yield
