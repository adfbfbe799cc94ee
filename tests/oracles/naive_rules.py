"""Acceptance rules written down as their formulas over a full list of probabilities: oracles of ``tests/prob``."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from hybrid.prob import Additive, Greedy, Multiplicative, TopM, Typical

MARGINS = st.floats(0.0, 0.95)
SHARES = st.floats(0.02, 1.0)
COUNTS = st.integers(1, 8)
RULES = st.one_of(
    st.just(Greedy()),
    st.builds(Additive, MARGINS),
    st.builds(Multiplicative, SHARES),
    st.builds(TopM, COUNTS),
    st.builds(Typical, SHARES, SHARES),
)


def best_first(probs):
    return sorted(range(len(probs)), key=lambda i: (-probs[i], i))


def threshold(probs, rule):
    """Return the least probability that is enough."""
    match rule:
        case Additive(margin):
            return max(probs) - margin
        case Multiplicative(share):
            return max(probs) * share
        case Typical(epsilon, delta):
            entropy = -math.fsum(p * math.log(p) for p in probs if p > 0)
            return min(epsilon, delta * math.exp(-entropy))


def accepted(probs, rule):
    """Return the tokens that the rule accepts. At a threshold rounding may decide: see ``undecided``."""
    ranked = best_first(probs)
    if isinstance(rule, Greedy | TopM):
        return set(ranked[: getattr(rule, "m", 1)])
    enough = threshold(probs, rule)
    return {ranked[0]} | {i for i in ranked if probs[i] >= enough}


def undecided(probs, rule):
    """Whether some token stands so close to the threshold that the last digit decides."""
    limit = threshold(probs, rule)
    return limit is not None and min(abs(p - limit) for p in probs) < 1e-12


def rejected(probs, rule):
    return sorted(set(range(len(probs))) - accepted(probs, rule))
