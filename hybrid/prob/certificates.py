"""How far a draft must be from the target before an acceptance rule can reject its favourite token.

The law. A certificate is the infimum of a divergence over all drafts whose most likely token (ties: the worst of them)
the rule rejects. So a position whose divergence (of an interval: its upper end) is below its certificate is never
rejected, and no larger number can promise that. From a top-k row it is exact where the likeliest rejected token is
listed, else a lower bound.
``tests/prob/test_certificates.py`` holds it against a convex solver and against drafts on either side of the boundary.

The quantity and its direction, KL(target || draft), are A. Sharma's ("When Is a Draft Accepted?", 2026,
arXiv:2606.30265); the formulas are derived here. They rest on one lemma: a token draws level with others at the least
cost by pooling with those farthest from it, and the pool shares its mean. It serves both sides: what is least over all
targets, the draft given, is the reverse divergence from the draft's own row. All values in nats, those of ``"tv"`` in
probability. This file must not know where the divergence comes from that is held against a certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from hybrid.prob.acceptance import (
    AcceptanceRule,
    AdditiveAcceptance,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    Row,
    TopMAcceptance,
    TypicalAcceptance,
    check_count,
    top_probs,
)
from hybrid.prob.cells import TextRow
from hybrid.prob.distribution import Dense, Floats, TopK

DivergenceKind: TypeAlias = Literal["forward", "reverse", "tv"]
"""KL(row || other), KL(other || row), total variation: what is least over the other distribution, the row given."""


def certificate(row: Row, rule: AcceptanceRule, measure: DivergenceKind = "forward") -> float:
    """Return the least divergence from a target at which a draft's most likely token can be one the rule rejects.

    Infinite if the rule rejects nothing. Strict greedy needs k = 2 for the exact value.

    >>> round(certificate(Dense.from_probs(np.array([0.6, 0.3, 0.1])), GreedyAcceptance()), 4)
    0.051
    """
    level = rule.rejection_level(row)
    if level is None:
        return np.inf
    ahead = np.sort(row.probs[row.probs > level])[::-1]
    return _LEAST[measure](np.concatenate(([level], ahead)))


def favourite_certificate(row: TopK) -> float:
    """Return the least KL(target || draft) at which a draft's most likely token can be another than the target's.

    For every target within the row's noise. The certificate of ``GreedyAcceptance`` rises with the best probability
    and falls with the second, so it is least with the one as low and the other as high as may be; 0 where they may
    change places.
    """
    if isinstance(row, TextRow):  # its list is for display
        return 0.0
    best, second = (top_probs(row, 2) * np.exp([-row.noise, row.noise])).tolist()
    return _forward(np.array([second, best])) if second < best else 0.0


def tree_certificate(row: Row, m: int, measure: DivergenceKind = "forward") -> float:
    """Return the least divergence from a target at which its best token can be outside a draft's ``m`` likeliest.

    At most ln(m + 1) in the forward direction; infinite for a full row of no more than m tokens. From a top-k row exact
    for k > m, else a lower bound. Raises ValueError for m < 1.
    """
    check_count(m)
    probs = top_probs(row, m + 1)
    return _LEAST[measure](np.concatenate((probs[:1], probs[:0:-1]))) if probs.size > m else np.inf


def margin_certificate(margin: float) -> float:
    """Return the least forward certificate of any row with ``margin`` between its best and its best rejected token.

    ((1 + x) ln(1 + x) + (1 - x) ln(1 - x)) / 2, attained by two tokens alone; at least x^2 / 2. Raises ValueError for a
    margin that is none.

    >>> round(margin_certificate(1.0), 6)
    0.693147
    """
    if not 0.0 <= margin <= 1.0:
        msg = f"a margin in [0, 1], not {margin}"
        raise ValueError(msg)
    rest = (1.0 - margin) * float(np.log1p(-margin)) if margin < 1.0 else 0.0
    return ((1.0 + margin) * float(np.log1p(margin)) + rest) / 2.0


def skip_certificate(draft: Dense, rule: AcceptanceRule) -> float:
    """Return the least KL(target || draft) at which the target can reject the draft's favourite, for any target at all.

    Known before the cloud is asked: where a trusted upper bound of the divergence is below it, asking changes nothing.
    Exact but for ``TypicalAcceptance``, where it is a lower bound: exp(-entropy) is never above p1, so a token with
    delta times the best one's probability is accepted.
    """
    match rule:
        case GreedyAcceptance():
            return tree_certificate(draft, 1, "reverse")
        case TopMAcceptance(m):
            return tree_certificate(draft, m, "reverse")
        case MultiplicativeAcceptance(share):
            return _multiplicative(*top_probs(draft, 2).tolist(), share=share)
        case AdditiveAcceptance(margin):
            return _additive(*top_probs(draft, 2).tolist(), margin=margin)
        case TypicalAcceptance(_, delta):
            return skip_certificate(draft, MultiplicativeAcceptance(min(1.0, delta)))


def _pool(values: Floats) -> tuple[int, float]:
    """How many of the values share their mean, and that mean.

    Shape (N,): the token that must draw level, then those it must meet, all above it or all below, the farthest first.
    One is pooled while it lies beyond the mean so far; so the pool is the prefix whose mean is farthest from the start.
    """
    means = np.cumsum(values) / np.arange(1, values.size + 1)
    last = int(np.abs(means - values[0]).argmax())
    return last + 1, float(means[last])


def _forward(probs: Floats) -> float:
    """Least KL(row || other): the pool shares its arithmetic mean, all else stays."""
    size, mean = _pool(probs)
    pooled = probs[:size][probs[:size] > 0]
    return max(0.0, float(pooled @ np.log(pooled / mean)))


def _reverse(probs: Floats) -> float:
    """Least KL(other || row): the pool shares its geometric mean, and all is normalised.

    Infinite where that leaves nothing. Good to 1e-15 in exp(-value), so to 1e-6 up to 20 nats.
    """
    if not probs[0] > 0.0:
        return np.inf
    with np.errstate(divide="ignore"):
        size, mean = _pool(np.log(probs))
    left = max(0.0, 1.0 - float(probs[:size].sum())) + size * float(np.exp(mean))
    return max(0.0, -float(np.log(left))) if left > 0.0 else np.inf


def _total_variation(probs: Floats) -> float:
    """Least total variation: what the token gains (or loses) to reach the arithmetic mean of the pool."""
    return abs(_pool(probs)[1] - float(probs[0]))


_LEAST: dict[DivergenceKind, Callable[[Floats], float]] = {
    "forward": _forward,
    "reverse": _reverse,
    "tv": _total_variation,
}


def _multiplicative(best: float, second: float = 0.0, *, share: float) -> float:
    """Least KL(other || row) where the row's best token has no more than its share of the second."""
    if not second > 0.0:
        return np.inf
    tilt = float(np.log(best) - np.log(share) - np.log(second)) / (1.0 + share)
    return _tilted(best, second, share * tilt, tilt, 0.0)


def _additive(best: float, second: float = 0.0, *, margin: float) -> float:
    """Least KL(other || row) where the second token is likelier than the row's best by the margin."""
    if not second > 0.0:
        return np.inf
    linear = margin * max(0.0, 1.0 - best - second)
    root = np.hypot(linear, 2.0 * np.sqrt(best) * np.sqrt(second) * np.sqrt(1.0 - margin**2))
    tilt = float(np.log(linear + root) - np.log(2.0 * (1.0 - margin)) - np.log(second))
    return _tilted(best, second, tilt, tilt, margin * tilt)


def _tilted(best: float, second: float, up: float, down: float, gain: float) -> float:
    """KL(other || row) of the row with its second token scaled by e^up and its best by e^-down, normalised.

    ``gain`` is the expectation of the exponent under the outcome.
    """
    total = max(0.0, 1.0 - best - second) + second * np.exp(up) + best * np.exp(-down)
    return max(0.0, gain - float(np.log(total)))
