"""Logistic and ridge regression on rows that are mostly zeros, with numpy alone.

Both minimise a sum of losses plus ``precision[f] * weight[f]**2 / 2`` for each feature, by Newton's method with
conjugate gradients inside: no randomness, and the same weights for the same rows. The oracles are scipy's minimiser and
the normal equations (``tests/defer/test_logistic.py``). N rows, F features, E ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.packed import pack_floats, pack_ints, read_number, scatter, unpack_floats, unpack_ints
from hybrid.defer.words import BUCKETS
from hybrid.prob import Floats

# A linear function of hashed words (or tokens) and of numbers: weights in, log-odds or a value out.
#
# Numbers are centred and scaled by the calibration's own, and cut four deviations out: far from its data a line would
# promise anything.

FARTHEST = 4.0


@dataclass(frozen=True, eq=False)
class Scale:
    """The mean and the deviation of D numbers, shapes (D,). A number that never changed says nothing."""

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, numbers: Floats) -> Scale:
        """Measure rows of numbers, shape (N, D)."""
        return cls(numbers.mean(axis=0), numbers.std(axis=0))

    def __call__(self, numbers: Floats) -> Floats:
        """Return numbers in deviations from the mean, at most four. Shape (N, D)."""
        far = (numbers - self.mean) / np.where(self.deviation > 0.0, self.deviation, np.inf)
        return np.clip(far, -FARTHEST, FARTHEST)


@dataclass(frozen=True, eq=False)
class LinearModel:
    """``bias``, the weights of the buckets, shape (4096,), and of D scaled numbers, shape (D,)."""

    bias: float
    of_buckets: Floats
    of_numbers: Floats
    scale: Scale

    def __post_init__(self) -> None:
        """Raise ValueError for arrays that do not fit."""
        num = {len(each) for each in (self.of_numbers, self.scale.mean, self.scale.deviation)}
        if len(self.of_buckets) != BUCKETS or len(num) != 1:
            raise ValueError("a linear model whose arrays do not fit")

    def __call__(self, buckets: NDArray[np.int64], numbers: Floats) -> Floats:
        """Return one value a row, shape (N,): buckets (N, B), each below 4,096, and numbers (N, D)."""
        words = self.of_buckets[buckets].sum(axis=1)
        return np.asarray(self.bias + words + (self.scale(numbers) * self.of_numbers).sum(axis=1))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``: of the buckets only those that count."""
        used = np.flatnonzero(self.of_buckets)
        floats = {
            "of_buckets": self.of_buckets[used],
            "of_numbers": self.of_numbers,
            "mean": self.scale.mean,
            "deviation": self.scale.deviation,
        }
        return {
            "bias": self.bias,
            "used": pack_ints(used),
            **{name: pack_floats(each) for name, each in floats.items()},
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> LinearModel:
        """Read what ``to_json`` gave. Raises ValueError, KeyError or TypeError."""
        weights = scatter(unpack_ints(kept["used"]), unpack_floats(kept["of_buckets"]), BUCKETS)
        numbers, mean, deviation = (unpack_floats(kept[name]) for name in ("of_numbers", "mean", "deviation"))
        return cls(read_number(kept["bias"]), weights, numbers, Scale(mean, deviation))


# Where no gradient is larger, weights are good to some millionths: scores are not used more exactly.
TOLERANCE = 1e-6
# A Newton step need not be exact, as long as the next one mends it (Dembo, Eisenstat and Steihaug 1982).
ROUGHLY, EXACTLY = 1e-2, 1e-12
# Newton's method ends in ten steps or so; these many mean that a number is not finite.
MOST_STEPS, MOST_TURNS, MOST_HALVINGS = 100, 1000, 30


@dataclass(frozen=True, eq=False)
class SparseRows:
    """N rows: a one in some of 4,096 buckets, and D numbers; together F features, the buckets first.

    ``row`` and ``bucket``, shapes (E,), say where the ones are; ``dense`` has shape (N, D).
    """

    row: NDArray[np.int64]
    bucket: NDArray[np.int64]
    dense: Floats

    @classmethod
    def of(cls, buckets: Sequence[tuple[int, ...]], dense: Floats) -> SparseRows:
        """Take each row's buckets, none of them twice, and its numbers."""
        row = np.repeat(np.arange(len(dense)), [len(each) for each in buckets])
        return cls(row, np.array([bucket for each in buckets for bucket in each], dtype=np.int64), dense)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.dense.shape[0])

    @property
    def num_features(self) -> int:
        """F."""
        return BUCKETS + int(self.dense.shape[1])

    def times(self, weights: Floats) -> Floats:
        """Return each row's sum of weighted features, shape (F,) -> (N,)."""
        return _sums(self.row, weights[self.bucket], self.num_rows) + self.dense @ weights[BUCKETS:]

    def back(self, numbers: Floats) -> Floats:
        """Return each feature's sum over the rows, weighted by a number a row, shape (N,) -> (F,)."""
        return np.concatenate([_sums(self.bucket, numbers[self.row], BUCKETS), numbers @ self.dense])

    def squares(self, numbers: Floats) -> Floats:
        """Return the same sum of the features' squares."""
        return np.concatenate([_sums(self.bucket, numbers[self.row], BUCKETS), numbers @ self.dense**2])


