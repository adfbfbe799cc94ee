"""Intervals for what is measured at many positions of few texts: questions are drawn again, never positions.

Positions of one text are alike, so a bootstrap over positions would promise too much. The law (``tests/bench/
test_bootstrap.py``): a statistic under weights is that of the data with every question repeated so often as it was
drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Floats
from hybrid.tasks.statistics import TAIL, Estimate

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
    def _drawn(self) -> NDArray[np.int64]:
        even = np.full(self.num_texts, 1.0 / self.num_texts)
        return np.random.default_rng(self.seed).multinomial(self.num_texts, even, size=NUM_RESAMPLES)

    def estimate(self, statistic: Statistic) -> Estimate | None:
        """Return a statistic with its percentile-bootstrap interval over texts; None where it is undefined."""
        value = statistic(np.ones(self.owners.size)) if self.owners.size else None
        if value is None:
            return None
        found = [statistic(drawn[self.owners].astype(np.float64)) for drawn in self._drawn]
        known = [each for each in found if each is not None]
        low, high = np.quantile(known, (TAIL, 1.0 - TAIL))
        return Estimate(value, float(low), float(high))

    def mean(self, values: NDArray[np.generic]) -> Estimate | None:
        """Return the mean over positions, shape (T,)."""
        return self.estimate(weighted_mean(np.asarray(values, dtype=np.float64)))

    def quantile(self, values: Floats, share: float) -> Estimate | None:
        """Return the smallest value that so large a share of the positions does not exceed."""
        return self.estimate(weighted_quantile(values, share))

    def auroc(self, scores: Floats, positive: NDArray[np.bool_]) -> Estimate | None:
        """Return the chance that a positive's score is above a negative's; None where there is only one kind."""
        return self.estimate(weighted_auroc(scores, positive))


def weighted_mean(values: Floats) -> Statistic:
    """Return the mean as a statistic; undefined where nothing was drawn."""
    return lambda weights: float(values @ weights / weights.sum()) if weights.any() else None


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
