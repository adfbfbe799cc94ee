"""Block verification: one decision for the whole span, exact, and never fewer tokens than one decision for each.

Sun et al. 2024 (arXiv:2403.10444), on the symbols that a row shows, as ``exact.py``. The block ends before a row that
does not determine the cloud's law, and with a token outside the list: both depend on the prefix alone, or on the token
that ends it, so they are leaves of the tree of drafts like any other end of a span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.policy.choices import HOLD, SPAN, Choices, Preset
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import DraftedSpan, TailDraw, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.rules.exact import REPLACED, law_of, with_bonus
from hybrid.policy.target_sampler import UNDETERMINED, TargetSampler, as_token, check_drawable
from hybrid.prob import Coarse, Floats


@dataclass(frozen=True)
class BlockVerification:
    """Keep the longest prefix that its own coin keeps; then draw from what p, scaled, has more than q there.

    Law: the text has the cloud model's own law under the user's sampling. The expected number of kept tokens is at
    least that of ``ExactSampling``.
    """

    drawing: TargetSampler

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge the span as a whole."""
        sides: list[Coarse] = []
        for held, row in case.judged:
            side = self.drawing.sides(row, law_of(held))
            if side is None:
                break
            sides.append(side)
            if side.token(side.symbol(held.id)) is None:
                break
        weights = _weights(case, sides)
        kept = 0
        for i in range(1, len(sides) + 1):
            chance = weights[i] if i == len(sides) else _stays(weights[i], sides[i])
            if case.draw(np.array([chance, 1.0 - chance]), i - 1, "accept") == 0:
                kept = i
        if kept < len(sides):
            return self._replaced(case, kept, sides[kept], weights[kept])
        return self._whole(case, sides)

    def _replaced(self, case: DraftedSpan, kept: int, sides: Coarse, weight: float) -> Verdict:
        held, row = case.judged[kept]
        symbol = case.draw(_left_over(weight, sides), kept, "residual")
        then = as_token(sides, symbol, row, held.draft_row, "recovered", REPLACED)
        return Verdict(case.accepted(kept), then, rejected=True, why=REPLACED)

    def _whole(self, case: DraftedSpan, sides: list[Coarse]) -> Verdict:
        """Keep the block to its end; what ended it says what follows."""
        if sides and (last := sides[-1]).token(last.symbol(case.span[len(sides) - 1].id)) is None:
            tail = TailDraw(frozenset(last.ids.tolist()), REPLACED)
            return Verdict(case.accepted(len(sides) - 1), tail, rejected=True, why=REPLACED)
        if len(sides) < len(case.judged):
            left = self.drawing.left(law_of(case.span[len(sides)]))
            return Verdict(case.accepted(len(sides)), left, rejected=True, why=UNDETERMINED)
        return with_bonus(case, self.drawing)


def _weights(case: DraftedSpan, sides: list[Coarse]) -> list[float]:
    """Return p_0 .. p_n: how much of the target's law each prefix of the draft can carry, at most 1."""
    weights = [1.0]
    for held, side in zip(case.span, sides, strict=False):
        symbol = side.symbol(held.id)
        weights.append(min(1.0, weights[-1] * float(side.target[symbol]) / float(side.draft[symbol])))
    return weights


def _stays(weight: float, following: Coarse) -> float:
    """Return the chance of a prefix that is not the whole draft, given that no longer one is kept."""
    over = float(np.maximum(weight * following.target - following.draft, 0.0).sum())
    whole = over + (1.0 - weight)  # in this order a prefix that carries all stays for certain, to the last digit
    return over / whole if whole > 0.0 else 1.0


def _left_over(weight: float, sides: Coarse) -> Floats:
    """Return max(0, weight * p - q), normalised. Nothing left over is never drawn from; then it is p itself."""
    left = np.maximum(weight * sides.target - sides.draft, 0.0)
    total = left.sum()
    return left / total if total > 0.0 else sides.target


def _build(choices: Choices) -> Policy:
    check_drawable("block", choices.sampling, choices.cloud_top_k)
    judge = BlockVerification(TargetSampler(choices.sampling))
    tails = not choices.greedy
    return Policy("block", choices.span or SPAN, ALWAYS, judge, bonus=True, tails=tails, writes_on=HOLD)


BLOCK = Preset(
    "block",
    "as exact, with one decision for the whole span: at least as many tokens are kept",
    source="block verification (arXiv:2403.10444), from a top-k list",
    guarantee="the cloud model's law, exactly, as exact",
    build=_build,
    exact=True,
)
