"""BiLD: a small model writes until it is unsure, and the large one rolls its text back where it strongly disagrees.

Kim et al. 2023, "Speculative Decoding with Big Little Decoder" (arXiv:2302.07863): fall-back by the largest local
probability, roll-back by the cross-entropy between the drafted token and the large model's row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hybrid.policy.choices import NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import MaxProbGate, number_text
from hybrid.policy.judges import DraftedSpan, Verdict, draft_distribution
from hybrid.policy.policy import Policy
from hybrid.policy.requests import PendingToken
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler, check_drawable
from hybrid.prob import TopK

# The paper's settings differ by task (fall-back 0.3 to 0.9, roll-back 1 to 7 nats); none was fitted here.
FALL_BACK_PROB, SPAN = 0.6, 10
ROLL_BACK = NumberRange(2.0, "a roll-back limit in nats")


@dataclass(frozen=True)
class BildRollback(SamplingJudge):
    """Accept while -ln p(token) is at most ``limit_nats`` or the token is the cloud's own; then the cloud's token.

    An unlisted token is turned down only where the list proves that it is too unlikely. Law: at limit 0 the greedy text
    is the cloud model's own; at infinity every drafted token is accepted.
    """

    takes_bonus: ClassVar[bool] = True
    limit_nats: float
    sampler: TargetSampler

    @property
    def guarantee(self) -> str:
        """An unlisted token has at most the last listed probability."""
        return f"an accepted token is the cloud's best, or its -ln p is at most {self.limit_nats:g} (unlisted: may be)"

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token; the large model's row after an accepted span gives one more."""
        for i, (token, row) in enumerate(span.judged):
            surprise = _least_surprise_nats(row, token)
            if surprise > self.limit_nats and token.id != row.best:
                why = f"rolled back: -ln p is {surprise:.3g} nats, above {self.limit_nats:g}"
                local = token.draft_row or draft_distribution(token)
                recovered = self.sampler.draw(span, i, local, "recovered", why)
                return Verdict(span.accept(i), recovered, rejected=True, why=why)
        return self.accept_all(span)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return f"bild:{number_text(self.limit_nats)}"


def _least_surprise_nats(row: TopK, token: PendingToken) -> float:
    """Return -ln p of a token; of one that is not shown, the least that it can be."""
    shown = row.probs[row.ids == token.id]
    most = float(shown[0]) if shown.size else row.tail_max
    return -math.log(most) if most > 0.0 else math.inf


def _bild(choices: PolicyOptions, roll_back_nats: float) -> Policy:
    check_drawable("bild", choices.sampling, choices.cloud_top_k)
    judge = BildRollback(roll_back_nats, TargetSampler(choices.sampling))
    return Policy("bild", choices.span or SPAN, MaxProbGate(FALL_BACK_PROB, "check", "check"), judge, bonus=True)


BILD = Preset(
    "bild",
    "draft until the local model is unsure; the cloud rolls back what it finds too unlikely",
    source="BiLD (arXiv:2302.07863)",
    make=_bild,
    number=ROLL_BACK,
)
