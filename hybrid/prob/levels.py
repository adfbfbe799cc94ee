"""Levels: the one number at which a sum that only grows reaches what is asked of it.

The law: what is poured keeps its bounds and, where they leave room, sums to the mass; it is the point between those
bounds that every f-divergence from the shape is least at (``tests/prob/test_rounding.py``). Why: where no bound binds,
the stationarity of ``sum of q f(p/q)`` under a fixed sum makes ``p/q`` one number, the level.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.prob.distribution import Floats

# exp(1000) over exp(-1000) is more than any two positive doubles are apart.
REACH = 1000.0
# 2000 halved so often is a double's last digit.
HALVINGS = 64


def bisect(too_low: Callable[[float], bool], low: float, high: float) -> float:
    """Return where ``too_low`` ceases to hold between ``low`` and ``high``, from the side where it does not."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if too_low(middle):
            low = middle
        else:
            high = middle
    return high


def fill_to_mass(log_shape: Floats, log_low: Floats | float, log_high: Floats | float, mass: float) -> Floats:
    """Return the logarithms of ``clip(level * shape, low, high)``, at the level where they sum to ``mass``.

    Shapes (A,) -> (A,), all in natural logarithms but the mass. Where the bounds leave too little or too much room, the
    nearer bound; what has no shape gets no more than its lower bound.
    """

    def at(level: float) -> Floats:
        poured: Floats = np.maximum(log_low, np.minimum(level + log_shape, log_high))
        return poured

    return at(bisect(lambda level: float(np.exp(at(level)).sum()) < mass, -REACH, REACH))
