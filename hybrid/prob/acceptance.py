"""Speculative rejection sampling: keep a drafted token or replace it, exactly.

The law. Draw x from ``draft``. Keep it with probability ``accept_prob(target, draft)[x]``; otherwise draw from
``residual(target, draft)``. The outcome is distributed as ``target``, whatever ``draft`` was (Leviathan et al. 2023,
arXiv:2211.17192, appendix A.1). ``tests/prob/test_acceptance.py`` checks that sentence, not an example of it.
"""

from __future__ import annotations

import numpy as np

from hybrid.prob.distribution import Floats


def accept_prob(target: Floats, draft: Floats) -> Floats:
    """Chance of keeping each token, had the draft proposed it.

    Shapes (V,), (V,) -> (V,). Tokens the draft cannot propose get 1.0: the value is never used, and 1.0 keeps 0/0
    out of the arithmetic.
    """
    kept = np.ones_like(target)
    np.divide(np.minimum(target, draft), draft, out=kept, where=draft > 0)
    return kept


def residual(target: Floats, draft: Floats) -> Floats:
    """Where a replaced token is drawn from: max(0, target - draft), normalised. Shapes (V,), (V,) -> (V,).

    Equal distributions leave nothing over; a replacement is then never needed, and ``target`` itself is returned.
    """
    left = np.maximum(target - draft, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else target.copy()
