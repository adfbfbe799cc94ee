"""Next-token distributions: known in full, or through their top k.

What belongs here: the two values every other file of this room computes on, and the checks that make them worth
computing on. Natural logarithms throughout. V is the vocabulary, K the length of a top-k list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# The few largest of many numbers, without sorting them.
#
# The law: what comes back is what a full stable sort would have put first (``tests/prob/test_extremes.py``). How: the
# n-th largest of the maxima of any n or more disjoint parts is never above the n-th largest of all, so one pass finds a
# bound, a second the few candidates above it. At a 152k vocabulary that is an eighth of the time of a partition.

# Parts: far more than are wanted, so that the bound is close; few enough to be sorted for nothing.
PARTS = 4096


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Return the indices of the ``count`` largest (or all), largest first, ties by index. Shape (V,) -> (count,)."""
    if count < 1:
        return np.empty(0, dtype=np.intp)
    candidates = np.flatnonzero(values >= _bound(values, count))
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]


def _bound(values: NDArray[np.floating], count: int) -> float:
    """Find a number that at least ``count`` of the values reach, and not many more."""
    if count >= values.size:
        return float(values.min())
    rows = values.size // PARTS
    if count > PARTS // 4 or rows < 2:
        return float(np.partition(values, -count)[-count])
    maxima = values[: rows * PARTS].reshape(rows, PARTS).max(axis=0)
    return float(np.partition(maxima, -count)[-count])


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Below this a server means "not in my list" (-9999 in vLLM, -3.4e38 in llama-server), never a probability.
CENSORED = -1000.0
# Numbers of a row that are worked on together: they stay in a core's cache.
CHUNK = 8192
# Above this, 1 - sum has nine digits or more.
SMALL_MASS = 1e-6
# A float32 log-softmax sums to one within 1e-5; what is above this is not rounding.
SUM_SLACK = 1e-3
# Where so little mass lies moves a divergence by some thousandths of a nat (p ln 1/p is 0.007); to compute one model in
# two ways moves it by hundredths.
UNLIKELY = 1e-3
# Engines keep token ids in 32 bits; a negative one would count from the end of an array.
MAX_ID = 2**31 - 1


class NotADistribution(ValueError):
    """The numbers given cannot be anybody's next-token distribution. The message says what they are."""


