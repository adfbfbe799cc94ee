"""Divergences between a target known through its top k and a draft known in full, as intervals.

The law. An f-divergence is a sum of ``q f(p/q)`` with a convex f. The extreme completions of the target's unseen tail
are the same two vectors whatever f is: the smallest value at ``p_j = min(tail_max, level * q_j)`` (water-filling), the
largest with ``tail_max`` on the tail tokens that the draft likes least. So a divergence is a ``DivergenceTerm``,
summed over two vectors that are never built, and every interval here is tight: some completion attains each end. (The
first vector by the KKT conditions; the second because a convex function is largest at a corner, and what f gains by a
probability is the less, the more the draft likes its token.) Tested against naive completions, a dense oracle and
monotonicity in k in ``tests/prob/test_divergence.py`` and ``test_reverse.py``.

Direction: KL(target || draft), the expectation under the target, unless a name says reverse; in nats. This file must
not know what a model is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hybrid.prob.cells import TextRow
from hybrid.prob.distribution import Dense, Floats, Ints, TopK, largest
from hybrid.prob.readings import FAR, shift_as_noise
from hybrid.prob.terms import ROUNDING, DivergenceTerm, Interval, forward
from hybrid.types import Divergence

# A target that is known in full, where a top-k row may stand: its list is the whole vocabulary, and there is no tail.
#
# A larger local model's rows are such. What needs the list finds it sorted; who knows better asks ``dense``.


class FullRow(TopK):
    """A full distribution as a top-k row of all V tokens, those of probability 0 left out; sorted when first needed.

    >>> row = FullRow(Dense.from_probs(np.array([0.2, 0.5, 0.3])))
    >>> row.ids.tolist(), row.best, row.tail
    ([1, 2, 0], 1, 0.0)
    """

    def __init__(self, dense: Dense) -> None:
        """Take the distribution."""
        object.__setattr__(self, "dense", dense)
        object.__setattr__(self, "noise", dense.noise)

    dense: Dense
    tail = 0.0  # nothing is hidden
    tail_max = 0.0

    @cached_property
    def ids(self) -> Ints:
        """The tokens, best first, ties by id."""
        order = np.lexsort((np.arange(self.dense.num_tokens), -self.dense.logits))
        possible: Ints = order[self.dense.logits[order] > -np.inf]
        return possible

    @cached_property
    def logprobs(self) -> Floats:
        """Their log-probabilities, which sum to one to the last digit."""
        return self.dense.logprobs_of(self.ids)

    @property
    def num_listed(self) -> int:
        """All of them."""
        return int(self.ids.size)

    @property
    def best(self) -> int:
        """The most likely token."""
        return self.dense.best

    @property
    def listed(self) -> TopK:
        """Itself: nothing was asked for by name."""
        return self

    def within(self, num_tokens: int) -> TopK:  # noqa: ARG002  (its vocabulary is the draft's own)
        """Return itself."""
        return self


# What is left after subtracting more than 99 % is not taken for a sum.
MOST_OF = 0.01
# A bound passed by this share is one reached. Else rounding would leave nothing for the tokens after it, and reverse KL
# would be infinite.
BOUND_SLACK = 1e-12
LN2 = float(np.log(2.0))


def _reverse(log_target: Floats, log_draft: Floats) -> Floats:
    return forward(log_draft, log_target)


def _jensen_shannon(log_target: Floats, log_draft: Floats) -> Floats:
    middle = np.logaddexp(log_target, log_draft) - LN2
    return 0.5 * (forward(log_target, middle) + forward(log_draft, middle))


def _overlap(log_target: Floats, log_draft: Floats) -> Floats:
    """Return min(p, q). One minus its sum is an f-divergence: its extremes are the same two, the other way round."""
    overlap: Floats = np.exp(np.minimum(log_target, log_draft))
    return overlap


@dataclass(frozen=True)
class SupportSplit:
    """Target and draft on the ids the target shows, and the draft on all others: the tail, of ``num_tail`` tokens."""

    target: TopK
    draft: Dense
    shown: Ints
    draft_log: Floats
    num_tail: int
    tail: float
    tail_max: float

    @property
    def noise(self) -> float:
        """What the log-probabilities of both may be off by."""
        return self.target.noise + self.draft.noise

    def noise_at(self, value: float, offset: float, share: float = 1.0) -> float:
        """Return the same for a divergence of ``value`` that ``share`` of the draft's shift moves, if that is less."""
        if self.draft.shift is None or value > FAR:
            return self.noise
        return self.target.noise + min(self.draft.noise, shift_as_noise(value, share * self.draft.shift, offset))

    @cached_property
    def tail_mass(self) -> float:
        """What the draft gives the tail."""
        return self.draft.mass_outside(self.shown)

    def known(self, term: DivergenceTerm) -> float:
        """Sum over the shown ids; infinite where one has what the other excludes and the term minds."""
        return float(np.sum(term(self.target.logprobs, self.draft_log)))

    def nearest(self, term: DivergenceTerm) -> float:
        """Sum over the tail nearest to the draft: its favourites at most (0 to 3 in practice), the others scaled."""
        favourites, mass = [], self.tail
        for q, share in self.favourites():
            if mass * q <= self.tail_max * share * (1.0 + BOUND_SLACK):
                break
            favourites.append(q)
            mass -= self.tail_max
        log_favourites = np.log(np.array(favourites))
        favoured = term(np.full_like(log_favourites, log_mass(self.tail_max)), log_favourites)
        return float(np.sum(favoured)) + pooled_term(term, mass, share)

    def farthest(self, term: DivergenceTerm) -> float:
        """Sum over the tail farthest from the draft: ``tail_max`` on what it likes least, nothing on the others."""
        full, rest = self.fill()
        ids = self.least_likely(full + 1)
        log_target = np.full(ids.size, log_mass(self.tail_max))
        log_target[full:] = log_mass(rest)
        value = float(np.sum(term(log_target, self.draft.logprobs_of(ids))))
        if not float(term(np.array(-np.inf), np.array(0.0))):  # what the target has nothing of adds nothing
            return value
        return value + pooled_term(term, 0.0, self.draft.mass_outside(np.concatenate((self.shown, ids))))

    def fill(self) -> tuple[int, float]:
        """How many tail tokens can have the most, and what is left for one more."""
        if not self.tail > 0.0:
            return 0, 0.0
        full = min(int(self.tail / self.tail_max + 1e-12), self.num_tail)
        rest = self.tail - full * self.tail_max
        return full, (rest if rest > 1e-15 and full < self.num_tail else 0.0)

    def least_likely(self, count: int) -> Ints:
        """Return the ``count`` tail tokens (or all) that the draft likes least, the least liked first."""
        scores = -self.draft.logits
        scores[self.shown] = -np.inf
        return largest(scores, min(count, self.num_tail))

    def favourites(self) -> Iterator[tuple[float, float]]:
        """Yield the tail's probabilities, largest first, each with the sum of itself and all smaller ones.

        No more than the caps could fill, and one; at last 0.0 with the sum of those that are left. Only a caller who
        outlives the first pays for finding the others.
        """
        scores = self.draft.logits.copy()
        scores[self.shown] = -np.inf
        yield float(np.exp(float(scores.max()) - self.draft.log_total)), self.tail_mass
        head = largest(scores, self.fill()[0] + 1)
        head = head[scores[head] > -np.inf]  # neither what is shown nor what the draft excludes
        ascending = self.draft.probs_of(head)[::-1]
        rest = self.tail_mass - float(ascending.sum())
        if rest < MOST_OF * self.tail_mass:  # the difference would have lost the digits that matter
            rest = self.draft.mass_outside(np.concatenate((self.shown, head)))
        sums = rest + np.cumsum(ascending)
        yield from zip(ascending[::-1].tolist()[1:], sums[::-1].tolist()[1:], strict=True)
        yield 0.0, rest


