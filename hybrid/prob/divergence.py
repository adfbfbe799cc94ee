"""Divergences between a target known through its top k and a draft known in full, as intervals.

The law. For every f-divergence the extreme completions of the target's unseen tail are the same two vectors, whatever
f is: the smallest value at ``p_j = min(cap, lam * q_j)`` (water-filling), the largest with the cap on the tail tokens
that the draft likes least. So every interval here is tight: some completion attains each end. Tested against naive
completions, a dense oracle and monotonicity in k in ``tests/prob/test_divergence.py``.

Direction: KL(target || draft), the expectation under the target, in nats. This file must not know what a model is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid.prob.distribution import Dense, Floats, Ints, TopK
from hybrid.prob.extremes import largest
from hybrid.types import Divergence

# Mass below this is rounding (see ``TopK.tail``): no proof that a token is possible which the draft excludes.
ROUNDING = 1e-6
# What is left after subtracting more than 99 % is not taken for a sum.
MOST_OF = 0.01


@dataclass(frozen=True)
class Interval:
    """A value known only to lie between two bounds."""

    lower: float
    upper: float


@dataclass(frozen=True)
class _Split:
    """Target and draft on the ids the target shows, and the draft on all others: the tail, of ``num_tail`` tokens."""

    target: TopK
    draft: Dense
    shown: Ints
    draft_log: Floats
    num_tail: int
    tail: float
    cap: float

    @cached_property
    def tail_mass(self) -> float:
        """What the draft gives the tail."""
        return self.draft.mass_outside(self.shown)

    def known_kl(self) -> float:
        """Sum of p ln(p/q) over the shown ids; infinite where the draft has none of a shown token."""
        probs = self.target.probs
        possible = probs > 0  # a log-probability of -800 is no probability at all, and 0 * inf no number
        return float(np.sum(probs[possible] * (self.target.logprobs[possible] - self.draft_log[possible])))

    def least_likely(self, count: int) -> Floats:
        """Log-probabilities of the ``count`` tail tokens (or all) that the draft likes least, smallest first."""
        scores = -self.draft.logits
        scores[self.shown] = -np.inf
        return self.draft.logprobs_of(largest(scores, min(count, self.num_tail)))

    def favourites(self) -> Iterator[tuple[float, float]]:
        """Yield the tail's probabilities, largest first, each with the sum of itself and all smaller ones.

        No more than the caps could fill, and one; only a caller who outlives the first pays for finding the others.
        """
        scores = self.draft.logits.copy()
        scores[self.shown] = -np.inf
        yield float(np.exp(float(scores.max()) - self.draft.log_total)), self.tail_mass
        head = largest(scores, _fill(self)[0] + 1)
        head = head[scores[head] > -np.inf]  # neither what is shown nor what the draft excludes
        ascending = self.draft.probs_of(head)[::-1]
        rest = self.tail_mass - float(ascending.sum())
        if rest < MOST_OF * self.tail_mass:  # the difference would have lost the digits that matter
            rest = self.draft.mass_outside(np.concatenate((self.shown, head)))
        sums = rest + np.cumsum(ascending)
        yield from zip(ascending[::-1].tolist()[1:], sums[::-1].tolist()[1:], strict=True)
        yield 0.0, 0.0


def _split(target: TopK, draft: Dense) -> _Split:
    shared = target.ids < draft.num_tokens
    shown = target.ids[shared]
    draft_log = np.full(target.ids.size, -np.inf)
    draft_log[shared] = draft.logprobs_of(shown)
    num_tail = draft.num_tokens - shown.size
    tail = target.tail if num_tail else 0.0
    # Rounding can leave more mass than the caps have room for; then the caps are what is wrong.
    cap = max(target.cap, tail / num_tail) if num_tail else target.cap
    return _Split(target, draft, shown, draft_log, num_tail, tail, cap)


def kl(target: Dense, draft: Dense) -> float:
    """KL(target || draft) of two full distributions, in nats; infinite where the draft excludes a possible token."""
    possible = target.probs > 0
    return float(np.sum(target.probs[possible] * (target.logprobs[possible] - draft.logprobs[possible])))


def kl_coarse(target: TopK, draft: Dense) -> float:
    """KL over the shown ids plus one bucket for the rest: never above the true KL (data processing).

    Equal to it exactly when target and draft agree on the shape of the tail. This is the estimate that is reported.
    """
    split = _split(target, draft)
    return split.known_kl() + _bucket(split.tail, split.tail_mass)


def kl_divergence(target: TopK, draft: Dense) -> Divergence:
    """Return the coarse estimate and the tight interval of KL(target || draft), in nats."""
    split = _split(target, draft)
    known = split.known_kl()
    estimate = known + _bucket(split.tail, split.tail_mass)
    if not split.tail > 0.0:
        return Divergence(estimate, estimate, estimate)
    lower = known + _tail_least(split)
    upper = known + _tail_most(split)
    # The three are equal in exact arithmetic where the cap binds nowhere; keep the order through rounding.
    return Divergence(estimate, max(lower, estimate), max(upper, lower, estimate))


def _bucket(target_mass: float, draft_mass: float) -> float:
    if target_mass <= 0.0:
        return 0.0
    if draft_mass > 0.0:
        return target_mass * float(np.log(target_mass / draft_mass))
    return float("inf") if target_mass > ROUNDING else 0.0


def _tail_least(split: _Split) -> float:
    """Least of sum p ln(p/q) over the tail: cap the draft's favourites, scale the others (0 to 3 caps in practice)."""
    total, mass = 0.0, split.tail
    for q, share in split.favourites():
        if mass * q <= split.cap * share:
            return total + _bucket(mass, share)
        total += split.cap * float(np.log(split.cap / q))
        mass -= split.cap
    return total  # every token is at its cap, and the mass left over is rounding


