"""A stream of questions that a learner decides one after the other, from labels that were made once.

Each question is known with both models' answers and the verdicts on them, so that a stream costs no model. What an
action leads to follows from these: a check shows the verdict, and what is turned down is right where the cloud's own
answer is; a write from inside the draft keeps what is turned down before it. On the bundled pair such outcomes were
within 0.01 of answers that were really written, in RPI and bill. The planner and the learner are the product's, and so
is what a label costs: nothing but the request that it came with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hybrid.defer import (
    Calibration,
    DraftOutcome,
    DraftSignals,
    LabelledQuestion,
    OnlineLearner,
    PriorScore,
    floor_coin,
)
from hybrid.lab.experiments.decisions import KeptForecasts
from hybrid.lab.experiments.tariffs import PRICES, PriceSetting, TokenPrices, ask_prices
from hybrid.policy.explanation import plan_bill
from hybrid.policy.plan import DraftPlan, PlanAction, Worth
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


@dataclass(frozen=True)
class DecidedQuestion:
    """What was done with a question: its bill and the cloud's alone, in prompt tokens, and who is right.

    ``lost``: its draft was kept and would have been turned down.
    """

    question: TaughtQuestion
    action: PlanAction
    paid: float
    alone: float
    right: bool
    lost: bool


@dataclass(frozen=True)
class StreamChoice:
    """How a stream decides. ``multiple``: the worth, in each answer's own price; ``amount``: in prompt tokens, for all.

    ``risk``: a level instead of a worth. ``frozen``: nothing is learned, as with ``--no-learn``.
    """

    setting: PriceSetting
    multiple: float = 2.2
    amount: float | None = None
    risk: float | None = None
    frozen: bool = False
    seed: int = 0
    token_prices: TokenPrices = PRICES[0]

    @property
    def prices(self) -> AskPrices:
        """What the setting charges."""
        return ask_prices(self.setting, self.token_prices)


@dataclass
class LearningStream:
    """A learner and what it decided so far. ``calibration``: None for a pair that nobody measured."""

    choice: StreamChoice
    judge: str
    calibration: Calibration | None = None
    decided: list[DecidedQuestion] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with what is known of the pair."""
        fitted = PriorScore(self.judge) if self.calibration is None else self.calibration.score
        self._base = KeptForecasts(fitted)
        self.learner = OnlineLearner(self._base, (), self.calibration)

    def run(self, questions: Iterable[TaughtQuestion]) -> list[DecidedQuestion]:
        """Decide questions in their order; return what was done with these."""
        before = len(self.decided)
        for question in questions:
            self.decide(question)
        return self.decided[before:]

    def decide(self, question: TaughtQuestion, worth_factor: float = 1.0, left: float | None = None) -> DecidedQuestion:
        """Decide the next question, and learn from what is heard of it.

        ``worth_factor``: pacing's. ``left``: the money that is left; what costs more is not asked.
        """
        planner = self._planner(question, worth_factor)
        signals = question.signals
        plan = planner.plan(signals, final=True)
        chance = plan.costs.turned_down if plan.costs else 0.0
        keeps, floor = plan.action == "keep", 0.0 if self.choice.frozen else self.learner.floor
        if keeps and floor_coin(self.choice.seed, len(self.decided)) < floor:
            plan = replace(plan, action="check", at=len(signals))
        decided = outcome(question, plan, self.choice.prices)
        if left is not None and decided.paid > left:
            plan = replace(plan, action="keep", at=len(signals))
            decided = outcome(question, plan, self.choice.prices)
        self.decided.append(decided)
        if not self.choice.frozen:
            verdicts = {"keep": None, "check": _turned_down(question), "write": question.written_turned_down}
            learned = DraftOutcome.of(
                signals,
                told=self._base.forecast(signals).turned_down,
                chance=chance,
                keeps=keeps,
                floor=floor,
                turned_down=verdicts[plan.action],
                whole_cost=plan.costs.alone if plan.costs else 0.0,
                cutoff=planner.keep_below,
                score=self.learner.digest,
            )
            self.said += self.learner.add([learned])
        return decided

    def _planner(self, question: TaughtQuestion, worth_factor: float) -> Planner:
        choice, learner = self.choice, self.learner
        prices, prompt = choice.prices, question.signals.prompt_tokens
        worth, mean_excess = Worth(choice.multiple * worth_factor), None
        if learner.loss == "nats":  # of a pair that nobody measured: half the bill
            alone = float(prices.write(prompt, learner.score.before(question.signals.words, prompt).tokens, 0))
            worth, mean_excess = Worth(amount=worth_factor * learner.worth_at_half_bill(alone)), 1.0
        elif choice.amount is not None:
            worth = Worth(amount=choice.amount * worth_factor)
        return Planner(
            score=learner.score if choice.risk is None else learner.risk_score,
            prices=prices,
            worth=worth,
            words=question.signals.words,
            prompt_tokens=prompt,
            mean_excess=mean_excess,
            keep_below=None if choice.risk is None else learner.risk_cutoff(choice.risk),
            labels=False,
        )


def outcome(question: TaughtQuestion, plan: DraftPlan, prices: AskPrices) -> DecidedQuestion:
    """Return what a plan leads to."""
    prompt, written = question.signals.prompt_tokens, question.labelled.cloud_tokens
    first = question.labelled.draft.first_rejection
    written_right = plan.action == "write" and (first is None or first >= plan.at)
    mended = written_right or (plan.action == "check" and first is not None)
    paid, alone = plan_bill(plan, prices, prompt, written, first), float(prices.write(prompt, written, 0))
    right = question.cloud_right if mended else question.local_right
    return DecidedQuestion(question, plan.action, paid, alone, right, plan.action == "keep" and first is not None)


def _turned_down(question: TaughtQuestion) -> bool:
    return question.labelled.draft.first_rejection is not None


@dataclass(frozen=True)
class StreamFigures:
    """What a part of a stream came to. ``rpi`` None: the two models are right alike there."""

    rpi: float | None
    bill: float
    kept: float
    num: int

    @classmethod
    def of(cls, decided: Sequence[DecidedQuestion]) -> StreamFigures:
        """Count what was decided; at least one question."""
        local, cloud, right = (
            float(np.mean(values))
            for values in (
                [each.question.local_right for each in decided],
                [each.question.cloud_right for each in decided],
                [each.right for each in decided],
            )
        )
        bill = sum(each.paid for each in decided) / sum(each.alone for each in decided)
        kept = float(np.mean([each.action == "keep" for each in decided]))
        return cls((right - local) / (cloud - local) if cloud != local else None, bill, kept, len(decided))
