"""Why a draft was kept, checked or written anew, at which worth it would be another action; what to expect before it.

The law (``tests/policy/test_explanation.py``): just beyond a worth that is named the planner chooses what is said to
follow there, and between that and the present one nothing else than at present. Nothing here is asked of anybody: a
plan is made again, from the signals that it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from hybrid.defer import CalibrationQuestion, DraftSignals, Forecast, QuestionForecast
from hybrid.defer.words import NOTHING_FAMILIAR, NoveltyScore
from hybrid.policy.plan import DraftPlan, PlanAction, PlanCosts, PlannerInput, WaitPrice, Worth
from hybrid.policy.planning import Planner, place_of_rejection
from hybrid.prob import Floats
from hybrid.spend import AskPrices

# What a planner would have asked of a calibration's questions, and what that lets expect of a new one.
#
# How. The planner decides about each question's draft from what was told of it by a score that was fitted without it;
# the labels tell what the requests would then have cost. The hazard is spread evenly over a draft, for its place is not
# kept. Of a new question only the chance is known that its draft is turned down. Whatever its draft then shows, the
# chance is that on average; so the questions are weighted, as evenly as can be, until theirs has this mean.
#
# Laws (``tests/policy/test_expectation.py``): at their own mean chance the expectation is the mean over the questions;
# what is not asked costs nothing, and at worth 0 nothing is asked; a higher chance is never asked about less where a
# question with a higher chance is not.

# Chances beyond count as these where their odds are taken, and weights are tilted by no higher power of the odds.
_LEAST, MOST_TILT = 1e-9, 30.0


@dataclass(frozen=True)
class PlannedOutcome:
    """What would have been done with one question's draft, what it would have cost, and what the cloud alone takes.

    Costs in the unit of the planner's prices. ``left``, ``excess_left``: the shares of the draft's verdict and of its
    excess loss that are shown all the same. ``chance``: that the draft is turned down, as it was told.
    """

    action: PlanAction
    paid: float
    left: float
    excess_left: float
    alone: float
    chance: float


@dataclass(frozen=True)
class ExpectedUsage:
    """The chance that a question is asked about at all, and its bill as a share of what the cloud alone takes."""

    asks: float
    of_cloud: float


@dataclass(frozen=True)
class ConstantScore:
    """A score that tells of any draft what was told of one calibration question's."""

    judge: str
    question: CalibrationQuestion
    familiarity: NoveltyScore = NOTHING_FAMILIAR
    critic: str | None = None

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Spread chance and loss evenly."""
        num = len(signals)
        hazard = -np.expm1(np.log1p(-min(self.question.chance, 1.0 - 1e-9)) / max(1, num))
        return Forecast(np.full(num, hazard), np.full(num, self.question.excess_told))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:  # noqa: ARG002  (a score's shape)
        """Tell the same."""
        return QuestionForecast(self.question.chance, self.question.draft_tokens, self.question.excess_told)


def planned_outcomes(questions: Sequence[CalibrationQuestion], planner: Planner) -> tuple[PlannedOutcome, ...]:
    """Return an outcome for each question, with the planner's prices and dials. No coin is tossed."""
    return tuple(_outcome(each, planner) for each in questions)


def expect(outcomes: Sequence[PlannedOutcome], turned_down: float) -> ExpectedUsage | None:
    """Return what to expect of a question whose draft is turned down with a chance. None where no outcome is known."""
    if not outcomes:
        return None
    weights = _weights(np.array([each.chance for each in outcomes]), turned_down)
    asks, paid, alone = (
        float(weights @ np.array(column))
        for column in zip(*((each.action != "keep", each.paid, each.alone) for each in outcomes), strict=True)
    )
    return ExpectedUsage(asks, paid / alone)


def _weights(chances: Floats, mean: float) -> Floats:
    """Return weights of shape (N,) that sum to one, as even as can be, under which the chances have a mean."""
    odds = np.log(np.clip(chances, _LEAST, 1.0 - _LEAST)) - np.log1p(-np.clip(chances, _LEAST, 1.0 - _LEAST))

    def tilted(tilt: float) -> Floats:
        weights = np.exp(tilt * odds - (tilt * odds).max())
        return cast(Floats, weights / weights.sum())

    low, high = -MOST_TILT, MOST_TILT
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tilted(middle) @ chances < mean else (low, middle)
    return tilted((low + high) / 2)


def _plan_of(question: CalibrationQuestion, planner: Planner) -> DraftPlan:
    """Return the plan of a draft of which is known what was told of a calibration question's."""
    score = ConstantScore(planner.score.judge, question)
    own = replace(planner, score=score, words=(), prompt_tokens=question.prompt_tokens, floor=0.0)
    none = np.zeros(question.draft_tokens)  # of the draft this score reads its length
    signals = DraftSignals((), question.prompt_tokens, 0, none.astype(np.int64), none, none, none, none, ended=True)
    return own.plan(signals, final=True)


