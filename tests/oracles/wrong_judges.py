"""Judges that look right and are wrong: what a test of exactness must turn down."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybrid.policy.judges import Verdict, best_of
from hybrid.policy.target_sampler import TargetSampler
from hybrid.prob import accept_prob, coarse, residual


@dataclass(frozen=True)
class AcceptsEverything:
    drawing: TargetSampler

    def __call__(self, case):
        return Verdict(case.accepted())


@dataclass(frozen=True)
class ForgetsTheTail:
    """Draws from the listed tokens alone: the residual, and the row after, renormalised on the top k."""

    drawing: TargetSampler

    def __call__(self, case):
        for i, (held, row) in enumerate(case.judged):
            sides = coarse(row, held.drawn_from)
            chance = float(accept_prob(sides.target, sides.draft)[sides.symbol(held.id)])
            if case.draw(np.array([chance, 1 - chance]), i, "accept") == 1:
                left = residual(sides.target, sides.draft)[:-1]
                left = left / left.sum() if left.sum() > 0 else np.full(left.size, 1 / left.size)
                token = int(sides.ids[case.draw(left, i, "residual")])
                then = replace(best_of(row, held.draft_row, "recovered", "wrong"), id=token)
                return Verdict(case.accepted(i), then, rejected=True, why="wrong")
        row = case.next_row
        if row is None:
            return Verdict(case.accepted())
        listed = row.probs[: row.num_listed]
        token = int(row.ids[case.draw(listed / listed.sum(), len(case.span), "bonus")])
        return Verdict(case.accepted(), replace(best_of(row, None, "bonus"), id=token))
