"""Optimal transport between two rows: how far probability must move, where some tokens are near one another.

The law. With a cost in [0, 1] that is 0 between a token and itself, it is at most the total variation distance, and
equal to it where every other cost is 1; where tokens of one concept cost nothing and all others 1, it is the total
variation over concepts. From a top-k list it is an interval that holds for every completion
(``tests/prob/test_transport.py``).

How. What is shown of the target, and what the draft likes most, are moved exactly, as a linear program; what else there
is of either is one more place, as near as the nearest of its tokens for the lower end, as far as the farthest for the
upper. The program is solved by POT, which only this function needs (the extra ``transport``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybrid.prob.concepts import Partition
from hybrid.prob.distribution import CHUNK, Dense, Floats, Ints, TopK
from hybrid.prob.divergence import total_variation
from hybrid.prob.terms import Interval

# What it costs to move from some tokens to others: (A,), (B,) -> (A, B), symmetric, in [0, 1].
TransportCost: TypeAlias = Callable[[Ints, Ints], Floats]
# So many of the draft's likeliest tokens have places of their own.
NUM_DRAFTED = 64


class PotMissing(ImportError):
    """The package that solves the linear program is not installed."""


@dataclass(frozen=True, eq=False)
class ConceptCost:
    """Nothing within a concept of a partition, 1 between two. A token beyond the partition's is alone."""

    partition: Partition

    def __call__(self, first: Ints, second: Ints) -> Floats:
        """Return the costs."""
        num_tokens = 1 + int(max(first.max(initial=-1), second.max(initial=-1)))
        labels = self.partition.over(max(num_tokens, self.partition.labels.size)).labels
        costs: Floats = (labels[first][:, None] != labels[second]).astype(np.float64)
        return costs


@dataclass(frozen=True, eq=False)
class EmbeddingCost:
    """The distance of two tokens' directions: sqrt((1 - cos) / 2), a metric.

    ``vectors`` are of length one, shape (V, D).
    """

    vectors: Floats

    def __call__(self, first: Ints, second: Ints) -> Floats:
        """Return the costs."""
        alike = self.vectors[first] @ self.vectors[second].T
        costs: Floats = np.sqrt(np.clip((1.0 - alike) / 2.0, 0.0, 1.0))
        costs[first[:, None] == second] = 0.0  # rounding is no distance
        return costs


def transport(target: TopK, draft: Dense, cost: TransportCost) -> Interval:
    """Bound the cost of moving one row to the other, in [0, 1]; never above the total variation distance.

    Both have the draft's vocabulary. Raises PotMissing.
    """
    shown = target.ids
    drafted = np.array([token for token, _ in draft.top(NUM_DRAFTED)], dtype=np.int64)
    places = np.concatenate((shown, np.setdiff1d(drafted, shown)))
    masses = np.append(target.probs, target.tail), np.append(draft.probs_of(places), draft.mass_outside(places))
    tokens = np.arange(draft.num_tokens)
    from_shown = _reach(np.setdiff1d(tokens, places), shown, cost)
    from_places = _reach(np.setdiff1d(tokens, shown), places, cost)
    between = cost(shown, places)
    # What is hidden may be any token: the place itself, where that is not shown; and it may stay where it is.
    lower, upper = (
        _cheapest(*masses, np.block([[between, of_shown[:, None]], [of_places, np.array([[corner]])]]))
        for of_shown, of_places, corner in zip(from_shown, from_places, (0.0, 1.0), strict=True)
    )
    most = total_variation(target, draft)
    lower = min(lower, most.upper)
    return Interval(lower, max(lower, min(upper, most.upper)), most.noise)


def _reach(hidden: Ints, places: Ints, cost: TransportCost) -> tuple[Floats, Floats]:
    """Return the least and the most that it costs between some tokens and each place; 0 and 1 where there are none."""
    least, most = np.ones(places.size), np.zeros(places.size)
    for start in range(0, hidden.size, CHUNK):
        costs = cost(hidden[start : start + CHUNK], places)
        least, most = np.minimum(least, costs.min(axis=0)), np.maximum(most, costs.max(axis=0))
    return (least, most) if hidden.size else (most, least)


def _cheapest(target: Floats, draft: Floats, costs: Floats) -> float:
    """Solve for the cheapest plan: masses of shapes (A,) and (B,), costs of shape (A, B)."""
    try:
        from ot import emd2  # noqa: PLC0415  (an extra)
    except ImportError:
        msg = "optimal transport needs the package POT: pip install 'hybrid-llm[transport]'"
        raise PotMissing(msg) from None
    rows, columns = target > 0.0, draft > 0.0
    least: Floats = np.ascontiguousarray(costs[rows][:, columns])
    value = emd2(target[rows] / target.sum(), draft[columns] / draft.sum(), least, numItermax=10**6)
    return min(1.0, max(0.0, float(value)))


__all__ = ["ConceptCost", "EmbeddingCost", "PotMissing", "TransportCost", "transport"]
