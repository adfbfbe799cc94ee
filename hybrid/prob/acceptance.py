"""Acceptance: speculative sampling, which is exact; rules that the target alone decides; excess loss.

The law. Draw x from ``draft``. Keep it with probability ``accept_prob(target, draft)[x]``; otherwise draw from
``residual(target, draft)``. The outcome is distributed as ``target``, whatever ``draft`` was (Leviathan et al. 2023,
arXiv:2211.17192, appendix A.1). ``tests/prob/test_acceptance.py`` checks that sentence, not an example of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from hybrid.prob.cells import TextRow
from hybrid.prob.distribution import Dense, Floats, TopK, largest
from hybrid.prob.divergence import BOUND_SLACK, log_mass
from hybrid.prob.terms import ROUNDING, Interval


def accept_prob(target: Floats, draft: Floats) -> Floats:
    """Chance of keeping each token, had the draft proposed it.

    Shapes (V,), (V,) -> (V,). Tokens the draft cannot propose get 1.0: the value is never used, and 1.0 keeps 0/0
    out of the arithmetic.
    """
    kept = np.ones_like(target)
    np.divide(np.minimum(target, draft), draft, out=kept, where=draft > 0)
    return kept


def residual(target: Floats, draft: Floats) -> Floats:
    """Where a replaced token is drawn from: max(0, target - draft), normalised. Shapes (V,), (V,) -> (V,).

    Equal distributions leave nothing over; a replacement is then never needed, and ``target`` itself is returned.
    """
    left = np.maximum(target - draft, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else target.copy()


# Acceptance rules that are decided, not drawn: a token stands if the target likes it well enough.
#
# What belongs here: each rule as a value, with two questions it answers about one row of the target. ``accepts`` is
# True only where every completion of the unseen tail agrees; ``rejection_level`` is all that ``certificates.py`` needs.
#
# The law. What a rule accepts from the top k it accepts from the full row, and no token it may reject is likelier than
# its rejection level (``tests/prob/test_relaxed.py``). Natural logarithms; ties between tokens go by the row's order.
# The rules of this section know no draft: what they reject depends on the target alone.

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
    min(tail_max, tail / n) each: no more can be shared among them, and any function of the row that is convex,
    symmetric in them and falls in each of them is least there (derived here).

    >>> top_probs(TopK.from_lists({7: np.log(0.5), 3: np.log(0.25)}), 4).round(3).tolist()
    [0.5, 0.25, 0.125, 0.125]
    """
    if isinstance(row, Dense):
        return row.probs_of(largest(row.logits, num_tokens))
    shown = np.zeros(num_tokens)
    shown[: row.probs.size] = row.probs[:num_tokens]
    return np.maximum(shown, most_unseen(row, max(1, num_tokens - row.probs.size)))


def least_entropy(row: TopK) -> float:
    """Return the least entropy, in nats, that the full row can have: the tail on as few tokens as can be."""
    known = -float(row.probs @ row.logprobs)
    if not row.tail_max > 0.0:  # exp(-800); whatever mass is left is rounding
        return known
    full, rest = divmod(row.tail, most := row.tail_max)
    return known - full * most * float(np.log(most)) - (rest * float(np.log(rest)) if rest > 0.0 else 0.0)


def most_unseen(row: TopK, num_tokens: int = 1) -> float:
    """Bound the least likely of some unseen tokens. A tail below rounding may be that much."""
    return min(row.tail_max, max(row.tail, ROUNDING) / num_tokens)


def _prob_at_rank(row: Row, rank: int) -> float | None:
    probs = top_probs(row, rank)
    return float(probs[rank - 1]) if probs.size >= rank else None


def check_count(m: int) -> None:
    """Raise ValueError for fewer than one token."""
    if m < 1:
        msg = f"at least one token, not {m}"
        raise ValueError(msg)


# Excess loss: what a token costs more than the target's own best, from the little that a top-k row must show for it.
#
# log P(best) - log P(token), in nats under the target's row at temperature 1: never negative, and 0 exactly where the
# token is a most likely one. Summed over a text it is the text's loss under the target less that of the best token at
# each of its positions: 0 for the target's own greedy text, and blind to what the target itself is unsure of.
#
# The law. Two log-probabilities are enough, so where the row shows the token the value is known: there is no tail in
# it. Every completion of the tail lies within the interval, and completions attain its ends where tokens enough are
# unseen (``tests/prob/test_excess.py``). Source: this project. This section knows no draft.


def excess_loss(row: TopK, token: int) -> Interval:
    """Return log P(best) - log P(token), in nats, as far as a row tells it.

    Known (``lower == upper``) where ``token`` is listed or was asked for by name. Else it has at most ``tail_max``, at
    most what the shown tokens leave: that gives the lower end, and nothing bounds it from above. Where the list may
    miss a token likelier than its best (``hidden`` of ``TopK.from_lists``) a shown token's value has a width, too.
    ``noise`` is twice the row's: both log-probabilities may be off.

    >>> row = TopK.from_lists({7: np.log(0.5), 3: np.log(0.25)})
    >>> [round(excess_loss(row, token).lower, 3) for token in (7, 3, 4)]
    [0.0, 0.693, 0.693]
    >>> excess_loss(row, 4).upper
    inf
    """
    if isinstance(row, TextRow):
        return row.excess(token)
    best, unseen = float(row.logprobs.max()), log_mass(most_unseen(row))
    shown = row.logprobs[row.ids == token]
    if not shown.size:
        return Interval(_lead(best, unseen), np.inf, 2.0 * row.noise)
    known = best - float(shown[0])
    return Interval(known, known + _lead(unseen, best), 2.0 * row.noise)


def excess_with_noise(value: float, noise: float) -> float:
    """Return the most that an excess loss can be which was told as ``value``; where ``noise`` is negative, the least.

    >>> [excess_with_noise(0.5, noise) for noise in (-0.25, 0.25, -1.0)]
    [0.25, 0.75, 0.0]
    """
    return max(0.0, value + noise)


def _lead(first: float, second: float) -> float:
    """Return how far one log-probability lies above another, at least 0; the last digits are rounding."""
    return first - second if first - second > BOUND_SLACK else 0.0
