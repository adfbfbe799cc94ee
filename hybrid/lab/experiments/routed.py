"""``hybrid bench auto --real``: what a planner does with drafts of open text, what that recovers, and what it costs.

Every draft of a grid is put before the product's planner, under every tariff and dial; the text of what it decides for
is in the record. The dials are read off the calibration's questions, never off these. What no record holds (a check of
a whole draft, a write from within it) counts as written by the cloud alone and is told apart: ``other``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.defer import DEFAULT_JUDGE, Calibration, DraftSignals, QuestionCosts, UninformedScore
from hybrid.defer.online import OnlineLearner
from hybrid.defer.outcome import DraftOutcome
from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.auto_trial import CachedScore
from hybrid.lab.experiments.frame import (
    PRICES,
    SETTINGS,
    CacheAssumption,
    agreement,
    ask_prices,
    paid_ratio,
    told,
)
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.orders import (
    HALF,
    SHARES,
    AnswerLosses,
    answered,
    bills_at,
    order_rows,
    point_of,
    shares_and_bills,
)
from hybrid.lab.experiments.questions import PAIRS, REFERENCE, draw_questions
from hybrid.lab.experiments.trials import SPANS, recorded_signals, routed_grid
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices
from hybrid.tasks.assistant import QuestionSplit
from hybrid.tasks.statistics import rpi, wilson

# A grid's questions: as many as the calibrations have, half as many where answers are drawn or checks are run.
NUM_GREEDY, NUM_SAMPLED, NUM_CHECKED = 150, 100, 60
TEMPERATURE = 0.7
# Below temperature 1 a rule that draws the cloud's token must know its distribution: 19 tokens, of 20 that are shown.
SAMPLED_TOP_K = 19
# A check's tokens where only new tokens are paid: the best ones for the share that was kept on calibration questions.
SHORT_SPANS = {"q3": 3, "d2": 2}
GRADED_PAIR = "d2"


def routed_grids(num: int | None = None, split: QuestionSplit = "test", seed: int = 0) -> tuple[Grid, ...]:
    """Return the grids: both pairs greedy, drawn, and with checks in short spans; the graded questions of one."""

    def grid(pair: str, what: str, wanted: int, temperature: float = 0.0, spans: int | None = None) -> Grid:
        drawn = draw_questions(split, min(num or wanted, wanted), seed)
        return routed_grid(f"{pair}, {what}", pair, drawn, temperature, SAMPLED_TOP_K if temperature else 0, spans)

    graded = draw_questions(split, num or 1000, seed, graded=True)
    drawn = f"drawn at {TEMPERATURE:g}"
    return (
        *(grid(pair, "greedy", NUM_GREEDY) for pair in SHORT_SPANS),
        *(grid(pair, drawn, NUM_SAMPLED, TEMPERATURE) for pair in SHORT_SPANS),
        *(grid(pair, "greedy, short checks", NUM_CHECKED, spans=spans) for pair, spans in SHORT_SPANS.items()),
        routed_grid(f"{GRADED_PAIR}, graded questions", GRADED_PAIR, graded),
    )


def pair_models() -> dict[str, tuple[str, str]]:
    """Return the names of the models of every pair: the local one, the reference."""
    return {pair: (PAIRS[pair], REFERENCE) for pair in SHORT_SPANS}


def routed_report(
    grids: Sequence[Grid], found: Sequence[Sequence[Record]], calibrations: Mapping[str, Calibration]
) -> dict[str, Any]:
    """Return the report, from the records of every grid's questions, and what is known of each pair."""
    pairs = zip(grids, found, strict=True)
    return {
        "sections": [_section(grid, records, calibrations[grid.pair]) for grid, records in pairs],
        "against_the_client": agreement(
            [each for records in found for record in records for each in record["checked"]]
        ),
    }


def _section(grid: Grid, records: Sequence[Record], calibration: Calibration) -> dict[str, Any]:
    """Return a grid's tables: under the tariff of new tokens where short checks were run, else under the others."""
    short = records[0]["spans"] is not None
    settings = [each for each in SETTINGS if (each.scoring == "new") is short]
    tables = {each.name: RoutedTable(records, calibration, each) for each in settings}
    return {
        "section": grid.name,
        "pair": grid.pair,
        "temperature": grid.temperature,
        "questions": len(records),
        "calibrated_on": len(calibration.questions),
        "kept_share": calibration.kept_share,
        "tariffs": [
            {"tariff": name, "dials": table.rows(), "bill_at": table.swept(), "right": table.right_answers()}
            for name, table in tables.items()
        ],
        "orders": order_rows(records),
    }


# A swept dial: multiples of the worth at half the bill.
SWEPT = tuple(np.geomspace(0.02, 50.0, 81).tolist())
# A client that knows nothing of its pair of models; its dial moves.
UNKNOWN = "nothing known"
KEEP, WRITE, OTHER = "keep", "write", "other"
_ARMS = {KEEP: LOCAL.name, WRITE: CLOUD.name, SPANS: SPANS, OTHER: CLOUD.name}


