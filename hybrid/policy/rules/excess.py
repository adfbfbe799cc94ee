"""Accept a token while it costs little more than the cloud's own best: excess loss within a threshold. Preset excess.

Source: this project. A divergence asks how far two distributions are apart, and much of that is wording which costs the
text nothing; excess loss asks what this token costs. It needs the row's best and the token's own log-probability, which
an endpoint tells by name: no tail, and so no interval where the token was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from hybrid.policy.choices import SPAN, NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import ALWAYS, number_text
from hybrid.policy.judges import DraftedSpan, Verdict, draft_distribution
from hybrid.policy.policy import Policy
from hybrid.policy.target_sampler import SamplingJudge, TargetSampler, check_drawable
from hybrid.prob import Interval, excess_loss, excess_with_noise

# On 80 questions to a real pair 23 % of the drafted tokens cost more than half a nat, and those hold 96 % of the loss;
# with a threshold of one nat 18 % are turned down and 82 % of it is recovered.
THRESHOLD = NumberRange(0.5, "a threshold in nats")


@dataclass(frozen=True)
class ExcessThreshold(SamplingJudge):
    """Accept while log P(best) - log P(token) under the cloud's row at temperature 1 is within a threshold in nats.

    The ``lower`` end decides: what is rejected costs more for certain. With ``upper`` what is accepted costs at most
    that for certain, or is the row's best token. Each end is moved outwards by the row's noise, but for threshold 0.
    The first token that costs more ends the span and is replaced by the cloud's, as ``sampler`` draws it.

    Law: the excess loss of the accepted tokens is at most ``threshold`` times their number; greedy, the cloud's own
    tokens cost nothing, so that is the text's. Greedy at 0 it is the cloud's own text but for ties; at infinity the
    local model's.
    """

    takes_bonus: ClassVar[bool] = True
    threshold: float
    sampler: TargetSampler
    end: Literal["lower", "upper"] = "lower"
    reads_text: ClassVar[bool] = True

    @property
    def guarantee(self) -> str:
        """What the end that decides is certain of."""
        limit = f"{self.threshold:g} nats more"
        if self.end == "lower":
            return f"a checked token is rejected only where it costs over {limit} than the cloud's best"
        return f"an accepted token is the cloud's best or costs at most {limit}"

    def __call__(self, span: DraftedSpan) -> Verdict:
        """Judge token by token; the row after an accepted span may give one more."""
        for i, (token, row) in enumerate(span.judged):
            excess = self.deciding(excess_loss(row, token.id))
            if excess > self.threshold and token.id != row.best:
                why = f"excess loss {excess:.3g} nats, above {self.threshold:g}"
                local = token.draft_row or draft_distribution(token)
                recovered = self.sampler.draw(span, i, local, "recovered", why)
                return Verdict(span.accept(i), recovered, rejected=True, why=why)
        return self.accept_all(span)

    def deciding(self, excess: Interval) -> float:
        """Return the end that decides, moved outwards by the noise."""
        end, noise = (excess.lower, -excess.noise) if self.end == "lower" else (excess.upper, excess.noise)
        return excess_with_noise(end, noise if self.threshold > 0.0 else 0.0)

    def __str__(self) -> str:
        """Return what ``--judge`` calls it, and ``strict`` where the upper end decides."""
        return f"excess:{number_text(self.threshold)}{':strict' if self.end == 'upper' else ''}"


def excess_judge(choices: PolicyOptions, nats: float) -> ExcessThreshold:
    """Build the judge for a threshold."""
    return ExcessThreshold(nats, TargetSampler(choices.sampling), "upper" if choices.strict else "lower")


def _excess(choices: PolicyOptions, nats: float) -> Policy:
    check_drawable("excess", choices.sampling, choices.cloud_top_k)
    return Policy("excess", choices.span or SPAN, ALWAYS, excess_judge(choices, nats))


EXCESS = Preset(
    "excess",
    "accept a token that costs at most a threshold more than the cloud's best, else take the cloud's",
    source="this project: the loss of a token itself, not the distance of two distributions",
    make=_excess,
    number=THRESHOLD,
)
