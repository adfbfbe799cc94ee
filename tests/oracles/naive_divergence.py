"""Pairs of distributions to draw from, and divergences written down naively: the oracles of ``tests/prob``."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from hybrid.prob import (
    Dense,
    TopK,
    jensen_shannon,
    jensen_shannon_with_noise,
    kl_divergence,
    kl_reverse,
    kl_with_noise,
    total_variation,
    total_variation_with_noise,
)

SLACK = 1e-9


TIED = st.integers(0, 5).map(float)


POSITIVE = st.integers(1, 5).map(float)


FAR_APART = st.floats(-200, 0).map(math.exp)


MAYBE_EXCLUDED = TIED | FAR_APART


def law(weights):
    weights = np.asarray(weights, dtype=float)
    return Dense.from_probs(weights / weights.sum())


@st.composite
def pairs(draw, min_size=1, draft_weight=POSITIVE | FAR_APART):
    """Target (zeros and ties included) and draft over at most ten tokens; the draft excludes nothing unless asked.

    Where it may, the target is spared probabilities like 1e-17: they vanish beside 1, and with them an infinite KL.
    """
    size = draw(st.integers(min_size, 10))
    target_weight = TIED if draft_weight is MAYBE_EXCLUDED else TIED | FAR_APART
    target = draw(st.lists(target_weight, min_size=size, max_size=size).filter(any))
    return law(target), law(draw(st.lists(draft_weight, min_size=size, max_size=size).filter(any)))


@st.composite
def large_pairs(draw):
    """Hundreds of tokens: flat, peaked and nearly one-hot distributions against each other."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(100, 700))
    target, draft = (rng.dirichlet(np.full(size, draw(st.sampled_from([0.05, 0.5, 5.0, 500.0])))) for _ in range(2))
    return law(target + 1e-14), law(draft + 1e-14)


SOME_K = (1, 2, 3, 5, 8, 20, 63, 64, 65, 99)


def naive_kl(target, draft):
    total = []
    for p, q in zip(target, draft, strict=True):
        if p > 0:
            total.append(p * (math.log(p) - math.log(q)) if q > 0 else math.inf)
    return math.fsum(total)


def naive_coarse(row, draft):
    """Return the KL of what a list shows and of one bucket for the rest."""
    known = [i for i in row.ids if i < draft.num_tokens]
    shown = [draft.probs[i] if i in known else 0.0 for i in row.ids]
    rest = np.delete(draft.probs, known).sum()
    tail = row.tail if row.tail > 1e-6 or rest > 0 else 0.0  # rounding is no mass
    return naive_kl([*row.probs, tail], [*shown, rest])


def naive_reverse(target, draft):
    return naive_kl(draft, target)


def naive_jensen_shannon(target, draft):
    middle = [(p + q) / 2 for p, q in zip(target, draft, strict=True)]
    return (naive_kl(target, middle) + naive_kl(draft, middle)) / 2


def naive_overlap(target, draft):
    return math.fsum(map(min, target, draft))


def unseen(row, size):
    return [i for i in range(size) if i not in set(row.ids.tolist())]


def completed(row, size, tail):
    """Lay the tail's probabilities beside those that the row shows."""
    whole = np.zeros(size)
    whole[row.ids] = row.probs
    whole[unseen(row, size)] = tail
    assert abs(whole.sum() - 1) < 1e-9
    return whole.tolist()


def poured(row, draft):
    """Fill the tail evenly in proportion to the draft, no token above the cap (the level is found by halving)."""
    shape = np.array([draft.probs[i] for i in unseen(row, draft.num_tokens)])
    low, high = -1000.0, 1000.0
    for _ in range(200):
        level = (low + high) / 2
        with np.errstate(over="ignore"):
            tail = np.minimum(row.tail_max, np.exp(level) * shape)
        low, high = (level, high) if tail.sum() < row.tail else (low, level)
    return completed(row, draft.num_tokens, tail)


def heaped(row, draft, order):
    """Fill the tail to the cap, one token after the other in this order, until the mass is used up."""
    tail, left = {}, row.tail
    for i in order:
        tail[i] = min(row.tail_max, left)
        left -= tail[i]
    return completed(row, draft.num_tokens, [tail[i] for i in unseen(row, draft.num_tokens)])


def level(shape, low, high, mass):
    """Return ``clip(level * shape, low, high)`` of this mass, the level found by halving; the nearest end if none."""
    shape, low, high = (np.asarray(each, dtype=float) for each in (shape, low, high))
    least, most = -800.0, 700.0
    for _ in range(70):
        middle = (least + most) / 2
        too_low = np.clip(np.exp(middle) * shape, low, high).sum() < mass
        least, most = (middle, most) if too_low else (least, middle)
    return np.clip(np.exp(most) * shape, low, high)


def least_likely_first(row, draft):
    return sorted(unseen(row, draft.num_tokens), key=lambda i: draft.probs[i])


def feasible(row, draft, rng):
    """Mix some heaps in random order: every such mixture keeps the caps and the mass."""
    orders = (rng.permutation(unseen(row, draft.num_tokens)).tolist() for _ in range(4))
    return (rng.dirichlet(np.full(4, 0.5)) @ np.array([heaped(row, draft, order) for order in orders])).tolist()


def rows(target):
    return (TopK.from_dense(target, k) for k in range(1, target.num_tokens + 1))


def inside(value, interval):
    return interval.lower - SLACK <= value <= interval.upper + SLACK


def naive_tv(target, draft):
    return math.fsum(abs(p - q) for p, q in zip(target, draft, strict=True)) / 2


# What is measured, naively; what noise does to it; and the interval.
MEASURES = {
    "KL": (naive_kl, kl_with_noise, kl_divergence),
    "reverse KL": (naive_reverse, kl_with_noise, kl_reverse),
    "JS": (naive_jensen_shannon, jensen_shannon_with_noise, jensen_shannon),
    "TV": (naive_tv, total_variation_with_noise, total_variation),
}
