"""KL over concepts: sets of tokens that say the same, so that another wording is no divergence.

The law. A partition is a coarser alphabet, so KL over its concepts is at most KL over tokens (data processing), and
what is between the two is wording: ``KL = concept KL + sum over c of P_c KL(P(.|c) || Q(.|c))``. With each token alone
it is the KL of tokens, with one concept 0 (``tests/prob/test_concepts.py``).

From a top-k list. Q_c is exact, as the draft is known in full. P_c is at least what is listed of c, and at most that
and what may be hidden of it: the rest of the mass, or the most that each of its hidden tokens can have. Both ends are
then ``kl_in_boxes``. To sum the list into concepts with a bucket for the rest is *not* a bound: it counts a synonym of
a listed token apart from it.

Tens of thousands of concepts show no token, and few of them matter: those that the draft likes most for their room
reach it first when the target stays near, those that it likes least when the target goes far. All others are one event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from hybrid.prob.cells import TextRow
from hybrid.prob.distribution import CHUNK, Dense, Floats, Ints, TopK, largest
from hybrid.prob.divergence import FullRow, SupportSplit, split_support, total_variation
from hybrid.prob.terms import Interval, forward, kl_in_boxes
from hybrid.types import Divergence

__all__ = ["EmbeddingCost", "Partition", "PotMissing", "TransportCost", "concept_kl", "transport"]


@dataclass(frozen=True, eq=False)
class Partition:
    """Which tokens say the same. ``labels``: of each id its concept, shape (V,), from 0 to ``num_concepts`` - 1."""

    labels: Ints
    num_concepts: int

    @classmethod
    def of_groups(cls, num_tokens: int, groups: Iterable[Collection[int]]) -> Partition:
        """Make a concept of each group of ids; all other ids are alone. Raises ValueError for an id in two groups.

        >>> Partition.of_groups(5, [{1, 3}]).labels.tolist()
        [0, 1, 2, 1, 3]
        """
        first = np.arange(num_tokens)
        seen: set[int] = set()
        for group in groups:
            ids = set(group)
            if ids & seen or not all(0 <= token < num_tokens for token in ids):
                msg = f"tokens that are in two concepts or in no vocabulary of {num_tokens}: {sorted(ids)}"
                raise ValueError(msg)
            seen |= ids
            first[list(ids)] = min(ids, default=0)
        kept, labels = np.unique(first, return_inverse=True)
        return cls(labels.astype(np.int64), int(kept.size))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The concepts of two tokens and more, by their ids."""
        order = np.argsort(self.labels, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(self.labels[order])) + 1)
        return tuple(tuple(part.tolist()) for part in parts if part.size > 1)

    @cached_property
    def digest(self) -> str:
        """What identifies it: which tokens are together, whatever the concepts' numbers are."""
        _, first, inverse = np.unique(self.labels, return_index=True, return_inverse=True)
        return blake2b(first[inverse].astype("<i8").tobytes(), digest_size=16).hexdigest()

    def over(self, num_tokens: int) -> Partition:
        """Return the partition of a vocabulary of another size: each token beyond this one's is alone."""
        missing = num_tokens - self.labels.size
        if missing <= 0:
            return self if not missing else Partition(self.labels[:num_tokens], self.num_concepts)
        alone = np.arange(self.num_concepts, self.num_concepts + missing)
        return Partition(np.concatenate((self.labels, alone)), self.num_concepts + missing)

    def masses(self, probs: Floats) -> Floats:
        """Sum probabilities over each concept. Shape (V,) -> (num_concepts,)."""
        masses: Floats = np.bincount(self.labels, weights=probs, minlength=self.num_concepts).astype(np.float64)
        return masses


@dataclass(frozen=True, eq=False)
class _IntervalKl:
    """Concepts by what the target may give them and what the draft does; arrays of shape (C,)."""

    low: Floats
    high: Floats
    draft: Floats

    def among(self, kept: Ints, rest_high: float) -> tuple[Floats, Floats, Floats]:
        """Return some concepts, and all others as one event that the target gives at most ``rest_high``."""
        others = np.ones(self.low.size, dtype=bool)
        others[kept] = False
        return (
            np.append(self.low[kept], 0.0),
            np.append(self.high[kept], rest_high),
            np.append(self.draft[kept], float(self.draft[others].sum())),
        )


