"""Speculative cascades: the local model's distribution where it is good enough, the cloud's where it is not.

Narasimhan et al. 2024, "Faster Cascades via Speculative Decoding" (arXiv:2405.19261): a deferral rule says at each
position which of the two distributions is the target, and speculative sampling draws from that target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.policy.choices import SPAN, NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import ALWAYS, number_text
from hybrid.policy.judges import DraftedSpan, TailDraw, Verdict, draft_distribution
from hybrid.policy.policy import Policy
from hybrid.policy.rules.exact import accept_or_replace
from hybrid.policy.target_sampler import UNDETERMINED, SamplingJudge, TargetSampler, check_drawable, to_token
from hybrid.prob import Dense, TopK, total_variation

Deferral: TypeAlias = Literal["chow", "diff", "opt"]
ALPHA = NumberRange(0.2, "a deferral cost", most=1.0)


@dataclass(frozen=True)
class CascadeDeferral(SamplingJudge):
    """Defer to the cloud where the local row's best probability is too small; else the drafted token is accepted.

    With rows p of the cloud and q of the local model at temperature 1: ``chow`` where max q < 1 - alpha, ``diff`` where
    max q < max p - alpha, ``opt`` where max q < max p - alpha * TV(p, q), with the largest TV that the list allows, so
    that a deferral is certain. (The list alone: a rule that looked at the drafted token would bias the text.) It takes
    no bonus: that token would be the cloud's where the rule may not defer.

    Law: at each position the cloud's distribution where the rule defers, the local model's where it does not.
    """

    sampler: TargetSampler
    alpha: float = 0.2
    deferral: Deferral = "opt"

    @property
    def guarantee(self) -> str:
        """Which of the two distributions a position has."""
        rule = f"the rule {self.deferral} (cost {self.alpha:g})"
        return f"a checked token is the local model's, or where {rule} defers as in exact sampling from the cloud's"

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token; the first that is replaced ends the span."""
        for i, (token, row) in enumerate(span.judged):
            if token.draft_row is None or not self.defers(row, token.draft_row):
                continue
            why = f"deferred ({self.deferral})"
            shown = self.sampler.shown_distributions(row, draft_distribution(token))
            if shown is None:
                return Verdict(span.accept(i), TailDraw(why=UNDETERMINED), rejected=True, why=UNDETERMINED)
            if (replaced := accept_or_replace(span, i, shown, token)) is not None:
                recovered = to_token(shown, replaced, row, token.draft_row, "recovered", why)
                return Verdict(span.accept(i), recovered, rejected=True, why=why)
        return Verdict(span.accept(), next_divergence=span.next_divergence())

    def defers(self, row: TopK, local: Dense) -> bool:
        """Whether the position is the cloud's."""
        best = math.exp(local.top(1)[0][1])
        if self.deferral == "chow":
            return best < 1.0 - self.alpha
        slack = 1.0 if self.deferral == "diff" else total_variation(row.listed, local).upper
        return best < float(row.probs[0]) - self.alpha * slack

    def __str__(self) -> str:
        """Return what ``--judge`` calls it."""
        return f"cascade-{self.deferral}:{number_text(self.alpha)}"


def _cascade(choices: PolicyOptions, alpha: float) -> Policy:
    check_drawable("cascade", choices.sampling, choices.cloud_top_k)
    return Policy("cascade", choices.span or SPAN, ALWAYS, CascadeDeferral(TargetSampler(choices.sampling), alpha))


CASCADE = Preset(
    "cascade",
    "draw from the cloud's distribution where the local model is not confident enough beside it, else locally",
    source="speculative cascades, rule OPT (arXiv:2405.19261)",
    make=_cascade,
    number=ALPHA,
)
