"""Speculative cascades: the local model's law where it is good enough, the cloud's where it is not, sampled exactly.

Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding" (arXiv:2405.19261): a deferral rule says at each
position which of the two laws is the target, and speculative sampling draws from that target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.policy.choices import SPAN, Choices, Preset, number
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import DraftedSpan, TailDraw, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.rules.exact import law_of, thinned
from hybrid.policy.target_sampler import UNDETERMINED, TargetSampler, as_token, check_drawable
from hybrid.prob import Dense, TopK, total_variation

Deferral: TypeAlias = Literal["chow", "diff", "opt"]
ALPHA = 0.2


@dataclass(frozen=True)
class CascadeDeferral:
    """Defer to the cloud where the local row's best probability is too small; else the drafted token stands.

    With rows p of the cloud and q of the local model at temperature 1: ``chow`` where max q < 1 - alpha, ``diff`` where
    max q < max p - alpha, ``opt`` where max q < max p - alpha * TV(p, q), with the largest TV that the list allows, so
    that a deferral is certain. (The list alone: a rule that looked at the drafted token would bias the law.) No bonus:
    its token would be the cloud's where the rule may not defer.

    Law: at each position the cloud's law where the rule defers, the local model's where it does not.
    """

    drawing: TargetSampler
    alpha: float = ALPHA
    deferral: Deferral = "opt"

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge token by token; the first that is replaced ends the span."""
        for i, (held, row) in enumerate(case.judged):
            if held.draft_row is None or not self.defers(row, held.draft_row):
                continue
            why = f"deferred ({self.deferral})"
            sides = self.drawing.sides(row, law_of(held))
            if sides is None:
                return Verdict(case.accepted(i), TailDraw(why=UNDETERMINED), rejected=True, why=UNDETERMINED)
            if (replaced := thinned(case, i, sides, held)) is not None:
                then = as_token(sides, replaced, row, held.draft_row, "recovered", why)
                return Verdict(case.accepted(i), then, rejected=True, why=why)
        return Verdict(case.accepted(), ahead=case.ahead())

    def defers(self, row: TopK, local: Dense) -> bool:
        """Whether the position is the cloud's."""
        best = math.exp(local.top(1)[0][1])
        if self.deferral == "chow":
            return best < 1.0 - self.alpha
        slack = 1.0 if self.deferral == "diff" else total_variation(row.listed, local).upper
        return best < float(row.probs[0]) - self.alpha * slack


def _build(choices: Choices) -> Policy:
    check_drawable("cascade", choices.sampling, choices.cloud_top_k)
    judge = CascadeDeferral(
        TargetSampler(choices.sampling), number("a deferral cost", choices.threshold, ALPHA, most=1.0)
    )
    return Policy("cascade", choices.span or SPAN, ALWAYS, judge, tails=not choices.greedy)


CASCADE = Preset(
    "cascade",
    "draw from the cloud's law where the local model is not confident enough beside it, else locally",
    source="speculative cascades, rule OPT (arXiv:2405.19261)",
    guarantee="at each position exactly one of the two models' laws, as the deferral rule says",
    build=_build,
)
