"""What a policy may ask, and what it may be told. The whole vocabulary of the loop; frozen, closed, without behaviour.

Positions are prefixes of the answer (``at``: the ids shown so far), never of the prompt. Rows are raw next-token
distributions at temperature 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.policy.gates import Gate, GateDecision
from hybrid.prob import Dense, TopK
from hybrid.types import Divergence, How, Ids, Source


@dataclass(frozen=True, eq=False)
class PendingToken:
    """A token that stands for now: who wrote it, what it was drawn from, how far the two models were apart.

    ``drawn_from`` is the distribution it was really drawn from (None for the cloud's tokens), ``draft_row`` and
    ``target_row`` are the raw rows it answers to, where they are known. ``certificate`` is the divergence below which
    the local model's favourite is the cloud's own, in nats. ``why`` says why the pen changed hands here.
    """

    id: int
    source: Source
    how: How
    drawn_from: Dense | None = None
    draft_row: Dense | None = None
    target_row: TopK | None = None
    kl: Divergence | None = None
    why: str | None = None
    certificate: float | None = None


Span: TypeAlias = tuple[PendingToken, ...]


def ids(span: Span) -> Ids:
    """Return the token ids alone."""
    return tuple(token.id for token in span)


# ---- requests ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    """Let the local model write up to ``limit`` tokens while the gate says keep. Answered by Drafted.

    ``after``: the local row that follows the span is wanted too. ``rejections`` is the number of rejections so far:
    it keys the coins, so that a redrafted position is not drawn with the coin that was rejected there.
    """

    at: Ids
    limit: int
    gate: Gate
    after: bool = False
    rejections: int = 0


@dataclass(frozen=True)
class Check:
    """Have the cloud score a span, in one round trip. Answered by Scored, Refused or Unreachable.

    ``after``: the row that follows the span is wanted too. An empty span with ``after`` asks for that row alone.
    """

    at: Ids
    span: Span
    after: bool = True


@dataclass(frozen=True)
class Write:
    """Let the cloud write up to ``limit`` tokens. Answered by Wrote (one chunk), Refused or Unreachable.

    ``limit`` is a promise to the bill: it goes upstream and is what is reserved. Asking again at the position that was
    reached reads on. ``ban`` asks for a token outside these. ``along``: the local model's rows are wanted too.
    ``note`` says what the user should know of it. ``rows``: the tokens' own rows are looked at; without, they may be
    missing.
    """

    at: Ids
    limit: int
    ban: frozenset[int] = frozenset()
    along: bool = False
    note: str | None = None
    rows: bool = False


@dataclass(frozen=True)
class Emit:
    """Show these tokens. Answered by Going or Over. What was shown is never taken back."""

    tokens: Span


Request: TypeAlias = Draft | Check | Write | Emit

# ---- replies -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drafted:
    """What the local model drafted, and the gate's decision where the draft ended.

    ``after`` is the local row after the span, where it was wanted, or where the gate ended the draft before it.
    """

    span: Span
    decision: GateDecision
    after: Dense | None = None


@dataclass(frozen=True, eq=False)
class Scored:
    """The cloud's rows for the first tokens of the span, and the row after it if all were answered and it was asked."""

    rows: tuple[TopK, ...]


@dataclass(frozen=True, eq=False)
class Wrote:
    """One chunk of what the cloud wrote; ``ended``: the request has no more to give."""

    span: Span
    ended: bool = False


@dataclass(frozen=True)
class Refused:
    """No money for it."""

    why: str


@dataclass(frozen=True)
class NoAnswer:
    """No answer from the cloud that could be believed."""

    why: str


@dataclass(frozen=True)
class Continue:
    """The answer goes on."""


@dataclass(frozen=True)
class Finish:
    """The answer ends here: an end token, or no room for more."""

    why: Literal["stop", "length"]


Reply: TypeAlias = Drafted | Scored | Wrote | Refused | NoAnswer | Continue | Finish
