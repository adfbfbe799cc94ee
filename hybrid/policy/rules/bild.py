"""BiLD: a small model writes until it is unsure, and the large one rolls its text back where it strongly disagrees.

Kim et al. 2023, "Speculative Decoding with Big Little Decoder" (arXiv:2302.07863): fall-back by the largest local
probability, roll-back by the cross-entropy between the drafted token and the large model's row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hybrid.policy.choices import Choices, Preset, number
from hybrid.policy.gates import MaxProbGate
from hybrid.policy.judges import DraftedSpan, Verdict
from hybrid.policy.loop import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.rules.exact import law_of, with_bonus
from hybrid.policy.target_sampler import TargetSampler, check_drawable
from hybrid.prob import TopK

# The paper's settings differ by task (fall-back 0.3 to 0.9, roll-back 1 to 7 nats); none was fitted here.
FALL_BACK, ROLL_BACK, SPAN = 0.6, 2.0, 10


@dataclass(frozen=True)
class BildRollback:
    """Keep while -ln p(token) is at most ``limit`` nats or the token is the cloud's own; then the cloud's token.

    An unlisted token is turned down only where the list proves that it is too unlikely. Law: at limit 0 the greedy text
    is the cloud model's own; at infinity every drafted token stands.
    """

    limit: float
    drawing: TargetSampler

    def __call__(self, case: DraftedSpan) -> Verdict:
        """Judge token by token; the large model's row after a kept span gives one more."""
        for i, (held, row) in enumerate(case.judged):
            surprise = _least_surprise(row, held)
            if surprise > self.limit and held.id != row.best:
                why = f"rolled back: -ln p is {surprise:.3g} nats, above {self.limit:g}"
                then = self.drawing.token(case, i, held.draft_row or law_of(held), "recovered", why)
                return Verdict(case.accepted(i), then, rejected=True, why=why)
        return with_bonus(case, self.drawing)


def _least_surprise(row: TopK, held: PendingToken) -> float:
    """Return -ln p of a token; of one that is not shown, the least that it can be."""
    shown = row.probs[row.ids == held.id]
    most = float(shown[0]) if shown.size else row.cap
    return -math.log(most) if most > 0.0 else math.inf


def _build(choices: Choices) -> Policy:
    check_drawable("bild", choices.sampling, choices.cloud_top_k)
    judge = BildRollback(
        number("a roll-back limit in nats", choices.threshold, ROLL_BACK), TargetSampler(choices.sampling)
    )
    gate = MaxProbGate(FALL_BACK, "check", "check")
    return Policy("bild", choices.span or SPAN, gate, judge, bonus=True, tails=not choices.greedy)


BILD = Preset(
    "bild",
    "draft until the local model is unsure; the cloud rolls back what it finds too unlikely",
    source="BiLD (arXiv:2302.07863)",
    guarantee="a drafted token stays if it is the cloud's best, or -ln p is at most --threshold (unlisted: may be)",
    build=_build,
)
