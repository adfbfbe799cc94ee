"""Measure what two computations of one row do to numbers: to a log-probability, and to any KL of the row.

A row read together with others and the same row read alone are two distributions. ``max_log_difference`` is the most
that a token's log-probability differs, ``kl_shift`` the most that sqrt(2 KL(P || row)) differs, whatever P is. The
second is by far the better measure where many tokens differ a little: no target can put all its probability where the
two readings differ most and still be near to either.

The law. For readings q and q' and every target P with min(KL(P || q), KL(P || q')) of at most ``FAR`` nats,
``|sqrt(2 KL(P || q)) - sqrt(2 KL(P || q'))| <= kl_shift(q, q')``. So KL(q || q') is at most half its square, and with
it sqrt(2 JS(q, q')) at most the shift over sqrt(2), and TV(q, q') half of it (Pinsker). For every tilt t,
KL(P || q') <= (1 + 1/t) KL(P || q) + log(sum q^(1+t) q'^-t) / t (Donsker and Varadhan 1983); the least over a few tilts
is a broken line above all pairs of the two divergences, and its corners are all that is looked at. Tokens that neither
reading finds likely count as one. ``tests/prob/test_readings.py`` holds the law and that it is attained. This file must
not know where the readings come from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hybrid.prob.distribution import Floats

# Below this a token's log-probability is not held against anybody: a nat of it moves a divergence by little.
LIKELY = 1e-3
# A target within so many nats of a row may put all its probability on any likely token.
FAR = -float(np.log(LIKELY))
# The line through so many tilts lies a few per cent above the exact curve, down to readings 0.001 nats apart.
TILTS = np.geomspace(0.05, 2e4, 40)


def max_log_difference(first: Floats, second: Floats) -> float:
    """Return the most nats between two computations of log-probabilities, over tokens that either finds likely.

    Any shape, the same for both; infinite where no token is likely.
    """
    likely = _likely(first, second)
    return float(np.abs(first - second)[likely].max()) if likely.any() else np.inf


def kl_shift(first: Floats, second: Floats) -> float:
    """Return the most by which sqrt(2 KL(P || row)) differs between two computations of a row, over all targets P.

    Log-probabilities of shapes (V,), (V,); in roots of nats. Infinite where no token is likely, or where one reading
    excludes a token that the other finds likely.
    """
    likely = _likely(first, second)
    rest = [float(np.exp(reading[~likely]).sum()) for reading in (first, second)]
    one, other = first[likely], second[likely]
    if min(rest) > 0.0:
        one, other = np.append(one, np.log(rest[0])), np.append(other, np.log(rest[1]))
    if not likely.any() or not np.isfinite(one - other).all():
        return np.inf
    return max(_farther(one, other), _farther(other, one))


def shift_as_noise(value: float, shift: float, offset: float) -> float:
    """Return the noise that moves a divergence of ``value`` or more at least as far as a shift of its root does.

    ``prob.divergence`` scales ``offset + sqrt(2 value)``, by which a step down takes more noise than a step up.

    >>> [round(shift_as_noise(value, 0.1, 2.0), 4) for value in (0.0, 0.5)]
    [0.0976, 0.0678]
    """
    root = float(np.sqrt(2.0 * max(0.0, value)))
    down, up = -np.log1p(-min(shift, root) / (offset + root)), np.log1p(shift / (offset + root))
    return 2.0 * float(max(down, up))


def _likely(first: Floats, second: Floats) -> NDArray[np.bool_]:
    likely: NDArray[np.bool_] = np.maximum(first, second) >= np.log(LIKELY)
    return likely


def _farther(near: Floats, far: Floats) -> float:
    """Return the most by which sqrt(2 KL(P || far)) exceeds sqrt(2 KL(P || near)); shapes (N,), (N,)."""
    gain = near - far  # nats by which one token alone is farther
    tilted = near + TILTS[:, None] * gain
    top = tilted.max(axis=1)
    heights = top + np.log(np.exp(tilted - top[:, None]).sum(axis=1))  # over t: where a line meets KL(P || near) = 0
    before, after = slice(None, -1), slice(1, None)
    corners = (TILTS[before] * heights[after] - TILTS[after] * heights[before]) / np.diff(TILTS)
    last = TILTS[-1] * gain.max() - heights[-1]
    nats = np.clip(np.concatenate(([0.0], corners, [last, FAR])), 0.0, FAR)
    farther = np.minimum(((nats[:, None] + heights) / TILTS).min(axis=1), gain.max())
    return float((np.sqrt(2.0 * (nats + np.maximum(farther, 0.0))) - np.sqrt(2.0 * nats)).max())
