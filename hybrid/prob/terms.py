"""What every divergence here is made of: one event's share, and an interval.

A divergence is a sum over events, tokens or sets of them; a term is what one event adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybrid.prob.distribution import Floats

__all__ = [
    "HALVINGS",
    "REACH",
    "ROUNDING",
    "DivergenceTerm",
    "Interval",
    "bisect",
    "fill_to_mass",
    "forward",
    "kl_in_boxes",
]


# Mass below this is rounding (see ``TopK.tail``): no proof that a token is possible which the draft excludes.
ROUNDING = 1e-6

# What tokens of these log-probabilities under target and draft add to a divergence, elementwise. Twice the
# probabilities give twice the term, so tokens of the same odds may be taken together.
DivergenceTerm: TypeAlias = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True)
class Interval:
    """A value known only to lie between two bounds, of two rows that may be off by ``noise`` nats, added up.

    Where the draft's shift was measured, its part is what moves this value as far as the shift does.
    """

    lower: float
    upper: float
    noise: float = 0.0


def forward(log_target: Floats, log_draft: Floats) -> Floats:
    """Return p ln(p/q): nothing where the target has nothing, infinite where the draft alone has nothing."""
    probs = np.exp(log_target)  # of a log-probability of -800 nothing is left, and 0 * inf is no number
    ratio = np.subtract(log_target, log_draft, out=np.zeros_like(probs), where=probs > 0.0)
    return probs * ratio


# Levels: the one number at which a sum that only grows reaches what is asked of it.
#
# The law: what is poured keeps its bounds and, where they leave room, sums to the mass; it is the point between those
# bounds that every f-divergence from the shape is least at (``tests/prob/test_boxes.py``). Why: where no bound
# binds, the stationarity of ``sum of q f(p/q)`` under a fixed sum makes ``p/q`` one number, the level.

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


# KL where the masses of some events are only known to lie between two bounds each: boxes that the true ones meet.
#
# The law: whatever masses the two distributions have, if each lies within its bounds and each side sums to one, their
# KL lies in the interval (``tests/prob/test_boxes.py`` holds it against random masses and a fine grid). Without bounds
# on the draft the lower end is attained; the upper end is passed by no more than one event's share of it.
#
# Why. ``KL = sum of p ln(p/q) - p + q`` as both sides sum to one, and each of these terms is convex in p and q and at
# least nothing. So the least sum needs one number: each p is its lower bound, its upper bound, or a level times a bound
# of q (``fill_to_mass``). The greatest is at a corner: a convex term lies below its chord, and on chords mass goes
# where they are steepest.


def kl_in_boxes(low: Floats, high: Floats, draft_low: Floats, draft_high: Floats | None = None) -> Interval:
    """Bound KL(target || draft) over C disjoint events that are all there is, in nats; shapes (C,), probabilities.

    ``low``, ``high``: the target's masses lie between them; one at least of what is between them sums to one.
    ``draft_low``, ``draft_high``: the draft's; without the second the first is exact.
    """
    draft_high = draft_low if draft_high is None else draft_high
    near = (_but_for_rounding(low, draft_high), _but_for_rounding(high, draft_high))
    nearest = _nearest(*near, draft_low, draft_high)
    lower = max(0.0, float(_term(nearest, np.clip(nearest, draft_low, draft_high)).sum()))
    if float(nearest.sum()) < 1.0 - 2.0 * ROUNDING:  # the rest can only be where the draft has nothing
        lower = np.inf
    far = (_but_for_rounding(low, draft_low), _but_for_rounding(high, draft_low))
    return Interval(lower, max(lower, _farthest(*far, draft_low, draft_high)))


def _but_for_rounding(masses: Floats, draft: Floats) -> Floats:
    """Return the target's masses, without the last digits of a difference where the draft has nothing at all."""
    excluded = draft <= 0.0
    kept: Floats = np.where(excluded, 0.0, masses) if float(masses[excluded].sum()) <= ROUNDING else masses
    return kept


def _nearest(low: Floats, high: Floats, draft_low: Floats, draft_high: Floats) -> Floats:
    """Return the target's masses that are nearest to what the draft may have."""
    least, most = np.clip(draft_low, low, high), np.clip(draft_high, low, high)
    if least.sum() <= 1.0 <= most.sum():  # apart from the draft only where the boxes are
        between = most - least
        masses: Floats = least + between * ((1.0 - least.sum()) / between.sum() if between.any() else 0.0)
        return masses
    with np.errstate(divide="ignore"):
        shape = np.log(draft_low if least.sum() > 1.0 else draft_high)
        poured: Floats = np.exp(fill_to_mass(shape, np.log(low), np.log(high), 1.0))
    return poured


def _term(target: Floats, draft: Floats) -> Floats:
    """Return what each event adds: p ln(p/q) - p + q, nothing where both are the same."""
    with np.errstate(divide="ignore"):
        added: Floats = forward(np.log(target), np.log(draft)) - target + draft
    return added


def _farthest(low: Floats, high: Floats, draft_low: Floats, draft_high: Floats) -> float:
    """Return the greatest sum along the chords."""
    at_low, at_high = (np.maximum(_term(each, draft_low), _term(each, draft_high)) for each in (low, high))
    value = float(at_low.sum())
    if not np.isfinite(value):
        return value
    room = np.maximum(high - low, 0.0)
    left = max(0.0, 1.0 - float(low.sum()))
    gain = np.subtract(at_high, at_low, out=np.zeros_like(room), where=room > 0.0)
    slope = np.divide(gain, room, out=np.full_like(gain, -np.inf), where=room > 0.0)
    for event in np.argsort(-slope):
        share = min(left, float(room[event]))
        if share > 0.0:
            value += float(slope[event]) * share
            left -= share
    return value
