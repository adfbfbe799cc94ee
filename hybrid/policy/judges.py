"""Judges say what of a drafted span stands, given both sides' rows.

A judge sees the whole span at once and answers with a ``Verdict``. It judges no token whose row was not answered.
Each rule's law is stated where it is defined and tested by enumeration of the whole loop in ``tests/policy``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hybrid.policy.requests import Held, Span
from hybrid.prob import Dense, TopK, kl_divergence
from hybrid.types import Divergence


@dataclass(frozen=True)
class Verdict:
    """``kept`` stands; ``then`` follows it, already paid for; ``rejected``: the next token is turned down.

    A rejection says why. ``ahead`` is the divergence measured at the position after the span, if it was.
    """

    kept: Span
    then: Held | None = None
    rejected: bool = False
    why: str | None = None
    ahead: Divergence | None = None


Judge: TypeAlias = Callable[[Span, tuple[TopK, ...], Dense | None, bool], Verdict]
"""(span, one row per token and perhaps the row after, the local row after, bonus) -> Verdict"""


def greedy_match(span: Span, rows: tuple[TopK, ...], after: Dense | None, bonus: bool) -> Verdict:
    """Keep while each token is the cloud's own most likely one; then the cloud's token.

    Law: with ``bonus`` the text is the cloud model's own greedy text, token for token, whatever the draft was.
    """
    for i, (held, row) in enumerate(zip(span, rows, strict=False)):
        if held.id != row.best:
            why = "the cloud's most likely token is another"
            return Verdict(_accepted(span[:i], rows), _own(row, held.local, "recovered", why), rejected=True, why=why)
    kept = _accepted(span[: len(rows)], rows)
    if bonus and len(rows) > len(span):
        return Verdict(kept, _own(rows[len(span)], after, "bonus", None))
    return Verdict(kept)


@dataclass(frozen=True)
class KlWithin:
    """Keep while KL(cloud || local) is within a threshold, in nats.

    The ``lower`` end of the tight interval decides: what is rejected violates the threshold for certain. With
    ``upper`` what is kept respects it for certain. The first offending position is where the span is cut; the cloud's
    most likely token, already paid for, follows when decoding is ``greedy``, else nothing (a sample from a truncated
    row would have the wrong law) and the cloud is asked to write. The row after the span judges the next local token
    for nothing: where the two models part there, the pen changes hands before a token is wasted.

    Law: at threshold 0 the greedy text is the cloud model's own; at infinity it is the local model's.
    """

    threshold: float
    number: Literal["lower", "upper"] = "lower"
    greedy: bool = True

    def __call__(self, span: Span, rows: tuple[TopK, ...], after: Dense | None, bonus: bool) -> Verdict:  # noqa: ARG002
        """Judge the span (the bonus is never taken: it would break the law at infinity)."""
        kept: list[Held] = []
        for held, row in zip(span, rows, strict=False):
            measured = kl_divergence(row, held.local) if held.local else None
            if measured and self.exceeds(measured):
                return self._rejection(tuple(kept), row, held.local, measured)
            kept.append(replace(held, how="accepted", cloud=row, kl=measured))
        if len(rows) > len(span) and after is not None:
            measured = kl_divergence(rows[len(span)], after)
            if self.exceeds(measured):
                return replace(self._rejection(tuple(kept), rows[len(span)], after, measured), ahead=measured)
            return Verdict(tuple(kept), ahead=measured)
        return Verdict(tuple(kept))

    def exceeds(self, measured: Divergence) -> bool:
        """Whether the deciding end of the interval is above the threshold."""
        return (measured.lower if self.number == "lower" else measured.upper) > self.threshold

    def agrees(self, measured: Divergence) -> bool:
        """Whether the two models are close enough for the pen to go back."""
        return not self.exceeds(measured)

    def _rejection(self, kept: Span, row: TopK, local: Dense | None, measured: Divergence) -> Verdict:
        value = measured.lower if self.number == "lower" else measured.upper
        why = f"KL {value:.3g} nats, above {self.threshold:g}"
        then = _own(row, local, "recovered", why, measured) if self.greedy else None
        return Verdict(kept, then, rejected=True, why=why)


def _accepted(span: Span, rows: tuple[TopK, ...]) -> Span:
    return tuple(
        replace(held, how="accepted", cloud=row, kl=kl_divergence(row, held.local) if held.local else None)
        for held, row in zip(span, rows, strict=False)
    )


def _own(
    row: TopK,
    local: Dense | None,
    how: Literal["recovered", "bonus"],
    why: str | None,
    measured: Divergence | None = None,
) -> Held:
    """Take the cloud's most likely token at a row that was already paid for."""
    if measured is None and local is not None:
        measured = kl_divergence(row, local)
    return Held(row.best, "cloud", how, local=local, cloud=row, kl=measured, why=why)
