"""One remote model, as the rest of the house sees it: it scores a draft, and it writes.

Everything that comes through this port has been checked: rows are distributions, there are no more than were due, and
what is missing is missing. Failures are the exceptions of ``hybrid.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from hybrid.prob import TopK
from hybrid.types import Ability, CloudUsage, Ids, Message, Sampling

ScoringMethod: TypeAlias = Literal["one request", "prefixes", "forced", "generate"]
"""How a draft is scored: in one request; by each of its prefixes with one new token; by forcing the model to write it;
by letting the model generate and comparing."""

RowAlteration: TypeAlias = Literal["temperature", "cut", "ban"]
"""What may alter the rows of written tokens: another temperature than 1, top-k, top-p or min-p, and tokens banned."""

BeforeSend: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited before a request's first byte leaves, so that what may have left is on record; what it raises stops it.

Every ``Cloud`` awaits it: a question that failed without it is settled as one of which nothing left.
"""


async def unrecorded() -> None:
    """Let a request leave that nobody keeps a record of."""


@dataclass(frozen=True)
class Capabilities:
    """What an endpoint is and can do: as its documents say, then as a probe measured, then as answers have shown.

    ``ids``: tokens are numbers on the wire. ``continues``: it can continue a partial answer. ``rows``: it writes with
    log-probabilities; they are the model's own unless ``rows_altered_by`` applies. ``scoring_method``: how a draft is
    scored (None: not at all), one of ``scoring_methods``, the cheapest first. ``candidates``: a row can hold tokens
    that are asked for by id. ``most_k``: the longest top-k list. ``keeps_cache``: a check reads the prefix cache.
    ``same_words``: the vocabulary is the local model's. ``streams``: a stream tells all that a whole answer does.
    None means not known.
    """

    model: str = ""
    dialect: str = ""
    max_context: int | None = None
    same_words: bool | None = None
    ids: bool = True
    continues: bool = True
    rows: bool = True
    rows_altered_by: frozenset[RowAlteration] = frozenset()
    scoring_method: ScoringMethod | None = "one request"
    scoring_methods: tuple[ScoringMethod, ...] = ("one request",)
    candidates: bool = False
    most_k: int | None = None
    keeps_cache: bool | None = None
    streams: bool = True

    @property
    def abilities(self) -> frozenset[Ability]:
        """What can be asked of it. A text can be opened everywhere; a draft needs rows, and a way to have them."""
        able: dict[Ability, bool] = {
            "open": True,
            "write": self.continues,
            "ids": self.ids,
            "score": self.rows and self.scoring_method is not None,
        }
        return frozenset(ability for ability, can in able.items() if can)


@dataclass(frozen=True)
class ScoreQuestion:
    """Score ``span`` after ``prefix``; with ``after``, the row that follows it too. Needs a non-empty prefix.

    ``candidates`` are tokens whose own log-probability is wanted in each row, where the endpoint can tell it without
    losing the top-k list: one tuple per row, or none at all. ``asked_at``: see ``WriteQuestion``.
    """

    prefix: Ids
    span: Ids
    after: bool
    top_k: int
    candidates: tuple[Ids, ...] = ()
    asked_at: float | None = None

    @property
    def num_rows(self) -> int:
        """Rows due."""
        return len(self.span) + int(self.after)


@dataclass(frozen=True)
class WriteQuestion:
    """Continue ``prefix`` by at most ``limit`` tokens, none of them in ``ban``.

    The last ``begun`` tokens of the prefix are the answer's; those before render ``turns``, the conversation as it was
    put, for endpoints that take no prompt but messages. ``asked_at`` is the time (``time.monotonic``) from which the
    question's total deadline counts: that of its first attempt; None: now.
    """

    prefix: Ids
    limit: int
    top_k: int
    sampling: Sampling
    ban: frozenset[int] = frozenset()
    begun: int = 0
    turns: tuple[Message, ...] = ()
    asked_at: float | None = None


Question: TypeAlias = ScoreQuestion | WriteQuestion


def max_usage(question: Question) -> CloudUsage:
    """Return the most that one request by ids is charged: nothing cached, everything written."""
    if isinstance(question, ScoreQuestion):
        return CloudUsage(len(question.prefix) + len(question.span), 1)
    return CloudUsage(len(question.prefix), question.limit)


def min_usage(question: Question) -> CloudUsage:
    """Return the least that one request by ids is charged, once it is answered: the ids that were sent."""
    if isinstance(question, ScoreQuestion):
        return CloudUsage(len(question.prefix) + len(question.span), 1)
    return CloudUsage(len(question.prefix), 0)


@dataclass(frozen=True, eq=False)
class Scores:
    """One row per scored token, then the row after; perhaps fewer than were asked, never later ones without earlier.

    ``usage`` is what was charged (``cloud.metering``). ``pieces`` are the endpoint's own texts of some ids.
    """

    rows: tuple[TopK, ...]
    usage: CloudUsage
    pieces: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some tokens as they were written, each with its row (None: not told).

    ``finish`` comes once, towards the end. ``usage`` (``cloud.metering``) is what was charged so far. The last one
    comes with ``finish`` or after it, or at the end of a stream without one, and is what was charged in all.
    """

    ids: Ids = ()
    rows: tuple[TopK | None, ...] = ()
    text: str = ""
    finish: Literal["stop", "length"] | None = None
    usage: CloudUsage | None = None


class Cloud(Protocol):
    """One remote model."""

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Ask, at no charge, what the endpoint is, and whether it splits ``probe`` into ``probe_ids``.

        ``asked_at`` is as in ``WriteQuestion``.

        Raises CloudRefusal for settings that will never work, CloudFailure for a bad day.
        """
        ...

    def max_usage(self, question: Question) -> CloudUsage:
        """Return the most that answering may be charged."""
        ...

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score a draft in as few round trips as the endpoint allows.

        ``request_id`` names this attempt to the server; ``before_send`` is awaited before its first byte leaves.

        Raises CloudError, which says what was charged for certain all the same.
        """
        ...

    def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; closing the generator closes the request. Raises as ``score`` does."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...
