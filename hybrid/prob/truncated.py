"""KL where neither side is known in full: two models behind endpoints, each showing a top k.

The law. The estimate is never above the lower end, and that never above the KL of any two full distributions that show
these rows; the lower end is attained, if the tokens that neither shows have room for what is left. Nothing bounds it
from above: what the draft does not show it may exclude (``tests/prob/test_truncated.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.prob.distribution import Floats, TopK
from hybrid.prob.divergence import log_mass, pooled_term
from hybrid.prob.terms import REACH, ROUNDING, bisect, fill_to_mass, forward
from hybrid.types import Divergence


@dataclass(frozen=True)
class _TruncatedSide:
    """What one side shows of the tokens that the other hides, and how much it hides itself, under which cap."""

    shown: Floats
    mass: float
    log_cap: float

    def capped(self, log_wanted: Floats) -> Floats:
        """Return wanted log-probabilities of hidden tokens, none above the cap."""
        return np.minimum(self.log_cap, log_wanted)

    def left(self, log_hidden: Floats) -> float:
        """Return what these hidden tokens leave of the mass."""
        return self.mass - float(np.exp(log_hidden).sum())


def kl_both_truncated(target: TopK, draft: TopK, num_tokens: int) -> Divergence:
    """Return estimate and lower end of KL(target || draft) over ``num_tokens`` ids, in nats; the upper end is infinite.

    The estimate takes all tokens but the common ones together. The lower end uses the caps, too: what only the target
    shows has at most the draft's cap in the draft, and the other way round. Where all tokens are common it is known.
    """
    common, of_target, of_draft = np.intersect1d(target.ids, draft.ids, assume_unique=True, return_indices=True)
    known = float(np.sum(forward(target.logprobs[of_target], draft.logprobs[of_draft])))
    num_rest = max(0, num_tokens - target.ids.size - draft.ids.size + common.size)
    ours, theirs = np.delete(target.logprobs, of_target), np.delete(draft.logprobs, of_draft)
    left = _truncated_side(target, ours, theirs.size + num_rest, 0.0)
    # The draft stands below the fraction line: that it hides nothing is not to be believed of rounded numbers.
    right = _truncated_side(draft, theirs, ours.size + num_rest, ROUNDING)
    masses = left.mass + float(np.exp(ours).sum()), right.mass + float(np.exp(theirs).sum())
    estimate, noise = known + pooled_term(forward, *masses), target.noise + draft.noise
    if common.size == num_tokens:
        return Divergence(estimate, estimate, estimate, noise)
    return Divergence(estimate, max(estimate, known + _least(left, right, num_rest)), np.inf, noise)


def _truncated_side(row: TopK, shown: Floats, num_hidden: int, least: float) -> _TruncatedSide:
    """Take the caps for wrong where rounding left more mass than they have room for."""
    if not num_hidden:
        return _TruncatedSide(shown, 0.0, -np.inf)
    mass = max(row.tail, min(least, row.cap * num_hidden))
    return _TruncatedSide(shown, mass, log_mass(max(row.cap, mass / num_hidden)))


def _least(target: _TruncatedSide, draft: _TruncatedSide, num_rest: int) -> float:
    """Least of sum p ln(p/q) over all but the common tokens.

    The rest, which neither shows, has any odds p/q; at the best ones no mass gains by moving to or from it on either
    side. So the same odds hold wherever no cap binds: one level, found by halving.
    """

    def hidden(level: float) -> tuple[Floats, Floats]:
        return target.capped(draft.shown + level), draft.capped(target.shown - level)

    def too_low(level: float) -> bool:
        of_target, of_draft = hidden(level)
        return log_mass(target.left(of_target)) > log_mass(draft.left(of_draft)) + level

    level = bisect(too_low, -REACH, REACH) if num_rest else 0.0
    of_target, of_draft = hidden(level)
    rest = target.left(of_target) if num_rest else 0.0
    if not rest > 0.0:  # nothing is left for the rest, and each side keeps to what the other shows
        of_target = fill_to_mass(draft.shown, -np.inf, target.log_cap, target.mass)
        of_draft = fill_to_mass(target.shown, -np.inf, draft.log_cap, draft.mass)
    only_one_side = float(np.sum(forward(target.shown, of_draft))) + float(np.sum(forward(of_target, draft.shown)))
    return only_one_side + max(0.0, rest) * level
