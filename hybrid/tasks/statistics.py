"""Statistics of graded problems and scored tokens: RPI, Wilson's interval, AUROC.

RPI, the recovered share of the performance gap, is (hybrid - small) / (large - small) over the same problems: 0 is the
small model's score, 1 the large one's. It is not clipped: a hybrid may beat its large model.

The laws, tested in ``tests/tasks/test_statistics.py``: RPI is undefined where the gap between the models is not above
two standard errors of itself, for a ratio over noise is noise; the bootstrap is that of an enumeration of every
resample; a resample without a gap can only widen the interval; Wilson's interval holds exactly the shares that a score
test does not reject; AUROC is the share of pairs in the right order. This file does not know which models were
compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

ProblemScores: TypeAlias = Sequence[bool] | Sequence[int] | NDArray[np.bool_] | NDArray[np.int_]

# The denominator must be told from zero before anything is divided by it; two standard errors are the usual 95 %.
MIN_GAP_IN_STANDARD_ERRORS = 2
# What a 95 % interval leaves out at either end, and the normal quantile there.
TAIL = 0.025
NORMAL_QUANTILE = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval. An end is infinite where the data do not bound it."""

    value: float
    low: float
    high: float


def rpi(
    small: ProblemScores, hybrid: ProblemScores, large: ProblemScores, seed: int = 0, num_resamples: int = 10_000
) -> Estimate | None:
    """Return the recovered share of the gap, with its paired percentile-bootstrap interval over problems.

    Shapes (N,), (N,), (N,) of 0 and 1, the same problems in the same order. None where the gap between the models is
    not above two standard errors of the paired difference (fewer than two problems tell none).

    Problems are drawn again together with all three scores (Efron 1979): what they share cancels as it does in the
    data. In a resample whose gap is zero or negative the ratio means nothing, and may be as far below or above as one
    likes: it counts as minus infinity for the lower end and as infinity for the upper one.

    Raises ValueError for scores that are not paired or not 0 and 1.
    """
    scores = _paired(small, hybrid, large)
    gain, gap = scores[1] - scores[0], scores[2] - scores[0]
    if not _differs_from_zero(gap):
        return None
    gains, gaps = _resampled_sums(scores, np.random.default_rng(seed), num_resamples)
    known = gaps > 0
    ratios = np.divide(gains, gaps, where=known, out=np.zeros(num_resamples))
    return Estimate(
        value=float(gain.sum() / gap.sum()),
        low=order_statistic(np.where(known, ratios, -np.inf), TAIL),
        high=-order_statistic(np.where(known, -ratios, -np.inf), TAIL),
    )


def wilson(num_right: int, num_problems: int) -> Estimate:
    """Return a share of right answers with its 95 % score interval (Wilson 1927); of no problems everything is open.

    Unlike the share plus and minus two standard errors it has a width where all or none are right, and it stays within
    [0, 1]. Raises ValueError where there are more right answers than problems, or fewer than none.
    """
    if not 0 <= num_right <= num_problems:
        msg = f"{num_right} right answers of {num_problems}"
        raise ValueError(msg)
    if num_problems == 0:
        return Estimate(math.nan, 0.0, 1.0)
    share, z2 = num_right / num_problems, NORMAL_QUANTILE**2
    centre = (num_right + z2 / 2) / (num_problems + z2)
    half = NORMAL_QUANTILE / (num_problems + z2) * math.sqrt(num_problems * share * (1 - share) + z2 / 4)
    return Estimate(share, max(0.0, centre - half) if num_right else 0.0, centre + half if share < 1 else 1.0)


def auroc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Return the chance that a positive's score is above a negative's, ties counting half (Mann and Whitney 1947).

    Shapes (N,), (N,). 0.5: the scores carry no information. None: all are positive, or none is.
    """
    num_positive = int(positive.sum())
    num_pairs = num_positive * (positive.size - num_positive)
    if num_pairs == 0:
        return None
    values, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    negatives = counts - np.bincount(which[positive], minlength=values.size)
    below = np.cumsum(negatives) - negatives
    wins = below[which[positive]] + negatives[which[positive]] / 2
    return float(wins.sum() / num_pairs)


def _paired(small: ProblemScores, hybrid: ProblemScores, large: ProblemScores) -> NDArray[np.int_]:
    """Return the scores as one array of shape (3, N)."""
    columns = [np.asarray(scores, dtype=np.int_) for scores in (small, hybrid, large)]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        msg = f"scores of the same problems are needed, not of {[column.shape for column in columns]}"
        raise ValueError(msg)
    stacked = np.stack(columns)
    if not np.isin(stacked, (0, 1)).all():
        msg = "a problem's score is 0 or 1"
        raise ValueError(msg)
    return stacked


def _differs_from_zero(gap: NDArray[np.int_]) -> bool:
    """Whether a paired difference's mean is above two of its standard errors.

    Squared and free of fractions: mean > z sqrt(var / n), with var = (squares - total^2 / n) / (n - 1), is for a
    positive total the same as total^2 (n - 1) > z^2 (n squares - total^2). Whole numbers leave ties to no rounding.
    """
    n, total, squares = gap.size, int(gap.sum()), int((gap**2).sum())
    return total > 0 and total**2 * (n - 1) > MIN_GAP_IN_STANDARD_ERRORS**2 * (n * squares - total**2)


def _resampled_sums(
    scores: NDArray[np.int_], rng: np.random.Generator, num_resamples: int
) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Return hybrid - small and large - small, summed over the problems of each resample: shapes (R,), (R,).

    A problem is one of eight triples of scores. Drawing N problems with replacement and counting the triples is one
    multinomial draw, which needs R x 8 numbers instead of R x N.
    """
    triples, counts = np.unique(scores, axis=1, return_counts=True)
    drawn = rng.multinomial(scores.shape[1], counts / scores.shape[1], size=num_resamples)
    return drawn @ (triples[1] - triples[0]), drawn @ (triples[2] - triples[0])


def order_statistic(values: NDArray[np.float64], share: float) -> float:
    """Return the smallest value that has at least ``share`` of all at or below it; no interpolation, so inf may be."""
    return float(np.sort(values)[max(0, math.ceil(share * values.size) - 1)])
