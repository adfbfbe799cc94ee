"""Entries kept on disk between runs, by name: one JSON file that many processes read and change at once.

The law: a change of one entry keeps all others, however many processes change entries at once
(``tests/cloud/test_probe_result.py``). Of a file that cannot be read, or not whole, what can be is used, ``damage``
says so, and the next change puts the old file aside; an entry has a checksum, and one digit that turned into another is
seen (``tests/test_kept_files.py``). Files of before have none, and are read. One that cannot be written is no failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid.errors import UsageError
from hybrid.store.files import file_lock, make_folder, replace, replace_content
from hybrid.store.line_file import read_regular

# A change takes milliseconds; a process that locks the file for longer is stuck.
PATIENCE_S = 5.0
POLL_S = 0.002
_SUMS = "sums"  # each entry's, under its key


@dataclass(frozen=True)
class JsonStore:
    """The entries under one name of a file, which need not exist. Entries of another version are not used.

    ``is_entry`` tells what can be an entry; what cannot is not used either.
    """

    path: Path
    name: str
    version: int
    is_entry: Callable[[Any], bool] = lambda _: True

    def read_entries(self) -> dict[str, Any]:
        """Read them all."""
        return self._read()[0]

    @property
    def damage(self) -> str | None:
        """Say in a sentence that some of the file, or all of it, is not used; None where nothing is wrong with it."""
        if not self._read()[1]:
            return None
        lost = f"the file may be deleted, and what it held of {self.name} is then found out anew"
        return f"{self.path} is damaged, or of another version: what cannot be read of it is not used; {lost}"

    def _read(self) -> tuple[dict[str, Any], bool]:
        """Return the entries, and whether there is more in the file than they."""
        try:
            raw = read_regular(self.path).decode()
            kept = json.loads(raw)
            if "\\ud" in raw.lower():
                json.dumps(kept, ensure_ascii=False).encode()  # half of a pair is no text, and has no bytes
        except FileNotFoundError:
            return {}, False
        except (OSError, UsageError, ValueError, RecursionError):
            return {}, True
        if (
            not isinstance(kept, dict)
            or kept.get("version") != self.version
            or not isinstance(kept.get(self.name), dict)
        ):
            return {}, True
        whole, sums = kept[self.name], kept.get(_SUMS)
        matching = whole if sums is None else {key: each for key, each in whole.items() if _has_sum(sums, key, each)}
        entries = {key: entry for key, entry in matching.items() if self.is_entry(entry)}
        return entries, len(entries) < len(whole)

    def change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
        """Write the whole file beside itself and move it into place: a reader sees the old one or the new one.

        A damaged one is put aside. Returns whether the file was written.
        """

        def changed() -> bytes:
            entries, damaged = self._read()
            entries = json.loads(json.dumps(change(entries)))  # as they will be read
            sums = {key: _checksum(key, entry) for key, entry in entries.items()}
            raw = json.dumps({"version": self.version, self.name: entries, _SUMS: sums}, indent=1).encode()
            if damaged and not self.path.is_dir():
                put_aside(self.path)
            return raw

        return rewrite(self.path, changed)


def _has_sum(sums: Any, key: str, entry: Any) -> bool:
    return isinstance(sums, dict) and sums.get(key) == _checksum(key, entry)


def _checksum(key: str, entry: Any) -> int:
    return zlib.crc32(json.dumps([key, entry], sort_keys=True).encode())


def rewrite(path: Path, content: Callable[[], bytes]) -> bool:
    """Replace a file of the user's own by what ``content`` returns, which is called while the file is locked.

    Returns whether the file was written.
    """
    try:
        make_folder(path.parent)
        with locked(path):
            replace_content(path, content())
    except OSError:
        return False
    return True


def put_aside(path: Path) -> None:
    """Rename a file to a name that nothing has. Raises OSError."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{number}.aside")):
        number += 1
    replace(path, aside)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against other processes. Raises OSError if another one holds the lock for too long."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(RuntimeError):  # filelock: this file system has no locks; the last one wins there
            held.enter_context(file_lock(path).acquire(PATIENCE_S, POLL_S))
        yield
