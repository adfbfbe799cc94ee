"""Pacing under a day's cap: money has a price of its own, which rises while spending runs ahead of the day.

The worth of an answer is divided by that price. It is a pure function of what is left of the cap and of the day, so
that nothing has to be remembered. It does not hold the cap: the ledger does. The laws (``tests/defer/test_pacing.py``):
it falls as more is spent and rises as the day goes on; a spending in step with the day changes nothing.
"""

from __future__ import annotations

# Tried on days with a burst (``hybrid bench auto --pacing``).
EXPONENT = 2.0
LEAST, MOST = 1e-3, 1e3


def worth_factor(spent: float, passed: float) -> float:
    """Return what to multiply the worth by: (share of the cap left / share of the day left) squared.

    ``spent``: the share of the cap that is spent; ``passed``: the share of the day that has passed. Between 0.001 and
    1,000. Raises ValueError for a negative share or a day that is over.

    >>> worth_factor(0.5, 0.5), worth_factor(0.75, 0.5), worth_factor(0.5, 0.75)
    (1.0, 0.25, 4.0)
    """
    if not spent >= 0.0 or not 0.0 <= passed < 1.0:
        msg = f"a share of {spent} of a cap, at {passed} of a day"
        raise ValueError(msg)
    left = max(0.0, 1.0 - spent) / (1.0 - passed)
    return float(min(max(left**EXPONENT, LEAST), MOST))
