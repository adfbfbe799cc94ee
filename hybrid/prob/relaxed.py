"""Acceptance rules that are decided, not drawn: a token stands if the target likes it well enough.

What belongs here: each rule as a value, with two questions it answers about one row of the target. ``accepts`` is True
only where every completion of the unseen tail agrees; ``rejection_level`` is all that ``certificates.py`` needs.

The law. What a rule accepts from the top k it accepts from the full row, and no token it may reject is likelier than
its rejection level (``tests/prob/test_relaxed.py``). Natural logarithms; ties between tokens go by the row's order.
This file must not know a draft: what a rule rejects depends on the target alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from hybrid.prob.distribution import Dense, Floats, TopK
from hybrid.prob.extremes import largest
from hybrid.prob.terms import ROUNDING

Row: TypeAlias = TopK | Dense


@dataclass(frozen=True)
class GreedyAcceptance:
    """Accept the target's most likely token and nothing else."""

    def accepts(self, row: TopK, token: int) -> bool:
        """Whether ``token`` is the best of the row; one shown token is enough to know."""
        return token == row.best

    def rejection_level(self, row: Row) -> float | None:
        """Return the most that a rejected token's probability can be; None if no token is rejected."""
        return _prob_at_rank(row, 2)


class _Threshold(Protocol):
    """Accept the best token, and whatever certainly reaches a threshold."""

    def threshold(self, row: Row) -> float:
        """Return the least probability that is enough; from a top-k row, the most that this may be."""
        ...

    def accepts(self, row: TopK, token: int) -> bool:
        """Whether ``token`` certainly stands. An unseen one may have no probability: it does where none is needed."""
        threshold = self.threshold(row)
        if token == row.best or threshold <= 0.0:
            return True
        return bool((row.probs[row.ids == token] >= threshold).any())

    def rejection_level(self, row: Row) -> float | None:
        """Return the most that a rejected token's probability can be; None if no token is rejected."""
        threshold = self.threshold(row)
        if threshold <= 0.0:
            return None
        others = np.delete(row.probs, row.probs.argmax())
        below = others[others < threshold].tolist()
        if isinstance(row, TopK):
            below.append(min(threshold, most_unseen(row)))
        return max(below, default=None)


@dataclass(frozen=True)
class AdditiveAcceptance(_Threshold):
    """Accept tokens at most ``margin`` less likely than the best: p(x) >= p1 - margin. 0 <= margin < 1."""

    margin: float

    def __post_init__(self) -> None:
        """Raise ValueError for a margin that is none."""
        if not 0.0 <= self.margin < 1.0:
            msg = f"a margin in [0, 1), not {self.margin}"
            raise ValueError(msg)

    def threshold(self, row: Row) -> float:
        """Return p1 - margin; where that is not positive every token stands."""
        return float(top_probs(row, 1)[0]) - self.margin


@dataclass(frozen=True)
class MultiplicativeAcceptance(_Threshold):
    """Accept tokens with at least a ``share`` of the best one's probability: p(x) >= share * p1. 0 < share <= 1."""

    share: float

    def __post_init__(self) -> None:
        """Raise ValueError for a share that is none."""
        if not 0.0 < self.share <= 1.0:
            msg = f"a share in (0, 1], not {self.share}"
            raise ValueError(msg)

    def threshold(self, row: Row) -> float:
        """Return share * p1."""
        return float(top_probs(row, 1)[0]) * self.share


@dataclass(frozen=True)
class TopMAcceptance:
    """Accept the target's ``m`` most likely tokens. 1 <= m; m = 1 is ``GreedyAcceptance``."""

    m: int

    def __post_init__(self) -> None:
        """Raise ValueError for fewer than one token."""
        check_count(self.m)

    def accepts(self, row: TopK, token: int) -> bool:
        """Whether ``token`` certainly is among the m best.

        A listed token has its rank. An appended one is in where the tail is too light for enough unseen tokens to come
        before it.
        """
        places = np.flatnonzero(row.ids[: self.m] == token)
        surely = (places < row.num_listed) | (row.probs[places] > top_probs(row, self.m + 1)[self.m])
        return bool(surely.any())

    def rejection_level(self, row: Row) -> float | None:
        """Return the most that a rejected token's probability can be; None if no token is rejected."""
        return _prob_at_rank(row, self.m + 1)


@dataclass(frozen=True)
class TypicalAcceptance(_Threshold):
    """Accept the best token, and all with p(x) >= min(epsilon, delta * exp(-entropy of the row)).

    Medusa's typical acceptance (Cai et al. 2024, arXiv:2401.10774): the flatter the target, the less a token needs.
    0 < epsilon <= 1, 0 < delta. A top-k list leaves the entropy an interval; its lower end, which is tight, gives the
    highest threshold that may apply, and only what reaches it is accepted.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Raise ValueError for a threshold that is none."""
        if not 0.0 < self.epsilon <= 1.0:
            msg = f"an epsilon in (0, 1], not {self.epsilon}"
            raise ValueError(msg)
        if not 0.0 < self.delta < np.inf:
            msg = f"a positive delta, not {self.delta}"
            raise ValueError(msg)

    def threshold(self, row: Row) -> float:
        """Return the threshold at the entropy of a full row, or at the least that a top-k row can have."""
        entropy = row.entropy() if isinstance(row, Dense) else least_entropy(row)
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))


AcceptanceRule: TypeAlias = (
    GreedyAcceptance | AdditiveAcceptance | MultiplicativeAcceptance | TopMAcceptance | TypicalAcceptance
)


def top_probs(row: Row, num_tokens: int) -> Floats:
    """Return the largest probabilities of a row, descending; what is not shown as large as it can be.

    Shape (num_tokens,), or (V,) for a full row with fewer tokens. Where a list ends, n missing tokens are at most
    min(cap, tail / n) each: no more can be shared among them, and any function of the row that is convex, symmetric in
    them and falls in each of them is least there (derived here).

    >>> top_probs(TopK.from_lists({7: np.log(0.5), 3: np.log(0.25)}), 4).round(3).tolist()
    [0.5, 0.25, 0.125, 0.125]
    """
    if isinstance(row, Dense):
        return row.probs_of(largest(row.logits, num_tokens))
    shown = np.zeros(num_tokens)
    shown[: row.probs.size] = row.probs[:num_tokens]
    return np.maximum(shown, most_unseen(row, max(1, num_tokens - row.probs.size)))


def least_entropy(row: TopK) -> float:
    """Return the least entropy, in nats, that the full row can have: the tail on as few tokens as the cap allows."""
    known = -float(row.probs @ row.logprobs)
    if not row.cap > 0.0:  # exp(-800); whatever mass is left is rounding
        return known
    full, rest = divmod(row.tail, row.cap)
    return known - full * row.cap * float(np.log(row.cap)) - (rest * float(np.log(rest)) if rest > 0.0 else 0.0)


def most_unseen(row: TopK, num_tokens: int = 1) -> float:
    """Bound the least likely of some unseen tokens. A tail below rounding may be that much."""
    return min(row.cap, max(row.tail, ROUNDING) / num_tokens)


def _prob_at_rank(row: Row, rank: int) -> float | None:
    probs = top_probs(row, rank)
    return float(probs[rank - 1]) if probs.size >= rank else None


def check_count(m: int) -> None:
    """Raise ValueError for fewer than one token."""
    if m < 1:
        msg = f"at least one token, not {m}"
        raise ValueError(msg)
