"""What a judge is: it sees a drafted span and both sides' rows, and says what stands.

A judge sees the whole span at once and answers with a ``Verdict``. It judges no token whose row was not answered. The
rules themselves are in ``rules/``, one file each, with the law that each keeps; the laws are tested by enumeration of
the whole loop in ``tests/policy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from hybrid.policy.requests import PendingToken, Span
from hybrid.prob import Dense, Floats, TopK, favourite_certificate, kl_divergence
from hybrid.types import Divergence

SpanCoin: TypeAlias = Callable[[Floats, int, str], int]
"""(probabilities, offset in the span, what for) -> index: a coin, keyed by where it falls."""


@dataclass(frozen=True)
class TailDraw:
    """One token that only the cloud can draw: from its own law, outside ``ban``.

    ``determined`` says of another row whether it determines the cloud's law, where this one does not.
    """

    ban: frozenset[int] = frozenset()
    why: str | None = None
    determined: Callable[[TopK], bool] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Verdict:
    """``kept`` stands; ``then`` follows it; ``rejected``: what was drafted next is turned down.

    A rejection says why. ``ahead`` is the divergence measured at the position after the span, if it was.
    """

    kept: Span
    then: PendingToken | TailDraw | None = None
    rejected: bool = False
    why: str | None = None
    ahead: Divergence | None = None


@dataclass(frozen=True, eq=False)
class DraftedSpan:
    """What a judge sees: a span, one row for each of its first tokens and perhaps the row after it.

    ``after`` is the local row that follows the span. ``bonus``: the row after may give one more token.
    """

    span: Span
    rows: tuple[TopK, ...]
    after: Dense | None
    bonus: bool
    draw: SpanCoin

    @property
    def judged(self) -> list[tuple[PendingToken, TopK]]:
        """The tokens whose rows were answered."""
        return list(zip(self.span, self.rows, strict=False))

    @property
    def next_row(self) -> TopK | None:
        """The row after the span, if there is one."""
        return self.rows[len(self.span)] if len(self.rows) > len(self.span) else None

    def accepted(self, num_tokens: int | None = None, measured: Mapping[int, Divergence] | None = None) -> Span:
        """Return the first tokens (or all that were judged), marked as accepted, with their divergence.

        ``measured`` holds, by its place in the span, what the judge has computed already: at a large vocabulary that is
        most of what a check costs here.
        """
        known = measured or {}
        return tuple(_accepted(held, row, known.get(i)) for i, (held, row) in enumerate(self.judged[:num_tokens]))

    def ahead(self) -> Divergence | None:
        """Measure the position after the span, where both rows are known: it belongs to the next token."""
        return kl_divergence(self.next_row, self.after) if self.next_row is not None and self.after else None


Judge: TypeAlias = Callable[[DraftedSpan], Verdict]


def _accepted(held: PendingToken, row: TopK, kl: Divergence | None) -> PendingToken:
    if kl is None and held.draft_row is not None:
        kl = kl_divergence(row, held.draft_row)
    return replace(held, how="accepted", target_row=row, kl=kl, certificate=favourite_certificate(row))


def best_of(
    row: TopK,
    local: Dense | None,
    how: Literal["recovered", "bonus"],
    why: str | None = None,
    measured: Divergence | None = None,
) -> PendingToken:
    """Take the cloud's most likely token at a row that was already paid for."""
    if measured is None and local is not None:
        measured = kl_divergence(row, local)
    return PendingToken(row.best, "cloud", how, draft_row=local, target_row=row, kl=measured, why=why)
