"""The nearest two distributions that show two given lists, found by search: for ``tests/prob/test_truncated.py``."""

from __future__ import annotations

import numpy as np
from naive_divergence import level, naive_kl, unseen

STEPS = 36


def completed(row, size, tail):
    whole = np.zeros(size)
    whole[row.ids] = row.probs
    whole[unseen(row, size)] = tail
    return whole


def poured(row, shape):
    """Complete the row in proportion to a shape over the vocabulary, no token above the cap."""
    hidden = unseen(row, len(shape))
    return completed(
        row, len(shape), level(shape[hidden], np.zeros(len(hidden)), np.full(len(hidden), row.cap), row.tail)
    )


def nearest_pair(target, draft, size):
    """Return the full target and draft of least KL. The mass that the target gives what neither shows is searched for.

    Given that mass (spread evenly: nothing tells those tokens apart) the best target is poured over what the draft
    shows, and given the target the best draft is poured in its proportion; what is left is convex in one number.
    """
    hidden = [i for i in unseen(target, size) if i in draft.ids]
    rest = [i for i in unseen(target, size) if i not in draft.ids]
    liked = np.zeros(size)
    liked[draft.ids] = draft.probs

    def pair(mass):
        whole = completed(target, size, 0.0)
        whole[hidden] = level(
            liked[hidden], np.zeros(len(hidden)), np.full(len(hidden), target.cap), target.tail - mass
        )
        whole[rest] = mass / len(rest) if rest else 0.0
        # a grain in everything, so that a draft with mass left over has somewhere to leave it
        return whole, poured(draft, whole + 1e-18)

    low = max(0.0, target.tail - len(hidden) * target.cap) if rest else 0.0
    high = min(target.tail, len(rest) * target.cap)
    for _ in range(STEPS if rest else 0):
        third = (high - low) / 3
        if naive_kl(*pair(low + third)) < naive_kl(*pair(high - third)):
            high -= third
        else:
            low += third
    return pair(high if rest else 0.0)
