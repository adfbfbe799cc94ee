"""Acceptance rules written down as their formulas over a full list of probabilities: oracles of ``tests/prob``."""

from __future__ import annotations

import math

from hypothesis import assume
from hypothesis import strategies as st
from naive_divergence import FAR_APART, TIED, law

from hybrid.prob import (
    AdditiveAcceptance,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopMAcceptance,
    TypicalAcceptance,
)

MARGINS = st.floats(0.0, 0.95)
SHARES = st.floats(0.02, 1.0)
COUNTS = st.integers(1, 8)
RULES = st.one_of(
    st.just(GreedyAcceptance()),
    st.builds(AdditiveAcceptance, MARGINS),
    st.builds(MultiplicativeAcceptance, SHARES),
    st.builds(TopMAcceptance, COUNTS),
    st.builds(TypicalAcceptance, SHARES, st.floats(0.02, 2.0)),
)


def targets(min_size=1):
    """Rows of at most ten tokens, ties and zeros and tokens far apart among them."""
    return st.lists(TIED | FAR_APART, min_size=min_size, max_size=10).filter(any).map(law)


@st.composite
def cases(draw, min_size=1):
    """A target, and a rule whose threshold often lies a thousandth beside some token, where a slip would show."""
    probs = (target := draw(targets(min_size))).probs.tolist()
    rule = draw(RULES)
    if len(probs) > 1 and draw(st.booleans()):
        best, *others = sorted(probs, reverse=True)
        limit = draw(st.sampled_from(others)) * draw(st.sampled_from([0.999, 1.001]))
        assume(1e-6 < limit < best)
        near = (
            AdditiveAcceptance(best - limit),
            MultiplicativeAcceptance(limit / best),
            TypicalAcceptance(limit, 99),
            TypicalAcceptance(1, limit * perplexity(probs)),
        )
        rule = draw(st.sampled_from(near))
    assume(not undecided(probs, rule))
    return target, rule


def perplexity(probs):
    return math.exp(-math.fsum(p * math.log(p) for p in probs if p > 0))


def best_first(probs):
    return sorted(range(len(probs)), key=lambda i: (-probs[i], i))


def threshold(probs, rule):
    """Return the least probability that is enough."""
    match rule:
        case AdditiveAcceptance(margin):
            return max(probs) - margin
        case MultiplicativeAcceptance(share):
            return max(probs) * share
        case TypicalAcceptance(epsilon, delta):
            return min(epsilon, delta / perplexity(probs))


def accepted(probs, rule):
    """Return the tokens that the rule accepts. At a threshold rounding may decide: see ``undecided``."""
    ranked = best_first(probs)
    if isinstance(rule, GreedyAcceptance | TopMAcceptance):
        return set(ranked[: getattr(rule, "m", 1)])
    enough = threshold(probs, rule)
    return {ranked[0]} | {i for i in ranked if probs[i] >= enough}


def undecided(probs, rule):
    """Whether some token stands so close to the threshold that the last digit decides."""
    limit = threshold(probs, rule)
    return limit is not None and min(abs(p - limit) for p in probs) < 1e-12


def rejected(probs, rule):
    return sorted(set(range(len(probs))) - accepted(probs, rule))