def split_support(target: TopK, draft: Dense, least_tail: float = 0.0) -> SupportSplit:
    """Lay the two beside each other, with ``least_tail`` outside the shown ids if ``tail_max`` leaves it room."""
    shared = target.ids < draft.num_tokens
    shown = target.ids[shared]
    draft_log = np.full(target.ids.size, -np.inf)
    draft_log[shared] = draft.logprobs_of(shown)
    num_tail = draft.num_tokens - shown.size
    tail = max(target.tail, min(least_tail, num_tail * target.tail_max)) if num_tail else 0.0
    # Rounding can leave more mass than the caps have room for; then the caps are what is wrong.
    tail_max = max(target.tail_max, tail / num_tail) if num_tail else target.tail_max
    return SupportSplit(target, draft, shown, draft_log, num_tail, tail, tail_max)


def log_mass(number: float) -> float:
    """Return the natural logarithm, of nothing (and what rounding made less of it) minus infinity."""
    return float(np.log(number)) if number > 0.0 else -np.inf


def pooled_term(term: DivergenceTerm, target_mass: float, draft_mass: float) -> float:
    """Return what tokens of one odds add, by their sums. Rounding is held against no draft that excludes them."""
    if target_mass <= ROUNDING and draft_mass <= 0.0:
        return 0.0
    return float(term(np.array(log_mass(target_mass)), np.array(log_mass(draft_mass))))


def kl(target: Dense, draft: Dense) -> float:
    """KL(target || draft) of two full distributions, in nats; infinite where the draft excludes a possible token."""
    return float(np.sum(forward(target.logprobs, draft.logprobs)))


def kl_divergence(target: TopK, draft: Dense) -> Divergence:
    """Return the coarse estimate and the tight interval of KL(target || draft); over cells of text."""
    if isinstance(target, TextRow):
        return target.kl(draft)
    if isinstance(target, FullRow):
        known = kl(target.dense, draft)
        return Divergence(known, known, known, target.noise + draft.noise)
    split = split_support(target, draft)
    known = split.known(forward)
    estimate = known + pooled_term(forward, split.tail, split.tail_mass)
    if not split.tail > 0.0:
        return Divergence(estimate, estimate, estimate, split.noise_at(estimate, 2.0))
    # The three are equal in exact arithmetic where ``tail_max`` binds nowhere; keep the order through rounding.
    lower = max(known + split.nearest(forward), estimate)
    return Divergence(estimate, lower, max(known + split.farthest(forward), lower), split.noise_at(lower, 2.0))


