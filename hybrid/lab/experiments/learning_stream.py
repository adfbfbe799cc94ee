"""A stream of questions that a learner decides one after the other, from labels that were made once.

Each question is known with both models' answers and the verdicts on them, so that a stream costs no model. What an
action leads to follows from these: a check shows the verdict, and what is turned down is right where the cloud's own
answer is; a write from inside the draft keeps what is turned down before it. On the bundled pair such outcomes were
within 0.01 of answers that were really written, in RPI and bill. The planner and the learner are the product's, and so
is what a label costs: nothing but the request that it came with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hybrid.defer import DraftOutcome, DraftSignals, LabelledQuestion, OnlineLearner, PriorScore, floor_coin
from hybrid.lab.experiments.decisions import KeptForecasts
from hybrid.policy.explanation import plan_bill
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices


@dataclass(frozen=True)
class TaughtQuestion:
    """A question of which everything is known.

    ``labelled``: its draft with the verdict on it, and the length of the cloud's own text. ``written_turned_down``: the
    verdict along that text. ``local_right``, ``cloud_right``: whether each model alone is right.
    """

    kind: str
    labelled: LabelledQuestion
    written_turned_down: bool
    local_right: bool
    cloud_right: bool

    @property
    def signals(self) -> DraftSignals:
        """Those of the draft."""
        return self.labelled.draft.signals


def outcome(question: TaughtQuestion, plan: DraftPlan, prices: AskPrices) -> tuple[bool, float]:
    """Return whether what a plan leads to is right, and its bill in prompt tokens."""
    first, written = question.labelled.draft.first_rejection, question.labelled.cloud_tokens
    written_right = plan.action == "write" and (first is None or first >= plan.at)
    mended = written_right or (plan.action == "check" and first is not None)
    paid = plan_bill(plan, prices, question.signals.prompt_tokens, written, first)
    return question.cloud_right if mended else question.local_right, paid


def decide_stream(
    questions: Iterable[TaughtQuestion], worth: float, prices: AskPrices, judge: str
) -> tuple[list[DraftPlan], OnlineLearner]:
    """Decide questions of a pair that nobody measured, in their order, and learn from what is heard of each.

    ``worth``: of an answer, in its own price.
    """
    base = KeptForecasts(PriorScore(judge))
    learner, plans = OnlineLearner(base, ()), list[DraftPlan]()
    for question in questions:
        signals = question.signals
        planner = _planner(learner, signals, Worth(worth), prices)
        plan, floor = planner.plan(signals, final=True), learner.floor
        keeps, costs = plan.action == "keep", plan.costs
        if keeps and floor_coin(0, len(plans)) < floor:
            plan = replace(plan, action="check", at=len(signals))
        turned_down = question.labelled.draft.first_rejection is not None
        verdicts = {"keep": None, "check": turned_down, "write": question.written_turned_down}
        learned = DraftOutcome.of(
            signals,
            told=base.forecast(signals).turned_down,
            chance=costs.turned_down if costs else 0.0,
            keeps=keeps,
            floor=floor,
            turned_down=verdicts[plan.action],
            whole_cost=costs.alone if costs else 0.0,
            cutoff=planner.keep_below,
            score=learner.digest,
        )
        learner.add([learned])
        plans.append(plan)
    return plans, learner


def _planner(learner: OnlineLearner, signals: DraftSignals, worth: Worth, prices: AskPrices) -> Planner:
    words, prompt, mean_excess = signals.words, signals.prompt_tokens, None
    if learner.loss == "nats":  # of a pair that nobody measured: half the bill
        alone = float(prices.write(prompt, learner.score.before(words, prompt).tokens, 0))
        worth, mean_excess = Worth(amount=learner.worth_at_half_bill(alone)), 1.0
    return Planner(
        score=learner.score,
        prices=prices,
        worth=worth,
        words=words,
        prompt_tokens=prompt,
        mean_excess=mean_excess,
        labels=False,
    )
