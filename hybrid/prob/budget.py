"""A law between target and draft: as close to the draft as a budget of KL allows.

The law. Among all r with KL(target || r) <= budget, ``project_within_budget`` returns one that keeps the most drafts:
the largest sum of min(draft, r). It has the form ``target * clip(draft / target, a, b)`` with a <= 1 <= b (Tran-Thien
2023, "mentored decoding"; by the KKT conditions). Speculative sampling against r instead of the target then costs at
most the budget at each position, and over T positions at most T of them (chain rule). ``tests/prob/test_budget.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.prob.distribution import Dense, Floats
from hybrid.prob.divergence import kl
from hybrid.prob.levels import bisect


def project_within_budget(target: Floats, draft: Floats, budget: float) -> Floats:
    """Return the law closest to the draft within ``budget`` nats of KL from the target. Shapes (V,), (V,) -> (V,).

    A budget of 0 gives the target, one of KL(target || draft) or more the draft.

    >>> target, draft = np.array([0.55, 0.25, 0.1, 0.05, 0.05]), np.array([0.3, 0.2, 0.3, 0.15, 0.05])
    >>> kept = [np.minimum(project_within_budget(target, draft, nats), draft).sum() for nats in (0, 0.01, 0.2)]
    >>> np.round(kept, 3).tolist()
    [0.7, 0.755, 0.983]
    """
    if not budget > 0.0:
        return target.copy()

    def exceeds_budget(law: Floats) -> bool:
        return kl(Dense.from_probs(target), Dense.from_probs(law)) > budget

    if not exceeds_budget(draft):
        return draft.copy()
    law = _compromises(target, draft)
    most = float(np.maximum(target - draft, 0.0).sum())
    return law(bisect(lambda refused: exceeds_budget(law(refused)), 0.0, most))


def _compromises(target: Floats, draft: Floats) -> Callable[[float], Floats]:
    """Return the laws from the draft (0) to the target (their total variation), by the mass refused to the draft.

    That mass is taken where the draft has most for the target's one, down to common odds b, and given where it has
    least, up to common odds a. Between two tokens' odds the mass is linear in a and b, so both are read off a polyline.
    What the target excludes goes first, all of it by the same share.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        odds = draft / target
    possible = np.isfinite(odds)
    foreign = float(draft[~possible].sum())
    knots = np.append(odds[possible], 1.0)  # both polylines end at odds of one
    order = np.argsort(knots)
    knots = knots[order]
    p, q = (np.append(law[possible], 0.0)[order] for law in (target, draft))
    given = knots * np.cumsum(p) - np.cumsum(q)
    taken = np.cumsum(q[::-1]) - knots[::-1] * np.cumsum(p[::-1])

    def law(refused: float) -> Floats:
        low = min(1.0, np.interp(refused, given, knots))
        high = max(1.0, np.interp(max(0.0, refused - foreign), taken, knots[::-1]))
        between = draft * max(0.0, 1.0 - refused / foreign) if foreign > 0.0 else np.zeros_like(draft)
        between[possible] = target[possible] * np.clip(odds[possible], low, high)
        return between

    return law
