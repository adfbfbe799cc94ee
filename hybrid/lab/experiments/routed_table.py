"""What a planner does with drafts of open text: what it recovers, what that costs, how near it is to what was asked.

Every draft of a section is put before the product's planner, under every tariff and dial; the text of what it decides
for is in the record. The dials are read off the calibration's questions, never off these. What no record holds (a check
of a whole draft, a write from within it) counts as written by the cloud alone and is told apart: ``other``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.defer import DEFAULT_JUDGE, Calibration, DraftSignals, PriorScore, RoutedQuestions
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome
from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.decisions import KeptForecasts
from hybrid.lab.experiments.routed_section import SPANS, recorded_signals
from hybrid.lab.experiments.section import CLOUD, LOCAL
from hybrid.lab.experiments.tariffs import PRICES, PriceSetting, TokenPrices, ask_prices
from hybrid.lab.experiments.text_report import (
    HALF,
    LOSSES,
    NUM_RESAMPLES,
    SHARES,
    AnsweredTexts,
    LossName,
    answered,
    bill_at,
    shares_and_bills,
)
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.prob import Floats
from hybrid.tasks.statistics import bill_ratio, rpi, wilson

# A swept dial: multiples of the worth at half the bill.
SWEPT = tuple(np.geomspace(0.02, 50.0, 81).tolist())
# A client that knows nothing of its pair of models; its dial moves.
UNKNOWN = "nothing known"
KEEP, WRITE, OTHER = "keep", "write", "other"
_ARMS = {KEEP: LOCAL.name, WRITE: CLOUD.name, SPANS: SPANS, OTHER: CLOUD.name}


@dataclass(frozen=True, eq=False)
class RoutedTable:
    """The records of a section, under one tariff, by what is known of its pair. The loss is nats."""

    records: Sequence[dict[str, Any]]
    calibration: Calibration
    setting: PriceSetting
    prices: TokenPrices = PRICES[0]

    @cached_property
    def planner(self) -> Planner:
        """What decides, bound to no question and no worth."""
        return Planner(
            score=KeptForecasts(OnlineLearner(self.calibration.score, calibration=self.calibration).score),
            prices=ask_prices(self.setting, self.prices),
            mean_excess=self.dial.mean_excess,
            kept_share=self.calibration.kept_share,
            labels=False,
        )

    @cached_property
    def dial(self) -> RoutedQuestions:
        """The calibration's questions with what asking takes for each: expected with the draft, and with the answer."""
        questions = self.calibration.questions
        expected = np.array([self._asking(each.prompt_tokens, each.draft_tokens) for each in questions])
        paid = np.array([self._asking(each.prompt_tokens, each.cloud_tokens) for each in questions])
        return RoutedQuestions.of(questions, expected, paid)

    @property
    def amounts(self) -> dict[str, float]:
        """What losing an answer of mean excess is worth, by dial, in prompt tokens."""
        mean = float(self.dial.paid.mean())
        asked = {f"asked for {share:g}": self.dial.worth_at_recovered(share) * mean for share in SHARES}
        return {"half the bill": self.dial.worth_at_bill(HALF) * mean, **asked}

    def actions(self, amount: float) -> list[str]:
        """Let the planner decide about every draft."""
        decided = []
        for record, signals in zip(self.records, self._signals, strict=True):
            bound = replace(
                self.planner, worth=Worth(amount=amount), words=signals.words, prompt_tokens=signals.prompt_tokens
            )
            decided.append(action_of(bound.plan(signals, final=True), record["spans"]))
        return decided

    def routed(self, actions: Sequence[str]) -> AnsweredTexts:
        """Return what is lost and paid where each question is dealt with so."""
        arms = [_ARMS[action] for action in actions]
        found = {arm: answered(self.records, arm) for arm in {LOCAL.name, CLOUD.name, *arms}}
        rows = range(len(arms))
        losses = {
            key: np.array([found[arm].losses[key][i] for i, arm in zip(rows, arms, strict=True)])
            for key in self.cloud.losses
        }
        key = (self.prices, self.setting)
        paid = np.array([found[arm].bills[key][i] for i, arm in zip(rows, arms, strict=True)])
        return AnsweredTexts(losses, {key: paid})

    @cached_property
    def local(self) -> AnsweredTexts:
        """The local model alone."""
        return answered(self.records, LOCAL.name)

    @cached_property
    def cloud(self) -> AnsweredTexts:
        """The cloud alone."""
        return answered(self.records, CLOUD.name)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every dial, and one for a client that knows nothing of the pair."""
        rows = [self._row(name, self.actions(amount), amount / self._alone) for name, amount in self.amounts.items()]
        return [*rows, self._row(UNKNOWN, self.unknown_actions(), None)]

    def unknown_actions(self) -> list[str]:
        """Decide about every draft in turn as a client does that knows nothing of the pair but the drafts before.

        Nobody tells it a verdict here: what it learns is how sure its drafts are, and what they would cost.
        """
        learner = OnlineLearner(PriorScore(DEFAULT_JUDGE))
        decided = []
        for record, signals in zip(self.records, self._signals, strict=True):
            planner = Planner(
                score=learner.score,
                prices=self.planner.prices,
                words=signals.words,
                prompt_tokens=signals.prompt_tokens,
                mean_excess=1.0,
                labels=False,
            )
            alone = float(planner.prices.write(signals.prompt_tokens, planner.question.tokens, 0))
            bound = replace(planner, worth=Worth(amount=learner.worth_at_half_bill(alone)))
            plan = bound.plan(signals, final=True)
            decided.append(action_of(plan, record["spans"]))
            learner.add([_unheard(plan)])
        return decided

    def _row(self, name: str, actions: Sequence[str], worth: float | None) -> dict[str, Any]:
        told = shares_and_bills(self.local, self.routed(actions), self.cloud)
        where = f"{self.prices} {self.setting.name}"
        return {
            "dial": name,
            "worth": None if worth is None else round(worth, 4),
            "actions": {action: round(actions.count(action) / max(1, len(actions)), 4) for action in _ARMS},
            "recovered": told["recovered"],
            "bill": told["bill"][where],
            "advantage": told["advantage"][where],
        }

    def swept(self) -> dict[str, dict[str, float | None]]:
        """Return the bill at which a share is recovered, by loss, where the dial is swept over these questions."""
        half = self.amounts["half the bill"]
        points = [self._point(self.actions(half * each)) for each in SWEPT]
        return {
            loss: {f"{share:g}": bill_at([(point["bill"], point[loss]) for point in points], share) for share in SHARES}
            for loss in LOSSES
        }

    def _point(self, actions: Sequence[str]) -> dict[str, float]:
        routed, key = self.routed(actions), (self.prices, self.setting)
        shares = {loss: _share(self.local, routed, self.cloud, loss) for loss in LOSSES}
        point: dict[str, float] = {"bill": float(routed.bills[key].sum() / self.cloud.bills[key].sum())}
        return point | {str(loss): share for loss, share in shares.items()}

    def right_answers(self) -> list[dict[str, Any]]:
        """Return right answers on the graded questions, with RPI and the bill, at every dial."""
        graded = [i for i, record in enumerate(self.records) if record["arms"][CLOUD.name]["right"] is not None]
        if not graded:
            return []
        right = {arm: np.array([self.records[i]["arms"][arm]["right"] for i in graded]) for arm in self._recorded}
        alone = self.cloud.bills[self.prices, self.setting][graded]
        rows = []
        for name, amount in self.amounts.items():
            actions = self.actions(amount)
            arms = [_ARMS[actions[i]] for i in graded]
            routed = np.array([right[arm][i] for i, arm in enumerate(arms)])
            paid = self.routed(actions).bills[self.prices, self.setting][graded]
            rows.append(
                {
                    "dial": name,
                    "questions": len(graded),
                    **{arm: estimate_to_json(wilson(int(each.sum()), each.size)) for arm, each in right.items()},
                    "right": estimate_to_json(wilson(int(routed.sum()), routed.size)),
                    "rpi": estimate_to_json(rpi(right[LOCAL.name], routed, right[CLOUD.name])),
                    "bill": estimate_to_json(bill_ratio(paid, alone, num_resamples=NUM_RESAMPLES)),
                }
            )
        return rows

    @property
    def _recorded(self) -> list[str]:
        return list(self.records[0]["arms"])

    @cached_property
    def _signals(self) -> list[DraftSignals]:
        return [recorded_signals(record) for record in self.records]

    @cached_property
    def _alone(self) -> float:
        """The mean price of the calibration's questions by the cloud alone."""
        ask = ask_prices(self.setting, self.prices)
        prices = [float(ask.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in self.calibration.questions]
        return float(np.mean(prices))

    def _asking(self, prompt_tokens: int, tokens: int) -> float:
        """Return the price of the cheapest way to have the cloud see to a text of so many tokens."""
        ask = ask_prices(self.setting, self.prices)
        probe = Planner(
            score=PriorScore(self.calibration.judge),
            prices=ask,
            worth=Worth(amount=0.0),  # what checks leave of the loss is no price
            prompt_tokens=prompt_tokens,
            mean_excess=1.0,
            kept_share=self.calibration.kept_share,
        )
        costs = probe.plan(_blank(tokens), final=True).costs
        spans = costs.spans if costs is not None else None
        whole = float(ask.write(prompt_tokens, tokens, 0))
        return whole if spans is None else min(whole, spans)


def action_of(plan: DraftPlan, spans: int | None) -> str:
    """Name what a plan does with a whole draft, if a record tells what comes of it: with checks of ``spans`` tokens."""
    match plan:
        case DraftPlan("keep"):
            return KEEP
        case DraftPlan("write", 0, None):
            return WRITE
        case DraftPlan("check", at, 0) if at == spans:
            return SPANS
        case _:
            return OTHER


def _unheard(plan: DraftPlan) -> DraftOutcome:
    """Return what a client keeps of a draft whose verdict nobody tells."""
    if plan.signals is None or plan.costs is None:
        raise ValueError("a plan that was made of no draft")
    chance, keeps, alone = plan.costs.turned_down, plan.action == KEEP, plan.costs.alone
    return DraftOutcome.of(
        plan.signals, told=chance, chance=chance, keeps=keeps, floor=0.0, turned_down=None, whole_cost=alone
    )


def _blank(num: int) -> DraftSignals:
    """Return a draft of so many tokens of which nothing else is known."""
    zeros = np.zeros(num)
    return DraftSignals((), 0, 0, np.zeros(num, dtype=np.int64), zeros, zeros, zeros, zeros, ended=True)


def _share(local: AnsweredTexts, routed: AnsweredTexts, cloud: AnsweredTexts, loss: LossName) -> float:
    low, high = local.losses[loss, "per_token"].sum(), cloud.losses[loss, "per_token"].sum()
    gap: Floats = low - high
    return float((low - routed.losses[loss, "per_token"].sum()) / gap) if gap > 0.0 else 0.0