def _outcome(question: CalibrationQuestion, planner: Planner) -> PlannedOutcome:
    plan, num, prices = _plan_of(question, planner), question.draft_tokens, planner.prices
    alone = float(prices.write(question.prompt_tokens, max(1, question.cloud_tokens), 0))
    place, checked = question.first_rejection, plan.action == "check"
    paid = plan_bill(plan, prices, question.prompt_tokens, question.cloud_tokens, place)
    left = plan.action == "keep" or (not checked and place is not None and place < plan.at)
    part = float(place is None and plan.limit is None) if checked else plan.at / max(1, num)
    excess_left = 1.0 if plan.action == "keep" else part
    return PlannedOutcome(plan.action, paid, float(left), excess_left, alone, question.chance)


def plan_bill(plan: DraftPlan, prices: AskPrices, prompt: int, written: int, place: int | None) -> float:
    """Return what a plan would cost of a draft that is turned down at ``place``; None: nowhere.

    Where a check turns it down, the cloud writes on to the length of its own answer, ``written`` tokens.
    """
    if plan.action == "keep":
        return 0.0
    if plan.action == "write":
        return float(prices.write(prompt + plan.at, max(1, written - plan.at), 0))
    if plan.limit == 0 and plan.costs is not None and plan.costs.spans is not None:
        return plan.costs.spans
    price = float(prices.check(prompt, plan.at, 0))
    if place is None:
        return price
    rest = max(1, written - place - 1)
    return price + float(prices.write(prompt + place + 1, rest, prompt + place))


# Time has a price. To write at once costs W and takes T. A draft is one of those that the calibration's questions had,
# weighted as above; the plan of draft i costs D_i, never more than W, and the answer then takes T_i. The cloud writes
# at once where ``sum_i w_i (T_i - T) x price of a second > sum_i w_i (W - D_i)`` (``tests/policy/test_waiting.py``).

# So many drafts stand for all: 2 ms are spent on a question.
MOST_DRAFTS = 16


def typical_drafts(questions: Sequence[CalibrationQuestion]) -> tuple[tuple[float, float], ...]:
    """Return chances and excess losses that stand for a calibration's questions: means of equal parts, by chance."""
    told = np.array(sorted((each.chance, each.excess_told) for each in questions)).reshape(-1, 2)
    parts = np.array_split(told, min(MOST_DRAFTS, len(told))) if len(told) else []
    return tuple((min(1.0, float(chance)), float(excess)) for chance, excess in (part.mean(axis=0) for part in parts))


def without_draft(planner: Planner) -> DraftPlan | None:
    """Return the plan by which the cloud writes before anything is drafted; None: a draft comes first.

    ``keep`` among its costs is a draft first, with what is waited for longer. A level of risk weighs no costs.
    """
    wait, question, prompt = planner.wait, planner.question, planner.prompt_tokens
    if wait is None or planner.keep_below is not None or "open" not in planner.abilities:
        return None
    num = max(1, round(question.tokens))
    alone = float(planner.prices.write(prompt, num, 0))
    saved = longer_ms = 0.0
    weights = _weights(np.array([chance for chance, _ in wait.drafts]), question.turned_down)
    for weight, (chance, excess) in zip(weights.tolist(), wait.drafts, strict=True):
        plan = _plan_of(CalibrationQuestion(prompt, num, num, chance, False, excess, excess), planner)
        costs = cast(PlanCosts, plan.costs)
        known = (each for each in (costs.keep, costs.check, costs.write, costs.spans) if each is not None)
        saved += weight * (alone - min(known))  # the plan is the cheapest
        longer_ms += weight * (_waited_ms(plan, planner, wait, num, chance) - wait.asked_ms(prompt, num))
    waited = wait.per_ms * longer_ms
    if waited <= saved:
        return None
    first, worth = alone - saved + waited, planner.worth.of(alone)
    costs = PlanCosts(first, None, alone, None, question.turned_down, None, worth, alone)
    return DraftPlan("write", 0, None, costs, case=PlannerInput(planner, final=False, known=0))


def _waited_ms(plan: DraftPlan, planner: Planner, wait: WaitPrice, num: int, chance: float) -> float:
    """Return how long an answer of ``num`` tokens takes by a plan; in short spans as if the cloud wrote all of it.

    In blocks, what is kept before the cloud is asked is drafted block by block.
    """
    block, prompt = planner.block if planner.stream == "blocks" and planner.block else num, planner.prompt_tokens

    def drafted(kept: float) -> float:
        return wait.drafted_ms * min(num, block * max(1, math.ceil(kept / block)))

    if plan.action == "keep":
        return drafted(num)
    if plan.action == "write" or plan.limit == 0:
        kept = plan.at if plan.action == "write" else 0
        return drafted(kept) + wait.asked_ms(prompt, num - kept)
    place = place_of_rejection(chance) * num
    read = chance * drafted(place) + (1.0 - chance) * drafted(num)
    return read + wait.asked_ms(prompt + num, 0) + chance * wait.asked_ms(0, num - place)


