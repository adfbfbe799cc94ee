"""KL where the masses of some events are only known to lie between two bounds each: boxes that the true ones meet.

The law: whatever masses the two distributions have, if each lies within its bounds and each side sums to one, their KL
lies in the interval (``tests/prob/test_boxes.py`` holds it against random masses and a fine grid). Without bounds on
the draft the lower end is attained; the upper end is passed by no more than one event's share of it.

Why. ``KL = sum of p ln(p/q) - p + q`` as both sides sum to one, and each of these terms is convex in p and q and at
least nothing. So the least sum needs one number: each p is its lower bound, its upper bound, or a level times a bound
of q (``levels``). The greatest is at a corner: a convex term lies below its chord, and on chords mass goes where they
are steepest.
"""

from __future__ import annotations

import numpy as np

from hybrid.prob.distribution import Floats
from hybrid.prob.levels import fill_to_mass
from hybrid.prob.terms import ROUNDING, Interval, forward


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


__all__ = ["kl_in_boxes"]
