"""Paired resamples of problems, and the cheapest way to a wanted share: everything of a table is drawn again together.

A statistic is computed for the data and for every resample at once: the first of 1 + R columns is the data itself, so
no value and its interval can be of two formulas. The laws (``tests/tasks/test_resamples.py``): an estimate is that of
the problems repeated as often as they were drawn; the cheapest mixture is never above any of the ways it mixes, and
with perfect foresight nothing is cheaper than the oracle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hybrid.tasks.statistics import TAIL, Estimate, order_statistic

NUM_RESAMPLES = 2000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Resamples:
    """Problems drawn again with replacement, all that is known of one of them together. R = ``num``."""

    num_problems: int
    seed: int = 0
    num: int = NUM_RESAMPLES

    @cached_property
    def counts(self) -> Floats:
        """How often each problem was drawn, shape (N, 1 + R); the first column holds each once."""
        even = np.full(self.num_problems, 1.0 / self.num_problems)
        drawn = np.random.default_rng(self.seed).multinomial(self.num_problems, even, size=self.num)
        return np.concatenate([np.ones((1, self.num_problems)), drawn]).T

    def sums(self, values: Floats) -> Floats:
        """Return the sums over the problems: shape (..., N) -> (..., 1 + R)."""
        return np.asarray(values, dtype=np.float64) @ self.counts

    def shares(self, small: Floats, hybrid: Floats, large: Floats) -> Floats:
        """Return the recovered share of the gap, shape (..., 1 + R); not a number in a resample without a gap."""
        low, high = self.sums(small), self.sums(large)
        gap = np.where(high > low, high - low, np.nan)
        shares: Floats = (self.sums(hybrid) - low) / gap
        return shares


def estimate(columns: Floats) -> Estimate | None:
    """Return a value and its percentile interval, shape (1 + R,); None where the data themselves have no value.

    A resample without a value may be as low or as high as one likes: it can only widen the interval.
    """
    value, resampled = float(columns[0]), columns[1:]
    if not np.isfinite(value):
        return None
    unknown = np.isnan(resampled)
    return Estimate(
        value,
        low=order_statistic(np.where(unknown, -np.inf, resampled), TAIL),
        high=-order_statistic(-np.where(unknown, np.inf, resampled), TAIL),
    )


def ratio(over: Floats, under: Floats) -> Floats:
    """Return a ratio of columns; no number where it has none: of nothing, or of what was never reached."""
    known = np.isfinite(over) & np.isfinite(under) & (under != 0.0)
    found: Floats = np.divide(over, under, where=known, out=np.full(np.shape(over), np.nan))
    return found


def cheapest_bill(shares: Floats, bills: Floats, wanted: float | Floats) -> Floats:
    """Return the least bill at which a share is recovered, two ways mixed by a coin, shape (K, C), (K, C) -> (C,).

    The K ways are the dials of a rule, each problem's way drawn for itself. Nothing is mixed in that is not among them;
    infinite where none of them recovers so much. ``wanted`` may be one for each column.

    >>> shares, bills = np.array([[0.0], [0.5], [1.0]]), np.array([[0.0], [0.9], [1.0]])
    >>> cheapest_bill(shares, bills, 0.5)
    array([0.5])
    """
    enough = shares >= wanted
    best: Floats = np.where(enough, bills, np.inf).min(axis=0)
    for low in range(len(shares)):
        below = ~enough[low]
        with np.errstate(invalid="ignore", divide="ignore"):
            part = (wanted - shares[low]) / (shares - shares[low])
            mixed = np.where(enough & below, bills[low] + part * (bills - bills[low]), np.inf)
        best = np.fmin(best, mixed.min(axis=0))
    return np.where(np.isnan(shares).any(axis=0), np.nan, best)


def oracle_bill(resamples: Resamples, gains: Floats, bills: Floats, wanted: float, gap: Floats) -> Floats:
    """Return what whole answers cost where it is known which of them help, the cheapest first, shape (1 + R,).

    ``gains``, shape (N,): 1 where the cloud's answer is right and the local one is not; ``gap``, shape (1 + R,): right
    answers between the models. The last answer is bought in part.
    """
    helped = np.flatnonzero(np.asarray(gains) > 0)
    order = helped[np.argsort(bills[helped], kind="stable")]
    drawn = resamples.counts[order]
    reached, paid = np.cumsum(drawn, axis=0), np.cumsum(drawn * bills[order][:, None], axis=0)
    found = np.empty(len(gap))
    for column, aim in enumerate(np.maximum(wanted * gap, 0.0)):
        found[column] = _at(reached[:, column], paid[:, column], aim)
    return found


def _at(reached: Floats, paid: Floats, aim: float) -> float:
    """Read the bill where so many are reached, between two answers; infinite where never."""
    if not reached.size or reached[-1] < aim:
        return float(np.inf)
    return float(np.interp(aim, np.concatenate([[0.0], reached]), np.concatenate([[0.0], paid])))


def expected_calibration_error(chances: Floats, happened: Floats, num_bins: int = 10) -> float:
    """Return the mean gap between a told chance and how often it happened, over bins of equal width, by their size.

    >>> expected_calibration_error(np.array([0.2, 0.2, 0.9]), np.array([0.0, 1.0, 1.0]))
    0.2333333333333333
    """
    bins = np.minimum((np.asarray(chances) * num_bins).astype(np.int64), num_bins - 1)
    told = np.bincount(bins, chances, num_bins)
    came = np.bincount(bins, happened, num_bins)
    return float(np.abs(told - came).sum() / max(1, len(chances)))