@dataclass(frozen=True, eq=False)
class Dense:
    """A distribution over the whole vocabulary: raw scores of shape (V,) and the logarithm of what they sum to.

    The scores stay as they came (float32 from an engine: 0.6 MB at a 152k vocabulary, and a span holds many rows);
    everything computed from them is float64. Log-probabilities are scores with a ``log_total`` of 0. ``noise``: the
    nats by which they may differ from the model's own; ``shift``: by how much sqrt(2 KL) to this row may, where that
    was measured (``readings.kl_shift``).
    """

    logits: NDArray[np.floating]
    log_total: float = 0.0
    noise: float = 0.0
    shift: float | None = None

    @classmethod
    def from_logits(cls, logits: NDArray[np.floating], noise: float = 0.0, shift: float | None = None) -> Dense:
        """Take raw scores of shape (V,) and find what they sum to, and the entropy on the way.

        Each ``exp`` is taken in the scores' own precision (float32: good to 1e-7, as they are) and summed in float64.
        """
        top, total, moment = logits.max(), 0.0, 0.0
        for start in range(0, logits.size, CHUNK):
            shifted = logits[start : start + CHUNK] - top
            np.maximum(shifted, CENSORED, out=shifted)  # exp(-1000) is 0, and 0 * inf no number
            weights = np.exp(shifted)
            total += float(weights.sum(dtype=np.float64))
            moment += float(weights @ shifted)
        dense = cls(logits, float(top) + float(np.log(total)), noise, shift)
        vars(dense)["_entropy"] = float(np.log(total)) - moment / total  # where cached_property would keep it
        return dense

    @classmethod
    def from_probs(cls, probs: Floats) -> Dense:
        """Take probabilities of shape (V,) that sum to one; zeros are allowed."""
        with np.errstate(divide="ignore"):
            return cls(np.log(np.asarray(probs, dtype=np.float64)))

    @property
    def logprobs(self) -> Floats:
        """Log-probabilities, shape (V,); computed at every call."""
        logprobs: Floats = np.subtract(self.logits, self.log_total, dtype=np.float64)
        return logprobs

    @property
    def probs(self) -> Floats:
        """Probabilities, shape (V,); computed at every call."""
        logprobs = self.logprobs
        return np.exp(logprobs, out=logprobs)

    def logprobs_of(self, ids: Ints) -> Floats:
        """Return the log-probabilities of some tokens. Shape (A,) -> (A,)."""
        return self.logits[ids].astype(np.float64) - self.log_total

    def probs_of(self, ids: Ints) -> Floats:
        """Return the probabilities of some tokens. Shape (A,) -> (A,)."""
        return np.exp(self.logprobs_of(ids))

    def mass_outside(self, ids: Ints) -> float:
        """Return the probability of all tokens but some: what those leave of one, or the sum where that is little.

        The difference is good to 1e-15, which a sure model's tail is too small for: beside 1 - 1e-17 it is nothing.
        """
        outside = 1.0 - float(self.probs_of(ids).sum())
        if outside > SMALL_MASS:
            return outside
        rest = self.logits.copy()
        rest[ids] = -np.inf
        top = rest.max()
        if top == -np.inf:
            return 0.0
        np.exp(np.subtract(rest, top, out=rest), out=rest)  # beside the largest of them, so that nothing is too small
        return float(rest.sum(dtype=np.float64)) * float(np.exp(float(top) - self.log_total))

    @property
    def num_tokens(self) -> int:
        """V."""
        return int(self.logits.shape[0])

    @cached_property
    def best(self) -> int:
        """The most likely token; the lowest id on a tie, as llama.cpp's greedy sampler."""
        return int(self.logits.argmax())

    @cached_property
    def _entropy(self) -> float:
        return Dense.from_logits(self.logits)._entropy

    def entropy(self) -> float:
        """Shannon entropy in nats.

        >>> round(Dense.from_probs(np.array([0.5, 0.5, 0.0])).entropy(), 6)
        0.693147
        """
        return self._entropy

    def top(self, num_tokens: int) -> list[tuple[int, float]]:
        """Return the ``num_tokens`` likeliest tokens (or all) with log-probabilities, best first, ties by id."""
        ids = largest(self.logits, num_tokens)
        return list(zip(ids.tolist(), self.logprobs_of(ids).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class TopK:
    """What an endpoint shows of a distribution: some ids with their log-probabilities, and a bound on the others.

    ``ids`` and ``logprobs`` have shape (A,): the top-k list, best first, and after it those that were asked for by
    name: the actual token, the drafter's candidates. ``num_listed`` is the length of the list alone: whoever draws from
    a row must not let what is shown depend on what was drafted. ``tail_max``: no other token is likelier. It is the
    smallest probability *of the top-k list*; a token asked for by name tells its own probability and nothing about
    the rest, so it does not lower it. ``noise``: the nats by which log-probabilities, of unseen tokens too, may
    differ from the model's own.
    """

    ids: Ints
    logprobs: Floats
    tail_max: float
    num_listed: int
    noise: float = 0.0

    @classmethod
    def from_lists(
        cls,
        top: Mapping[int, float],
        actual: tuple[int, float] | None = None,
        named: Mapping[int, float] | None = None,
        hidden: float = 0.0,
    ) -> TopK:
        """Build from a top-k list (id to log-probability), the actual token's own, and others asked for by name.

        ``hidden``: the probability that tokens missing from the list may hold though it should show them (their texts
        are no one token's): ``tail_max`` is at least that. Raises NotADistribution for what can be none: an empty list,
        NaN, a positive log-probability, a sum above one by more than rounding. Sentinels for "not listed" (at or below
        -1000) are dropped, never believed.
        """
        kept = sorted(((lp, i) for i, lp in top.items() if not lp <= CENSORED), key=lambda pair: (-pair[0], pair[1]))
        if not kept:
            msg = "a position without a top-k list"
            raise NotADistribution(msg)
        ids, logprobs = [i for _, i in kept], [lp for lp, _ in kept]
        for token, logprob in (dict([actual] if actual else []) | dict(named or {})).items():
            if token not in top and not logprob <= CENSORED:
                ids.append(token)
                logprobs.append(logprob)
        _check(ids, logprobs)
        tail_max = max(hidden, float(np.exp(logprobs[len(kept) - 1])))
        return cls(np.array(ids, dtype=np.int64), np.array(logprobs, dtype=np.float64), tail_max, len(kept))

    @classmethod
    def from_dense(cls, dense: Dense, k: int, actual: int | None = None) -> TopK:
        """Show the top ``k`` of a full distribution, as an endpoint would."""
        shown = cls.from_lists(
            {i: lp for i, lp in dense.top(k) if lp > CENSORED},
            None if actual is None else (actual, float(dense.logprobs_of(np.array([actual]))[0])),
        )
        return replace(shown, noise=dense.noise)

    @cached_property
    def probs(self) -> Floats:
        """Probabilities of the known ids, shape (A,)."""
        return np.exp(self.logprobs)

    @cached_property
    def tail(self) -> float:
        """Probability mass outside the known ids, never below 0.

        Good to about 1e-7 when the log-probabilities came as float32: below 1e-6 it is rounding, not information.
        """
        return max(0.0, 1.0 - float(self.probs.sum()))

    @property
    def best(self) -> int:
        """The most likely token."""
        return int(self.ids[0])

    @property
    def listed(self) -> TopK:
        """The top-k list alone, without what was asked for by name."""
        return replace(self, ids=self.ids[: self.num_listed], logprobs=self.logprobs[: self.num_listed])

    def within(self, num_tokens: int) -> TopK:
        """Return the row over the ids below ``num_tokens``: what it shows of others counts as mass that is not shown.

        So the draft's vocabulary is the one that both have, and a completion puts that mass on tokens of it, none
        above ``tail_max``. Rows of padded vocabularies need it: where a model is sure, padding is among the likeliest.
        A row that begins with such a token, or gives them more than ``UNLIKELY``, is returned as it is.
        """
        known = self.ids < num_tokens
        if known.all() or not known[0] or float(self.probs[~known].sum()) > UNLIKELY:
            return self
        num_listed = int(known[: self.num_listed].sum())
        return replace(self, ids=self.ids[known], logprobs=self.logprobs[known], num_listed=num_listed)


def _check(ids: list[int], logprobs: list[float]) -> None:
    if min(ids) < 0 or max(ids) > MAX_ID:
        msg = f"a token id that cannot be one: {min(ids) if min(ids) < 0 else max(ids)}"
        raise NotADistribution(msg)
    if not np.isfinite(logprobs).all():
        msg = "a log-probability that is not a number"
        raise NotADistribution(msg)
    if max(logprobs) > SUM_SLACK:
        msg = f"a log-probability of {max(logprobs):.4f}, which is a probability above one"
        raise NotADistribution(msg)
    total = float(np.exp(logprobs).sum())
    if total > 1 + SUM_SLACK:
        msg = f"probabilities that sum to {total:.4f}, above one"
        raise NotADistribution(msg)
