"""What was established about an endpoint by asking it, and where that is kept between runs.

One file of JSON in the user's cache directory, an entry per endpoint and model. What is kept is believed until an
answer contradicts it; then it is forgotten. A file that cannot be read or written is no findings, never a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec

VERSION = 1


@dataclass(frozen=True)
class Findings:
    """None: not established. ``ways`` tells of each way to score what came of it; ``way`` is the one to take.

    ``noise_nats``: the most by which a log-probability of a likely token differed between two ways to ask for it.
    ``grid``: what log-probabilities are multiples of; 0: of nothing coarser than a float32. ``check_tokens``: what a
    check after ``prefix_tokens`` was charged, without what was cached. ``spent_tokens``: what the probe itself took.
    """

    url: str
    model: str
    dialect: str
    same_words: bool | None = None
    max_context: int | None = None
    round_trip_ms: float | None = None
    takes_ids: bool = False
    rows: bool = False
    most_k: int | None = None
    continues: bool | None = None
    cached_usage: bool | None = None
    chunk_usage: bool | None = None
    raw_rows: bool | None = None
    way: str | None = None
    ways: dict[str, str] = field(default_factory=dict)
    noise_nats: float | None = None
    grid: float | None = None
    keeps_cache: bool | None = None
    candidates: bool | None = None
    prefix_tokens: int | None = None
    check_tokens: int | None = None
    spent_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        return asdict(self)


class Notebook:
    """The findings kept on disk."""

    def __init__(self, path: Path) -> None:
        """Take the file, which need not exist."""
        self._path = path

    def read(self, url: str, model: str) -> Findings | None:
        """Return what is known of an endpoint's model."""
        entry = self._entries().get(_key(url, model))
        known = {part.name for part in fields(Findings)}
        if not isinstance(entry, dict) or not set(entry) <= known:
            return None
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(entry, Findings)  # the file is the user's: a number may have become a word
        return None

    def write(self, findings: Findings) -> bool:
        """Keep what was found; tell whether that worked."""
        return self._put({**self._entries(), _key(findings.url, findings.model): findings.to_json()})

    def forget(self, url: str, model: str) -> None:
        """Drop what an answer contradicted."""
        entries = self._entries()
        if entries.pop(_key(url, model), None) is not None:
            self._put(entries)

    def _entries(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(kept, dict) and kept.get("version") == VERSION and isinstance(kept.get("endpoints"), dict):
                return dict(kept["endpoints"])
        return {}

    def _put(self, entries: dict[str, Any]) -> bool:
        """Write the whole file beside itself and move it into place: a reader sees the old one or the new one."""
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"version": VERSION, "endpoints": entries}, indent=1), encoding="utf-8")
            beside.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            return False
        return True


def _key(url: str, model: str) -> str:
    return f"{url} {model}"
