"""A linear function of hashed words (or tokens) and of numbers: weights in, log-odds or a value out.

Numbers are centred and scaled by the calibration's own, and cut four deviations out: far from its data a line would
promise anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.packed import pack_floats, pack_ints, read_number, scatter, unpack_floats, unpack_ints
from hybrid.defer.words import BUCKETS
from hybrid.prob import Floats

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
