"""Statistics of open text, where no answer is right or wrong: what is left of a loss, and what that cost.

A loss is a number of nats by which one model judges a text; what is counted of an answer (its mean per token, its sum)
the caller decides. The *recovered share* is (local - hybrid) / (local - cloud), each the mean over the same questions:
0 is the local model's loss, 1 the cloud's. Sending whole questions to the cloud at random recovers the share that it
pays for, so a rule's *advantage* is its recovered share less its bill, as a multiple of the cloud's.

The laws, tested in ``tests/tasks/test_text_statistics.py``: on losses of 0 and 1 the share is RPI's; it is undefined
where the gap between the models is not above two standard errors of itself; the bootstrap is that of an enumeration of
every resample, losses and bills of a question drawn together; a resample without a gap can only widen the interval;
routing at random has no advantage. This file does not know which models were compared, nor by what price.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.tasks.statistics import MIN_GAP_IN_STANDARD_ERRORS, TAIL, Estimate, order_statistic

PerQuestion: TypeAlias = Sequence[float] | NDArray[np.floating] | NDArray[np.integer]

NUM_RESAMPLES = 10_000
NGRAM = 4


def recovered_share(
    local_losses: PerQuestion,
    hybrid_losses: PerQuestion,
    cloud_losses: PerQuestion,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate | None:
    """Return the recovered share of the gap in a loss, with its paired percentile-bootstrap interval over questions.

    Shapes (N,), (N,), (N,): one number a question, the same questions in the same order. It is not clipped. None where
    the gap between the models is not above two standard errors of the paired difference (one question tells none).

    Questions are drawn again together with all their numbers (Efron 1979). In a resample whose gap is zero or negative
    the ratio means nothing: it counts as minus infinity for the lower end and as infinity for the upper one.

    Raises ValueError for numbers that are not paired or not finite.
    """
    return _share_less_bill(_paired(local_losses, hybrid_losses, cloud_losses), None, seed, num_resamples)


def advantage(
    local_losses: PerQuestion,
    hybrid_losses: PerQuestion,
    cloud_losses: PerQuestion,
    bills: PerQuestion,
    cloud_bills: PerQuestion,
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate | None:
    """Return how far the recovered share lies above routing at random for the same bill: the share less the bill.

    Shapes (N,) each. The bill is that of ``bill_ratio``; a question's losses and bills are drawn again together. None
    where there is no recovered share. Raises ValueError as ``recovered_share`` and ``bill_ratio`` do.
    """
    losses = _paired(local_losses, hybrid_losses, cloud_losses)
    paid = _checked_bills(bills, cloud_bills)
    if losses.shape[1] != paid.shape[1]:
        msg = f"losses of {losses.shape[1]} questions beside bills of {paid.shape[1]}"
        raise ValueError(msg)
    return _share_less_bill(losses, paid, seed, num_resamples)


def bill_ratio(
    bills: PerQuestion, cloud_bills: PerQuestion, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """Return the sum of the bills as a multiple of the cloud's, with its paired percentile-bootstrap interval.

    Shapes (N,), (N,), in any unit. Raises ValueError for bills that are not paired, not finite or negative, for a
    question that costs the cloud alone nothing, and for no question.
    """
    paid = _checked_bills(bills, cloud_bills)
    if not paid.size:
        msg = "bills of no question have no ratio"
        raise ValueError(msg)
    ours, clouds = _resampled_sums(paid, seed, num_resamples)
    value = float(paid[0].sum() / paid[1].sum())
    return _percentiles(value, ours / clouds, np.ones(num_resamples, dtype=np.bool_))


def repetition(ids: Sequence[int], n: int = NGRAM) -> float:
    """Return the share of n-grams that stood in the text before: 1 - distinct / all; 0 of a text too short for one.

    Raises ValueError for n below 1.

    >>> repetition([1, 2, 1, 2, 1, 2, 1], n=2)
    0.6666666666666667
    """
    if n < 1:
        msg = f"an n-gram has at least one token, not {n}"
        raise ValueError(msg)
    grams = list(zip(*(ids[i:] for i in range(n)), strict=False))
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def _share_less_bill(
    losses: NDArray[np.float64], paid: NDArray[np.float64] | None, seed: int, num_resamples: int
) -> Estimate | None:
    """Return the recovered share, less the bill ratio where there are bills. Shapes (3, N), (2, N)."""
    local, hybrid, cloud = losses
    gain, gap = local - hybrid, local - cloud
    if not _is_above_noise(gap):
        return None
    columns = np.stack([gain, gap]) if paid is None else np.concatenate([[gain, gap], paid])
    gains, gaps, *bills = _resampled_sums(columns, seed, num_resamples)
    value, known = float(gain.sum() / gap.sum()), gaps > 0.0
    shares = np.divide(gains, gaps, where=known, out=np.zeros(num_resamples))
    if paid is not None:
        value -= float(paid[0].sum() / paid[1].sum())
        shares -= bills[0] / bills[1]
    return _percentiles(value, shares, known)


def _percentiles(value: float, resampled: NDArray[np.float64], known: NDArray[np.bool_]) -> Estimate:
    """Return the middle 95 % of resampled values; one that is not known may be as low or as high as one likes."""
    return Estimate(
        value,
        low=order_statistic(np.where(known, resampled, -np.inf), TAIL),
        high=-order_statistic(np.where(known, -resampled, -np.inf), TAIL),
    )


def _is_above_noise(gap: NDArray[np.float64]) -> bool:
    """Whether a paired difference's mean is above two of its standard errors."""
    if gap.size < 2:  # one question has no standard error
        return False
    return bool(gap.mean() > MIN_GAP_IN_STANDARD_ERRORS * gap.std(ddof=1) / np.sqrt(gap.size))


def _resampled_sums(columns: NDArray[np.float64], seed: int, num_resamples: int) -> NDArray[np.float64]:
    """Return the sums over the questions of each resample: shape (C, N) -> (C, R)."""
    return columns @ _resamples(columns.shape[1], seed, num_resamples)


@lru_cache(maxsize=2)
def _resamples(num_questions: int, seed: int, num_resamples: int) -> NDArray[np.uint16]:
    """Return how often each resample holds each question, shape (N, R): the same ones for every rule of a table."""
    even = np.full(num_questions, 1.0 / num_questions)
    drawn = np.random.default_rng(seed).multinomial(num_questions, even, size=num_resamples)
    return drawn.T.astype(np.uint16)


def _paired(*given: PerQuestion) -> NDArray[np.float64]:
    """Return lists of numbers as one array of shape (len(given), N)."""
    columns = [np.asarray(numbers, dtype=np.float64) for numbers in given]
    if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
        msg = f"numbers of the same questions are needed, not of {[column.shape for column in columns]}"
        raise ValueError(msg)
    stacked = np.stack(columns)
    if not np.isfinite(stacked).all():
        msg = "a loss or a bill that is not finite"
        raise ValueError(msg)
    return stacked


def _checked_bills(bills: PerQuestion, cloud_bills: PerQuestion) -> NDArray[np.float64]:
    """Return both as one array of shape (2, N)."""
    paid = _paired(bills, cloud_bills)
    if (paid[0] < 0.0).any() or not (paid[1] > 0.0).all():
        msg = "a bill is not negative, and the cloud's own is above 0"
        raise ValueError(msg)
    return paid