@dataclass(frozen=True, eq=False)
class RoutedTable:
    """The records of a grid, under one tariff, by what is known of its pair. The loss is nats."""

    records: Sequence[Record]
    calibration: Calibration
    setting: CacheAssumption

    @cached_property
    def ask(self) -> AskPrices:
        """What a client decides by."""
        return ask_prices(self.setting, PRICES[0])

    @cached_property
    def texts(self) -> Mapping[str, AnswerLosses]:
        """What each recorded arm did, by its name."""
        return {arm: answered(self.records, arm) for arm in self.records[0]["arms"]}

    @cached_property
    def planner(self) -> Planner:
        """What decides, bound to no question and no worth."""
        return Planner(
            score=CachedScore(OnlineLearner(self.calibration.score, calibration=self.calibration).score),
            prices=self.ask,
            mean_excess=self.dial.mean_excess,
            kept_share=self.calibration.kept_share,
            labels=False,
        )

    @cached_property
    def dial(self) -> QuestionCosts:
        """The calibration's questions with what asking takes for each: expected with the draft, and with the answer."""
        questions = self.calibration.questions
        expected = np.array([self._asking(each.prompt_tokens, each.draft_tokens) for each in questions])
        paid = np.array([self._asking(each.prompt_tokens, each.cloud_tokens) for each in questions])
        return QuestionCosts.of(questions, expected, paid)

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

    def routed(self, actions: Sequence[str]) -> AnswerLosses:
        """Return what is lost and paid where each question is dealt with so."""
        arms, rows, key = list(self.texts), np.arange(len(actions)), (PRICES[0], self.setting)
        which = np.array([arms.index(_ARMS[action]) for action in actions], dtype=np.int64)
        texts, losses = list(self.texts.values()), self.texts[CLOUD.name].losses
        chosen = {name: np.array([each.losses[name] for each in texts])[which, rows] for name in losses}
        return AnswerLosses(chosen, {key: np.array([each.bills[key] for each in texts])[which, rows]})

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for every dial, and one for a client that knows nothing of the pair."""
        rows = [self._row(name, self.actions(amount), amount / self._alone) for name, amount in self.amounts.items()]
        return [*rows, self._row(UNKNOWN, self.unknown_actions(), None)]

    def unknown_actions(self) -> list[str]:
        """Decide about every draft in turn as a client does that knows nothing of the pair but the drafts before.

        Nobody tells it a verdict here: what it learns is how sure its drafts are, and what they would cost.
        """
        learner = OnlineLearner(UninformedScore(DEFAULT_JUDGE))
        decided = []
        for record, signals in zip(self.records, self._signals, strict=True):
            planner = Planner(
                score=learner.score,
                prices=self.ask,
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
        found = shares_and_bills(self.texts[LOCAL.name], self.routed(actions), self.texts[CLOUD.name])
        where = f"{PRICES[0]} {self.setting.name}"
        return {
            "dial": name,
            "worth": None if worth is None else round(worth, 4),
            "actions": {action: round(actions.count(action) / max(1, len(actions)), 4) for action in _ARMS},
            "recovered": found["recovered"],
            "bill": found["bill"][where],
            "advantage": found["advantage"][where],
        }

    def swept(self) -> dict[str, dict[str, float | None]]:
        """Return the bill at which a share is recovered, by loss, where the dial is swept over these questions."""
        half = self.amounts["half the bill"]
        return bills_at([self._point(self.actions(half * each)) for each in SWEPT])

    def _point(self, actions: Sequence[str]) -> dict[str, float]:
        return point_of(self.texts[LOCAL.name], self.routed(actions), self.texts[CLOUD.name], self.setting)

    def right_answers(self) -> list[dict[str, Any]]:
        """Return right answers on the graded questions, with RPI and the bill, at every dial."""
        graded = [i for i, record in enumerate(self.records) if record["arms"][CLOUD.name]["right"] is not None]
        if not graded:
            return []
        right = {arm: np.array([self.records[i]["arms"][arm]["right"] for i in graded]) for arm in self.texts}
        alone, rows = self.texts[CLOUD.name].bills[PRICES[0], self.setting][graded], []
        for name, amount in self.amounts.items():
            actions = self.actions(amount)
            routed = np.array([right[_ARMS[actions[i]]][row] for row, i in enumerate(graded)])
            paid = self.routed(actions).bills[PRICES[0], self.setting][graded]
            shares = {**right, "right": routed}
            rows.append(
                {"dial": name, "questions": len(graded)}
                | {arm: estimate_to_json(wilson(int(each.sum()), each.size)) for arm, each in shares.items()}
                | {"rpi": estimate_to_json(rpi(right[LOCAL.name], routed, right[CLOUD.name]))}
                | {"bill": told(paid_ratio(paid, alone))}
            )
        return rows

    @cached_property
    def _signals(self) -> list[DraftSignals]:
        return [recorded_signals(record) for record in self.records]

    @cached_property
    def _alone(self) -> float:
        """The mean price of the calibration's questions by the cloud alone."""
        return float(np.mean([float(self.ask.write(each.prompt_tokens, each.cloud_tokens, 0))
                              for each in self.calibration.questions]))  # fmt: skip

    def _asking(self, prompt_tokens: int, tokens: int) -> float:
        """Return the price of the cheapest way to have the cloud see to a text of so many tokens."""
        probe = Planner(
            score=UninformedScore(self.calibration.judge),
            prices=self.ask,
            worth=Worth(amount=0.0),  # what checks leave of the loss is no price
            prompt_tokens=prompt_tokens,
            mean_excess=1.0,
            kept_share=self.calibration.kept_share,
        )
        zeros = np.zeros(tokens)  # nothing else is known of the draft
        blank = DraftSignals((), 0, 0, zeros.astype(np.int64), zeros, zeros, zeros, zeros, ended=True)
        costs, whole = probe.plan(blank, final=True).costs, float(self.ask.write(prompt_tokens, tokens, 0))
        return whole if costs is None or costs.spans is None else min(whole, costs.spans)


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
