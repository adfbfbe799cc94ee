"""One remote model, as the rest of the house sees it: it scores a draft, and it writes.

Everything that comes through this port has been checked: rows are distributions, there are as many as were due, and
what is missing is missing. Failures are the exceptions of ``hybrid.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from hybrid.prob import TopK
from hybrid.types import CloudUsage, Ids, Sampling

Ability: TypeAlias = Literal["score", "write"]


@dataclass(frozen=True)
class Capabilities:
    """What the endpoint said it is and can do."""

    model: str
    abilities: frozenset[Ability]
    max_context: int | None = None


@dataclass(frozen=True)
class ScoreQuestion:
    """Score ``span`` after ``prefix``; with ``after``, the row that follows it too. Needs a non-empty prefix."""

    prefix: Ids
    span: Ids
    after: bool
    top_k: int
    request_id: str

    @property
    def num_rows(self) -> int:
        """Rows due."""
        return len(self.span) + int(self.after)


@dataclass(frozen=True)
class WriteQuestion:
    """Continue ``prefix`` by at most ``limit`` tokens, none of them in ``ban``."""

    prefix: Ids
    limit: int
    top_k: int
    sampling: Sampling
    request_id: str
    ban: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Scores:
    """One row per scored token, then the row after; ``pieces`` are the endpoint's own texts of some ids."""

    rows: tuple[TopK, ...]
    usage: CloudUsage
    pieces: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some tokens as they were written, each with its row. ``finish`` and ``usage`` come once, towards the end."""

    ids: Ids = ()
    rows: tuple[TopK, ...] = ()
    text: str = ""
    finish: Literal["stop", "length"] | None = None
    usage: CloudUsage | None = None


class Cloud(Protocol):
    """One remote model."""

    async def connect(self, probe: str, probe_ids: Ids) -> Capabilities:
        """Ask, at no charge, what the endpoint is, and whether it splits ``probe`` into ``probe_ids``.

        Raises CloudRefusal for settings that will never work, CloudFailure for a bad day.
        """
        ...

    async def score(self, question: ScoreQuestion) -> Scores:
        """Score a draft in one round trip."""
        ...

    def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; closing the generator closes the request."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