def _sums(group: NDArray[np.int64], numbers: Floats, num_groups: int) -> Floats:
    sums: Floats = np.bincount(group, numbers, num_groups).astype(np.float64)  # integers, where there are no numbers
    return sums


def sigmoid(logit: Floats) -> Floats:
    """Return probabilities, any shape; no overflow."""
    half = np.exp(-np.abs(logit))
    return np.where(logit >= 0, 1.0, half) / (1.0 + half)


def logit_of(chance: Floats | float, least: float = 1e-4) -> Floats:
    """Return log-odds, any shape, of chances that are cut to between ``least`` and one minus it."""
    cut = np.clip(np.asarray(chance, dtype=np.float64), least, 1.0 - least)
    return np.log(cut) - np.log1p(-cut)


def fit_logistic(
    rows: SparseRows,
    labels: Floats,
    precision: Floats,
    *,
    offset: Floats | None = None,
    weights: Floats | None = None,
    start: Floats | None = None,
) -> Floats:
    """Return the weights, shape (F,), under which labels between 0 and 1 are likeliest.

    ``precision``, shape (F,), above 0: the strength of the pull to zero. ``offset``, shape (N,): log-odds that are
    known already. ``weights``, shape (N,): how much a row counts (1). ``start``: weights to begin with, to be quicker.
    """
    known = np.zeros(rows.num_rows) if offset is None else offset
    counts = np.ones(rows.num_rows) if weights is None else weights
    found = np.zeros(rows.num_features) if start is None else start.copy()

    def loss(at: Floats) -> float:
        logits = known + rows.times(at)
        return float(counts @ (np.logaddexp(0.0, logits) - labels * logits) + precision @ at**2 / 2.0)

    now = loss(found)
    for _ in range(MOST_STEPS):
        chance = sigmoid(known + rows.times(found))
        gradient = rows.back(counts * (chance - labels)) + precision * found
        if np.abs(gradient).max(initial=0.0) <= TOLERANCE:
            break
        step = _newton_step(rows, counts * chance * (1.0 - chance), precision, gradient, ROUGHLY)
        for halving in range(MOST_HALVINGS):
            then = loss(found - step / 2**halving)
            if then < now:
                found, now = found - step / 2**halving, then
                break
        else:
            break  # as good as these numbers can tell
    return found


def fit_ridge(rows: SparseRows, targets: Floats, precision: Floats, *, weights: Floats | None = None) -> Floats:
    """Return the weights, shape (F,), with the least ``weights @ (targets - rows)**2 / 2`` plus the pull to zero."""
    counts = np.ones(rows.num_rows) if weights is None else weights
    return _newton_step(rows, counts, precision, rows.back(counts * targets), EXACTLY)


def _newton_step(rows: SparseRows, curvature: Floats, precision: Floats, gradient: Floats, accuracy: float) -> Floats:
    """Solve (X' diag(curvature) X + diag(precision)) step = gradient by conjugate gradients."""
    scale = rows.squares(curvature) + precision

    def apply(at: Floats) -> Floats:
        return rows.back(curvature * rows.times(at)) + precision * at

    return _conjugate_gradients(apply, gradient, scale, accuracy)


def _conjugate_gradients(apply: Callable[[Floats], Floats], target: Floats, scale: Floats, accuracy: float) -> Floats:
    """Solve a positive definite system, with its diagonal ``scale`` to guide the search, to an accuracy (relative)."""
    found = np.zeros_like(target)
    rest = target.copy()
    guided = rest / scale
    direction, square = guided.copy(), float(rest @ guided)
    least = square * accuracy**2
    for _ in range(MOST_TURNS):
        if square <= least:
            break
        image = apply(direction)
        length = square / float(direction @ image)
        found += length * direction
        rest -= length * image
        guided = rest / scale
        before, square = square, float(rest @ guided)
        direction = guided + (square / before) * direction
    return found