def kl_reverse(target: TopK, draft: Dense) -> Interval:
    """Bound KL(draft || target), the expectation under the draft, tightly; in nats.

    The upper end is infinite wherever some completion excludes a token that the draft does not, which is nearly always.
    A tail below ``ROUNDING`` may be anything up to that: its logarithm matters here, and rounding has none.
    """
    split = split_support(target, draft, least_tail=ROUNDING)
    known = split.known(_reverse)
    lower = max(0.0, known + split.nearest(_reverse))
    if target.tail <= ROUNDING and split.tail_mass > 0.0:
        return Interval(lower, np.inf, split.noise)
    return Interval(lower, max(lower, known + split.farthest(_reverse)), split.noise)


def jensen_shannon(target: TopK, draft: Dense) -> Interval:
    """Bound the Jensen-Shannon divergence tightly, in nats: the mean KL of both to their midpoint, 0 to ln 2."""
    split = split_support(target, draft)
    known = split.known(_jensen_shannon)
    lower = min(LN2, max(0.0, known + split.nearest(_jensen_shannon)))
    upper = min(LN2, max(lower, known + split.farthest(_jensen_shannon)))
    return Interval(lower, upper, split.noise_at(lower, 1.0, np.sqrt(0.5)))


def acceptance(target: TopK, draft: Dense) -> Interval:
    """Bound the chance that speculative sampling keeps a draft, sum of min(p, q), tightly; width at most the tail.

    Of a row of another vocabulary only from above: the overlap of its cells.
    """
    if isinstance(target, TextRow):
        return Interval(0.0, target.overlap(draft), target.noise + draft.noise)
    split = split_support(target, draft)
    known = split.known(_overlap)
    lower = known + split.farthest(_overlap)
    upper = max(lower, known + split.nearest(_overlap))
    noise = split.noise if draft.shift is None else target.noise + min(draft.noise, draft.shift)
    # A sum of probabilities may round to just above one.
    return Interval(min(1.0, lower), min(1.0, upper), noise)


def total_variation(target: TopK, draft: Dense) -> Interval:
    """Bound the total variation distance, half the sum of |p - q|, tightly."""
    kept = acceptance(target, draft)
    return Interval(max(0.0, 1.0 - kept.upper), max(0.0, 1.0 - kept.lower), kept.noise)


# What noise in the numbers does to a divergence: no model computes one distribution twice to the same digits.
#
# Noise is in nats of log-probability: between the number told and the model's own lie at most so many, at every token;
# or in less, as many as would have the effect on this divergence that was measured (``readings.py`` measures both).
# What was measured on one text is typical, and no bound: what follows from it below holds as far as it does.
#
# The law. Let two distributions be told with a noise of a and of b nats, n = a + b. Then going from the told to the
# models' own changes ``2 + sqrt(2 KL)`` (either direction) and ``1 + sqrt(2 JS)`` by no factor above e^(n/2), and a
# total variation by no more than n/2. Nothing lies outside (a convex solver for the least, all corners for the most),
# and where the two are near some models attain it to first order: ``tests/prob/test_noise.py``. Derived here; the proof
# is in this room's NOTES.md. Where the noise comes from must not be known here.

# What one side counts as until it is measured: a guess (the bundled models' own is 0.017 to 0.032).
UNMEASURED = 0.01
# Numbers that are off by more say nothing, and e to the power of many times that is no number.
MOST = 100.0


def kl_with_noise(value: float, noise: float) -> float:
    """Return the most that a KL can be which was told as ``value``; where ``noise`` is negative, the least.

    >>> [round(kl_with_noise(0.5, noise), 3) for noise in (-0.02, 0.0, 0.02)]
    [0.471, 0.5, 0.531]
    """
    return _scaled(value, noise, 2.0)


def jensen_shannon_with_noise(value: float, noise: float) -> float:
    """Return the same of a Jensen-Shannon divergence, at most ln 2."""
    return min(LN2, _scaled(value, noise, 1.0))


def total_variation_with_noise(value: float, noise: float) -> float:
    """Return the same of a total variation, 0 to 1."""
    return min(1.0, max(0.0, value + noise / 2.0))


def _scaled(value: float, noise: float, offset: float) -> float:
    """Scale ``offset + sqrt(2 value)`` by e^(noise/2)."""
    if not noise or np.isinf(value):
        return value  # to the digit
    if noise > MOST:
        return np.inf
    root = np.sqrt(2.0 * max(0.0, value)) * np.exp(noise / 2.0) + offset * np.expm1(noise / 2.0)
    return max(0.0, float(root)) ** 2 / 2.0
