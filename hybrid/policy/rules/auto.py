"""Ask where it pays, by the price of each question. Preset auto; the rule is in ``policy.planning``.

A draft is kept, checked, or written by the cloud, whichever is expected to cost least. The judge of a check is the one
whose verdict the score forecasts, so that what is planned is what happens.
"""

from __future__ import annotations

from hybrid.defer import DEFAULT_NATS
from hybrid.policy.choices import LONGEST_DRAFT, NumberRange, PolicyOptions, Preset
from hybrid.policy.gates import ALWAYS
from hybrid.policy.planning import Planner
from hybrid.policy.policy import Policy
from hybrid.policy.rules.divergence_threshold import threshold_judge
from hybrid.policy.rules.excess import excess_judge


def _auto(choices: PolicyOptions, nats: float) -> Policy:
    """Judge as the score forecasts; a number that was chosen takes the place of the score's."""
    planner = choices.planner or Planner()
    name, _, number = planner.score.judge.partition(":")
    limit = nats if choices.threshold is not None or not number else float(number.partition(":")[0])
    judge = excess_judge(choices, limit) if name == "excess" else threshold_judge(choices, limit)
    span = choices.span or min(choices.max_tokens, LONGEST_DRAFT)
    return Policy("auto", span, ALWAYS, judge, handoff_tokens=choices.max_tokens, planner=planner)


JUDGED_AT = NumberRange(DEFAULT_NATS, "the judge's threshold in nats, where the calibration's own is not taken")

AUTO = Preset(
    "auto",
    "keep a draft, check it, or let the cloud write: whichever is expected to cost least for this question",
    source="this project: what keeping may lose, beside this endpoint's prices",
    make=_auto,
    number=JUDGED_AT,
)