def concept_kl(target: TopK, draft: Dense, partition: Partition) -> Divergence:
    """Bound KL(target || draft) over the concepts of a partition, in nats. The estimate is the lower end.

    The lower end is attained by some completion of the list; the upper is at most that over tokens, and passed by no
    more than one concept's share. Of a target of another vocabulary no concepts are known: each prefix cell is alone.
    """
    if isinstance(target, TextRow):
        return target.kl(draft)
    if isinstance(target, FullRow):
        return _of_full_rows(target, draft, partition)
    split = split_support(target, draft)
    boxes, shown = _boxes(split, partition.over(draft.num_tokens))
    tokens_upper = max(0.0, split.known(forward) + split.farthest(forward))
    room = np.where(boxes.low > 0.0, 0.0, boxes.high)
    hidden = split.fill()[0] + 1  # so many caps at least hold the rest
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.where(room > 0.0, boxes.draft / room, -np.inf)
        against = np.where(room > 0.0, room / boxes.draft, -np.inf)
    odds[shown] = against[shown] = -np.inf
    near = np.union1d(shown, _finite(odds, hidden))
    far = np.union1d(shown, _finite(against, hidden))
    value = kl_in_boxes(*boxes.among(near, min(1.0, split.tail))).lower
    upper = kl_in_boxes(*boxes.among(far, 0.0)).upper
    value = min(value, tokens_upper)  # equal in exact arithmetic where nothing is merged
    return Divergence(value, value, max(value, min(upper, tokens_upper)), split.noise_at(value, 2.0))


def _boxes(split: SupportSplit, partition: Partition) -> tuple[_IntervalKl, Ints]:
    """Return each concept's bounds, and which show a token. What the draft's vocabulary lacks is a concept more."""
    target, draft = split.target, split.draft
    shared = target.ids < draft.num_tokens
    of_shown = partition.labels[split.shown]
    low = np.bincount(of_shown, weights=target.probs[shared], minlength=partition.num_concepts)
    size = np.bincount(partition.labels, minlength=partition.num_concepts)
    hidden = size - np.bincount(of_shown, minlength=partition.num_concepts)
    high = low + np.minimum(split.tail, split.tail_max * hidden)
    foreign = float(target.probs[~shared].sum())
    if not split.tail > 0.0:  # rounding is all that keeps what is shown from one
        low = high = low / target.probs.sum()
    boxes = _IntervalKl(
        np.append(low, foreign), np.append(high, foreign), np.append(partition.masses(draft.probs), 0.0)
    )
    return boxes, np.append(np.unique(of_shown), partition.num_concepts)


def _finite(values: Floats, count: int) -> Ints:
    """Return the indices of the largest values that are not minus infinity, ``count`` at most."""
    found = largest(values, min(count, values.size))
    return found[values[found] > -np.inf]


def _of_full_rows(target: FullRow, draft: Dense, partition: Partition) -> Divergence:
    masses = [partition.over(row.num_tokens).masses(row.probs) for row in (target.dense, draft)]
    with np.errstate(divide="ignore"):
        value = max(0.0, float(forward(*np.log(masses)).sum()))
    return Divergence(value, value, value, target.noise + draft.noise)


# Optimal transport between two rows: how far probability must move, where some tokens are near one another.
#
# The law. With a cost in [0, 1] that is 0 between a token and itself, it is at most the total variation distance, and
# equal to it where every other cost is 1; where tokens of one concept cost nothing and all others 1, it is the total
# variation over concepts. From a top-k list it is an interval that holds for every completion
# (``tests/prob/test_transport.py``).
#
# How. What is shown of the target, and what the draft likes most, are moved exactly, as a linear program; what else
# there is of either is one more place, as near as the nearest of its tokens for the lower end, as far as the farthest
# for the upper. The program is solved by POT, which only this function needs (the extra ``transport``).

# What it costs to move from some tokens to others: (A,), (B,) -> (A, B), symmetric, in [0, 1].
TransportCost: TypeAlias = Callable[[Ints, Ints], Floats]
# So many of the draft's likeliest tokens have places of their own.
NUM_DRAFTED = 64


class PotMissing(ImportError):
    """The package that solves the linear program is not installed."""


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