# Worths are tried in such steps, to so many times more and less; a change in between is found to a thousandth.
STEP, MOST_TIMES, PRECISION = 1.25, 1000.0, 1.001


@dataclass(frozen=True)
class PlanSwitch:
    """Another choice: what would be done at ``times`` the worth and a little beyond."""

    times: float
    becomes: str


@dataclass(frozen=True)
class PlanExplanation:
    """A plan of one draft, from the answer's token ``position`` on, and what would have been planned at other worths.

    ``num_tokens`` 0: it was made by the question alone.
    ``action``: keep, check, write, or spans (check in short ones). ``excess``: the expected mean excess loss, in nats a
    token. ``by_nats``: it is what keeping loses. ``less``, ``more``: the next other choice at a lower and a higher
    worth; None: there is none.
    """

    position: int
    num_tokens: int
    action: str
    at: int
    limit: int | None
    floor: bool
    costs: PlanCosts
    excess: float
    planner: Planner
    less: PlanSwitch | None = None
    more: PlanSwitch | None = None

    @property
    def by_nats(self) -> bool:
        """Whether what keeping loses is counted in nats."""
        return self.planner.mean_excess is not None

    def worth_at(self, change: PlanSwitch) -> float | None:
        """Return a changed worth as ``--worth`` writes it, before any pacing; None where the dial is an amount."""
        worth = self.named_worth
        return worth.multiple * change.times if worth.amount is None else None

    @property
    def named_worth(self) -> Worth:
        """The worth before a day's pacing lowers it: that which ``--worth`` sets."""
        return self.planner.unpaced_worth or self.planner.worth

    @property
    def paced_by(self) -> float | None:
        """What a day's pacing multiplies a worth by that is given in multiples; None where it lowers none."""
        unpaced, worth = self.planner.unpaced_worth, self.planner.worth
        return worth.multiple / unpaced.multiple if unpaced and unpaced.amount is None and unpaced.multiple else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``; costs in the ``unit`` of the prices."""
        costs, worth = self.costs, self.named_worth
        told = {"keep": costs.keep, "check": costs.check, "write": costs.write, "spans": costs.spans}
        changes = [
            {"times_the_worth": change.times, "worth": self.worth_at(change), "action": change.becomes}
            for change in (self.less, self.more)
            if change is not None
        ]
        return {
            "position": self.position,
            "tokens": self.num_tokens,
            "action": self.action,
            "at": self.at,
            "limit": self.limit,
            "random_check": self.floor,
            "turned_down": costs.turned_down,
            "place": costs.place,
            "excess_nats": self.excess,
            "loss": "nats" if self.by_nats else "verdict",
            "unit": self.planner.prices.unit,
            "costs": told,
            "alone": costs.alone,
            "value": costs.worth,
            "worth": worth.multiple if worth.amount is None else None,
            "paced_by": self.paced_by,
            "keep_below": self.planner.keep_below,
            "would_change": changes,
        }


def explain(position: int, plan: DraftPlan) -> PlanExplanation | None:
    """Explain a plan of a draft that begins at the answer's token ``position``, or of a question before any draft.

    None for the later ones of short spans, of which nothing is weighed.
    """
    signals, costs, case = plan.signals, plan.costs, plan.case
    if costs is None or case is None:
        return None
    planner, chosen = case.planner, action_of(plan)

    def at(times: float) -> str:
        again = replace(planner, worth=planner.worth.times(times), unpaced_worth=None, floor=0.0)
        if signals is None:
            opened = again.opening() if again.stream == "early" else without_draft(again)
            return "draft" if opened is None else action_of(opened)
        return action_of(again.plan(signals, final=case.final, known=case.known))

    weighed = at(1.0)
    moves = planner.keep_below is None and {costs.check, costs.write, costs.spans} != {None}
    return PlanExplanation(
        position,
        0 if signals is None else len(signals),
        chosen,
        plan.at,
        plan.limit,
        plan.floor,
        costs,
        planner.question.excess if plan.forecast is None else float(plan.forecast.excess.mean()),
        planner,
        _next_change(at, weighed, 1.0 / STEP) if moves else None,
        _next_change(at, weighed, STEP) if moves else None,
    )


def action_of(plan: DraftPlan) -> str:
    """Return the action, and for checks in short spans ``spans``."""
    return "spans" if plan.action == "check" and plan.limit == 0 else plan.action


def _next_change(action_at: Callable[[float], str], chosen: str, step: float) -> PlanSwitch | None:
    """Return the nearest worth in a direction at which another action is chosen."""
    near, far = 1.0, step
    while action_at(far) == chosen:
        near, far = far, far * step
        if not 1.0 / MOST_TIMES < far < MOST_TIMES:
            return None
    while max(far / near, near / far) > PRECISION:
        middle = (near * far) ** 0.5
        near, far = (middle, far) if action_at(middle) == chosen else (near, middle)
    return PlanSwitch(far, action_at(far))
