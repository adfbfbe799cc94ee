"""What noise in the numbers does to a divergence: no model computes one distribution twice to the same digits.

Noise is in nats of log-probability: between the number told and the model's own lie at most so many, at every token; or
in less, as many as would have the effect on this divergence that was measured (``readings.py`` measures both). What was
measured on one text is typical, and no bound: what follows from it below holds as far as it does.

The law. Let two distributions be told with a noise of a and of b nats, n = a + b. Then going from the told to the
models' own changes ``2 + sqrt(2 KL)`` (either direction) and ``1 + sqrt(2 JS)`` by no factor above e^(n/2), and a total
variation by no more than n/2. Nothing lies outside (a convex solver for the least, all corners for the most), and where
the two are near some models attain it to first order: ``tests/prob/test_noise.py``. Derived here; the proof is in this
room's README. This file must not know where the noise comes from.
"""

from __future__ import annotations

import numpy as np

from hybrid.prob.divergence import LN2

# What one side counts as until it is measured: a guess (the bundled models' own is 0.017 to 0.032).
UNMEASURED = 0.01
# Numbers that are off by more say nothing, and e to the power of many times that is no number.
MOST = 100.0


def kl_with_noise(value: float, noise: float) -> float:
    """Return the most that a KL can be which was told as ``value``; where ``noise`` is negative, the least.

    >>> [round(kl_with_noise(0.5, noise), 3) for noise in (-0.02, 0.0, 0.02)]
    [0.471, 0.5, 0.531]
    """
    return _scaled(value, noise, 2.0)


def jensen_shannon_with_noise(value: float, noise: float) -> float:
    """Return the same of a Jensen-Shannon divergence, at most ln 2."""
    return min(LN2, _scaled(value, noise, 1.0))


def total_variation_with_noise(value: float, noise: float) -> float:
    """Return the same of a total variation, 0 to 1."""
    return min(1.0, max(0.0, value + noise / 2.0))


def _scaled(value: float, noise: float, offset: float) -> float:
    """Scale ``offset + sqrt(2 value)`` by e^(noise/2)."""
    if not noise or np.isinf(value):
        return value  # to the digit
    if noise > MOST:
        return np.inf
    root = np.sqrt(2.0 * max(0.0, value)) * np.exp(noise / 2.0) + offset * np.expm1(noise / 2.0)
    return max(0.0, float(root)) ** 2 / 2.0
