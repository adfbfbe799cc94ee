"""What every divergence here is made of: one event's share, and an interval.

A divergence is a sum over events, tokens or sets of them; a term is what one event adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybrid.prob.distribution import Floats

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
