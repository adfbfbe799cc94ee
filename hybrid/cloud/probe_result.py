"""What was established about an endpoint by asking it, and where that is kept between runs.

One file of JSON in the user's cache directory, an entry per endpoint, model, dialect and local vocabulary: what holds
for one of these may be wrong for another. What is kept is believed until an answer contradicts it; then it is
forgotten. A file that cannot be read or written is no findings, never a failure (``kept.py``).
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from hybrid.cloud.port import Capabilities, RowAlteration, ScoringMethod
from hybrid.json_store import JsonStore

VERSION = 1


@dataclass(frozen=True)
class ProbeResult:
    """What was measured; None: not established. ``ways``: what came of each way to score; ``way``: the one to take.

    ``noise_nats``: the most by which a log-probability of a likely token differed between two ways to ask for it.
    ``grid``: what log-probabilities are multiples of; 0: of nothing coarser than a float32. ``check_tokens``: what a
    check after ``prefix_tokens`` was charged, without what was cached. ``hidden_mass``: the most probability that a
    list left out. ``token_route``: whether vLLM's token-in route is open. ``spent_tokens``: what the probe itself took.
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
    way: ScoringMethod | None = None
    ways: dict[str, str] = field(default_factory=dict)
    noise_nats: float | None = None
    grid: float | None = None
    keeps_cache: bool | None = None
    candidates: bool | None = None
    streams: bool | None = None
    prefix_tokens: int | None = None
    check_tokens: int | None = None
    hidden_mass: float | None = None
    token_route: bool | None = None
    spent_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        return asdict(self)


def measured(can: Capabilities, found: ProbeResult) -> Capabilities:
    """Return what an endpoint can do: what a probe has measured, and elsewhere what its documents say.

    Rows of a family that documents them as raw, and which were not, come from a server that was set to tell them after
    all that is done.
    """
    altered = can.rows_altered_by
    if found.raw_rows:
        altered -= {"temperature"}
    elif found.raw_rows is False:
        altered = altered or frozenset(get_args(RowAlteration))
    return replace(
        can,
        rows=found.rows,
        rows_altered_by=altered,
        way=found.way,
        continues=can.continues and found.continues is not False,
        most_k=found.most_k or can.most_k,
        keeps_cache=can.keeps_cache if found.keeps_cache is None else found.keeps_cache,
        candidates=can.candidates if found.candidates is None else found.candidates,
        streams=can.streams if found.streams is None else found.streams,
    )


def restated(url: str, can: Capabilities) -> ProbeResult:
    """Return findings by which ``measured`` makes of a family's documents what this endpoint is taken for."""
    return ProbeResult(
        url,
        can.model,
        can.dialect,
        same_words=can.same_words,
        max_context=can.max_context,
        takes_ids=can.ids,
        rows=can.rows,
        most_k=can.most_k,
        continues=can.continues,
        raw_rows="temperature" not in can.rows_altered_by,
        way=can.way,
        keeps_cache=can.keeps_cache,
        candidates=can.candidates,
        streams=can.streams,
    )


class ProbeCache:
    """The findings kept on disk for one local vocabulary."""

    def __init__(self, path: Path, vocabulary: str) -> None:
        """Take the file, which need not exist, and what names the local vocabulary."""
        self._kept = JsonStore(path, "endpoints", VERSION)
        self._vocabulary = vocabulary

    def read(self, url: str, model: str, dialect: str) -> ProbeResult | None:
        """Return what is known of an endpoint's model in a dialect."""
        entries = self._kept.entries()
        found = _findings(entries.get(self._key(url, model, dialect)))
        return found or _unnamed(entries, url, model, dialect)

    def write(self, findings: ProbeResult) -> bool:
        """Keep what was found; tell whether that worked."""
        key = self._key(findings.url, findings.model, findings.dialect)
        return self._kept.change(lambda entries: {**entries, key: findings.to_json()})

    def forget(self, url: str, model: str, dialect: str) -> None:
        """Drop what an answer contradicted."""
        entries = self._kept.entries()
        dropped = {self._key(url, model, dialect)} & entries.keys()
        if _unnamed(entries, url, model, dialect):
            dropped.add(_unnamed_key(url, model))
        if dropped:
            self._kept.change(lambda now: {key: entry for key, entry in now.items() if key not in dropped})

    def _key(self, url: str, model: str, dialect: str) -> str:
        return f"{url} {model} {dialect} {self._vocabulary}"


def _findings(entry: object) -> ProbeResult | None:
    """Read an entry; None where it is missing or of another shape."""
    if not isinstance(entry, dict) or not set(entry) <= {part.name for part in fields(ProbeResult)}:
        return None
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(entry, ProbeResult)  # the file is the user's: a number may have become a word
    return None


def _unnamed(entries: dict[str, Any], url: str, model: str, dialect: str) -> ProbeResult | None:
    """Return what an earlier version kept, which knew one entry for a model, whatever the dialect and vocabulary.

    It is believed for the dialect that it names, unless it says that the vocabulary was another: that may be because
    of the local model it was found with.
    """
    found = _findings(entries.get(_unnamed_key(url, model)))
    return found if found and found.dialect == dialect and found.same_words is not False else None


def _unnamed_key(url: str, model: str) -> str:
    return f"{url} {model}"