def _fill(split: _Split) -> tuple[int, float]:
    """How many tail tokens the cap fills whole, and what is left for one more."""
    full = min(int(split.tail / split.cap + 1e-12), split.num_tail)
    rest = split.tail - full * split.cap
    return full, (rest if rest > 1e-15 and full < split.num_tail else 0.0)


def _tail_most(split: _Split) -> float:
    """Most of sum p ln(p/q) over the tail: the cap on the tokens the draft likes least."""
    full, rest = _fill(split)
    least = split.least_likely(full + 1)
    value = full * split.cap * float(np.log(split.cap)) - split.cap * float(least[:full].sum())
    return value + (rest * (float(np.log(rest)) - float(least[full])) if rest else 0.0)


def acceptance(target: TopK, draft: Dense) -> Interval:
    """Bound the chance that speculative sampling keeps a draft, sum of min(p, q), tightly; width at most the tail."""
    split = _split(target, draft)
    known = float(np.minimum(target.probs, np.exp(split.draft_log)).sum())
    if not split.tail > 0.0:
        return _chances(known, known)
    full, rest = _fill(split)
    least = np.exp(split.least_likely(full + 1))
    low = float(np.minimum(split.cap, least[:full]).sum()) + (min(rest, float(least[full])) if rest else 0.0)
    tail_probs = draft.probs
    tail_probs[split.shown] = 0.0
    high = min(split.tail, float(np.minimum(split.cap, tail_probs).sum()))
    return _chances(known + low, known + max(low, high))


def _chances(lower: float, upper: float) -> Interval:
    return Interval(min(1.0, lower), min(1.0, upper))  # a sum of probabilities may round to just above one


def total_variation(target: TopK, draft: Dense) -> Interval:
    """Bound the total variation distance, half the sum of |p - q|, tightly."""
    kept = acceptance(target, draft)
    return Interval(max(0.0, 1.0 - kept.upper), max(0.0, 1.0 - kept.lower))


def kl_renormalised_on_shared_support(target: TopK, draft: Dense) -> float:
    """KL after both sides are renormalised on the shown ids. It bounds nothing.

    Widely used and given here under its own name for comparison only: it can lie above or below the true KL, and at
    k = 1 it is always 0.
    """
    split = _split(target, draft)
    draft_probs = np.exp(split.draft_log)
    if not draft_probs.sum() > 0.0:
        return float("inf")
    shift = float(np.log(target.probs.sum()) - np.log(draft_probs.sum()))
    return split.known_kl() / float(target.probs.sum()) - shift
