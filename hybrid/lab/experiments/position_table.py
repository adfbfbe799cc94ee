"""How far two models are apart, position by position, and intervals over texts for what is measured so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Dense, Floats
from hybrid.tasks.statistics import TAIL, Estimate, Resamples, ratio

# Intervals for what is measured at many positions of few texts: questions are drawn again, never positions.
#
# Positions of one text are alike, so a bootstrap over positions would promise too much. The law (``tests/bench/
# test_bootstrap.py``): a statistic under weights is that of the data with every question repeated so often as it was
# drawn.

NUM_RESAMPLES = 1000
Statistic: TypeAlias = Callable[[Floats], float | None]
"""From the weight of every position, shape (T,), to a number; None where it is undefined."""


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions of several texts: ``owners``, shape (T,), says whose each is, from 0 to ``num_texts`` - 1."""

    owners: NDArray[np.int64]
    num_texts: int
    seed: int = 0

    @cached_property
    def _resamples(self) -> Resamples:
        return Resamples(self.num_texts, self.seed, NUM_RESAMPLES)

    def estimate(self, statistic: Statistic) -> Estimate | None:
        """Return a statistic with its percentile-bootstrap interval over texts; None where it is undefined."""
        every = self._resamples.counts.T if self.owners.size else ()
        return self._interval([statistic(drawn[self.owners]) for drawn in every])

    def _interval(self, columns: Sequence[float | None] | Floats) -> Estimate | None:
        found = np.array(columns, dtype=np.float64)
        if not self.owners.size or np.isnan(found[0]):
            return None
        low, high = np.nanquantile(found[1:], (TAIL, 1.0 - TAIL), method="inverted_cdf")
        return Estimate(float(found[0]), float(low), float(high))

    def mean(self, values: NDArray[np.generic]) -> Estimate | None:
        """Return the mean over positions, shape (T,)."""
        ones = np.ones(self.owners.size)
        sums = np.array([np.bincount(self.owners, each, self.num_texts) for each in (values, ones)], dtype=np.float64)
        return self._interval(ratio(*self._resamples.sums(sums)))

    def quantile(self, values: Floats, share: float) -> Estimate | None:
        """Return the smallest value that so large a share of the positions does not exceed."""
        return self.estimate(weighted_quantile(values, share))

    def auroc(self, scores: Floats, positive: NDArray[np.bool_]) -> Estimate | None:
        """Return the chance that a positive's score is above a negative's; None where there is only one kind."""
        return self.estimate(weighted_auroc(scores, positive))


def weighted_quantile(values: Floats, share: float) -> Statistic:
    """Return a quantile as a statistic."""
    order = np.argsort(values, kind="stable")

    def statistic(weights: Floats) -> float | None:
        reached = np.cumsum(weights[order])
        if not reached[-1]:
            return None
        return float(values[order][np.searchsorted(reached, share * reached[-1] * (1.0 - 1e-12))])

    return statistic


def weighted_auroc(scores: Floats, positive: NDArray[np.bool_]) -> Statistic:
    """Return the AUROC as a statistic, ties counting half."""
    values, which = np.unique(scores, return_inverse=True)

    def statistic(weights: Floats) -> float | None:
        good = np.bincount(which, weights * positive, values.size)
        bad = np.bincount(which, weights * ~positive, values.size)
        pairs = good.sum() * bad.sum()
        below = np.cumsum(bad) - bad
        return float(good @ (below + bad / 2) / pairs) if pairs else None

    return statistic


def weighted_spearman(values: Floats, others: Floats) -> Statistic:
    """Return Spearman's rank correlation as a statistic, ties sharing their mean rank; undefined where one is alike."""
    found = [np.unique(each, return_inverse=True) for each in (values, others)]

    def statistic(weights: Floats) -> float | None:
        centred = []
        for kinds, which in found:
            counts = np.bincount(which, weights, kinds.size)
            ranks = (np.cumsum(counts) - counts / 2)[which]
            centred.append(ranks - ranks @ weights / max(1.0, weights.sum()))
        spread = np.sqrt(np.prod([each**2 @ weights for each in centred]))
        return float((centred[0] * centred[1]) @ weights / spread) if spread else None

    return statistic


THRESHOLDS = (0.5, 1.5, 3.0)


def compare_rows(reference: Dense, local: Dense) -> dict[str, Any]:
    """Measure one position by two models' rows: divergences and entropies in nats, the rest probabilities.

    ``agrees``: both have one favourite. ``kl``: KL(reference || local). ``overlap``: the chance that a sampled draft is
    accepted.
    """
    target, draft = reference.logprobs, local.logprobs
    target_probs = np.exp(target)
    return {
        "agrees": reference.best == local.best,
        "kl": float(target_probs @ (target - draft)),
        "entropy": local.entropy(),
        "overlap": float(np.minimum(target_probs, np.exp(draft)).sum()),
    }


def flattened(texts: Sequence[Sequence[dict[str, Any]]]) -> tuple[list[dict[str, Any]], Positions]:
    """Return the positions of all texts, and whose each is."""
    owners = np.array([number for number, text in enumerate(texts) for _ in text], dtype=np.int64)
    return [position for text in texts for position in text], Positions(owners, len(texts))


def run_lengths(holds: Sequence[bool]) -> list[int]:
    """Return for every position at how many from there on something holds: of T, T, F, T it is 2, 1, 0, 1."""
    runs, run = [], 0
    for each in reversed(holds):
        run = run + 1 if each else 0
        runs.append(run)
    return runs[::-1]
