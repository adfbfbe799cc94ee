"""Judges that look right and are wrong: what a test of exactness must turn down."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hybrid.policy.judges import Verdict, take_best
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler
from hybrid.prob import accept_prob, pair_shown, residual


@dataclass(frozen=True)
class AcceptsEverything(SamplingJudge):
    guarantee = "none"
    takes_bonus = True
    sampler: TargetSampler

    def __call__(self, case):
        return Verdict(case.accept())


@dataclass(frozen=True)
class ForgetsTheTail(SamplingJudge):
    """Draws from the listed tokens alone: the residual, and the row after, renormalised on the top k."""

    guarantee = "none"
    takes_bonus = True

    sampler: TargetSampler

    def __call__(self, case):
        for i, (pending, row) in enumerate(case.judged):
            sides = pair_shown(row, pending.drawn_from)
            chance = float(accept_prob(sides.target, sides.draft)[sides.symbol(pending.id)])
            if case.coin(np.array([chance, 1 - chance]), i, "accept") == 1:
                left = residual(sides.target, sides.draft)[:-1]
                left = left / left.sum() if left.sum() > 0 else np.full(left.size, 1 / left.size)
                token = int(sides.ids[case.coin(left, i, "residual")])
                then = replace(take_best(row, pending.draft_row, "recovered", "wrong"), id=token)
                return Verdict(case.accept(i), then, rejected=True, why="wrong")
        row = case.next_target_row
        if row is None:
            return Verdict(case.accept())
        listed = row.probs[: row.num_listed]
        token = int(row.ids[case.coin(listed / listed.sum(), len(case.tokens), "bonus")])
        return Verdict(case.accept(), replace(take_best(row, None, "bonus"), id=token))
