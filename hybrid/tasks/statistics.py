"""Statistics of graded problems, of losses and of bills: recovered shares with their intervals, Wilson's, AUROC.

RPI, the recovered share of the performance gap, is (hybrid - small) / (large - small) over the same problems: 0 is the
small model's score, 1 the large one's. It is not clipped: a hybrid may beat its large model. Of a loss in nats it is
the same with the signs turned. Sending whole questions to the cloud at random recovers the share that it pays for, so a
rule's *advantage* is its recovered share less its bill, as a multiple of the cloud's.

The laws, tested in ``tests/tasks/test_statistics.py`` and ``test_text_statistics.py``: RPI is undefined where the gap
between the models is not above two standard errors of itself, for a ratio over noise is noise; the bootstrap is that of
an enumeration of every resample, all that is known of a question drawn together; a resample without a gap can only
widen the interval; routing at random has no advantage; Wilson's interval holds exactly the shares that a score test
does not reject; AUROC is the share of pairs in the right order. This file does not know which models were compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

ProblemScores: TypeAlias = Sequence[bool] | Sequence[int] | NDArray[np.bool_] | NDArray[np.int_]

# The denominator must be told from zero before anything is divided by it; two standard errors are the usual 95 %.
MIN_GAP_IN_STANDARD_ERRORS = 2
# What a 95 % interval leaves out at either end, and the normal quantile there.
TAIL = 0.025
NORMAL_QUANTILE = 1.959963984540054
# The normal quantile of four of five: a power of 80 %.
POWER_QUANTILE = 0.8416212335729143


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
    scores = _graded(small, hybrid, large)
    gain, gap = scores[1] - scores[0], scores[2] - scores[0]
    if not _differs_from_zero(gap):
        return None
    gains, gaps = _resampled_sums(scores, np.random.default_rng(seed), num_resamples)
    drawn = np.divide(gains, gaps, where=gaps > 0, out=np.full(num_resamples, np.nan))
    return estimate(np.append(gain.sum() / gap.sum(), drawn))


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


def num_for_rpi(half_width: float, gap: float, discordance: float, share: float = 0.5) -> int:
    """Return how many problems narrow the 95 % interval of an RPI to so much either way, by the delta method.

    ``gap``: the difference of the models in right answers; ``discordance``: the share of problems that one of them
    solves alone. Of a hybrid that answers each of these as one of the two, and so recovers ``share``, the error of the
    ratio has the variance discordance share (1 - share) / (gap^2 n); half is the worst.

    >>> num_for_rpi(0.1, gap=0.5, discordance=0.5), num_for_rpi(0.05, gap=0.5, discordance=0.5)
    (193, 769)
    """
    return math.ceil(NORMAL_QUANTILE**2 * discordance * share * (1.0 - share) / (gap * half_width) ** 2)


def num_for_difference(difference: float, discordance: float) -> int:
    """Return how many problems show a paired difference in right answers in four of five runs (McNemar 1947).

    >>> num_for_difference(0.1, discordance=0.2)
    157
    """
    return math.ceil((NORMAL_QUANTILE + POWER_QUANTILE) ** 2 * discordance / difference**2)


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


def _graded(small: ProblemScores, hybrid: ProblemScores, large: ProblemScores) -> NDArray[np.int_]:
    """Return the scores as one array of shape (3, N)."""
    stacked = _paired(small, hybrid, large)
    if not np.isin(stacked, (0, 1)).all():
        msg = "a problem's score is 0 or 1"
        raise ValueError(msg)
    return stacked.astype(np.int_)


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


# Paired resamples of problems, and the cheapest way to a wanted share: everything of a table is drawn again together.
#
# A statistic is computed for the data and for every resample at once: the first of 1 + R columns is the data itself, so
# no value and its interval can be of two formulas. The laws (``tests/tasks/test_resamples.py``): an estimate is that of
# the problems repeated as often as they were drawn; the cheapest mixture is never above any of the ways it mixes, and
# with perfect foresight nothing is cheaper than the oracle.

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


# Open text, where no answer is right or wrong: what is left of a loss, and what that cost.
#
# A loss is a number of nats by which one model judges a text; what is counted of an answer (its mean per token, its
# sum) the caller decides.

PerQuestion: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]


def loss_shares(draws: Resamples, local: Floats, hybrid: Floats, cloud: Floats) -> Floats:
    """Return the recovered share of the gap in a loss, shapes (N,) -> (1 + R,).

    Not a number where the gap between the models is not above two standard errors of the paired difference; one
    question has none.
    """
    gap = local - cloud
    if gap.size < 2 or not gap.mean() > MIN_GAP_IN_STANDARD_ERRORS * gap.std(ddof=1) / np.sqrt(gap.size):
        return np.full(1 + draws.num, np.nan)
    return draws.shares(-local, -hybrid, -cloud)


def bill_ratio(bills: PerQuestion, cloud_bills: PerQuestion, seed: int = 0, num_resamples: int = 10_000) -> Estimate:
    """Return the sum of the bills as a multiple of the cloud's, with its paired percentile-bootstrap interval.

    Shapes (N,), (N,), in any unit. Raises ValueError for bills that are not paired, not finite or negative, for a
    question that costs the cloud alone nothing, and for no question.
    """
    paid = _paired(bills, cloud_bills)
    if (paid[0] < 0.0).any() or not (paid[1] > 0.0).all():
        msg = "a bill is not negative, and the cloud's own is above 0"
        raise ValueError(msg)
    found = estimate(ratio(*Resamples(paid.shape[1], seed, num_resamples).sums(paid))) if paid.size else None
    if found is None:
        msg = "bills of no question have no ratio"
        raise ValueError(msg)
    return found


def _paired(*given: PerQuestion | ProblemScores) -> NDArray[np.float64]:
    """Return lists of numbers as one array of shape (len(given), N)."""
    columns = [np.asarray(numbers, dtype=np.float64) for numbers in given]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        msg = f"scores or numbers of the same questions are needed, not of {[column.shape for column in columns]}"
        raise ValueError(msg)
    stacked = np.stack(columns)
    if not np.isfinite(stacked).all():
        msg = "a score, a loss or a bill that is not finite"
        raise ValueError(msg)
    return stacked
