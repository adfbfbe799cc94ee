"""The bill curve of ``auto``: for each worth what a pair's calibration questions would have cost, and what stays wrong.

How. The planner itself decides about each question's draft, from what a score that was fitted without that question
told of it; the labels then tell what came of it. Where a check turns a draft down, the cloud writes as much more as its
own answer is longer. The hazard is spread evenly over a draft, for its place is not kept.

The laws (``tests/tune/test_curve.py``): at worth 0 nothing is asked and all is left; what is asked is charged as the
planner's prices have it; a question is never charged for more than a check and the rest. Any price will do: no request
is behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from hybrid.defer import Calibration, CalibrationQuestion, DraftSignals, Forecast, QuestionForecast
from hybrid.defer.familiarity import NOTHING_FAMILIAR, Familiarity
from hybrid.policy.plan import DraftPlan, Worth
from hybrid.policy.planning import Planner
from hybrid.prob import Floats
from hybrid.spend import AskPrices

# Multiples of a price from "hardly ever" to "nearly always"; the proposed worth is added.
WORTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.85, 2.2, 3.0, 4.0, 6.0, 10.0)


@dataclass(frozen=True)
class CurvePoint:
    """What a worth comes to over the questions.

    ``of_cloud``: the bill, of what the cloud alone takes. ``left``: what stays wrong, as a share: of the drafts that
    would be turned down those that are shown, or of the drafts' excess loss what is shown; ``excess_left``: the latter
    in either case. ``kept``, ``checked`` and ``written``: shares of the questions.
    """

    worth: float
    of_cloud: float
    left: float
    excess_left: float
    kept: float
    checked: float
    written: float


@dataclass(frozen=True)
class ToldScore:
    """A score that tells of any draft what was told of one question's draft."""

    familiarity: ClassVar[Familiarity] = NOTHING_FAMILIAR
    judge: str
    again: float
    question: CalibrationQuestion

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Spread the chance and the loss evenly."""
        num = len(signals)
        hazard = -np.expm1(np.log1p(-min(self.question.chance, 1.0 - 1e-9)) / max(1, num))
        return Forecast(np.full(num, hazard), np.full(num, self.question.excess_told))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:  # noqa: ARG002  (a score's shape)
        """Tell the same."""
        return QuestionForecast(self.question.chance, self.question.draft_tokens, self.question.excess_told)


class _Outcome(NamedTuple):
    """What a plan came to: its price, and the share of what its draft loses that it left."""

    price: float
    left: float
    excess_left: float


def bill_curve(
    calibration: Calibration, prices: AskPrices, worths: Sequence[float] = WORTHS, kept_share: float | None = None
) -> tuple[CurvePoint, ...]:
    """Return a point for each worth; the questions are the calibration's, at least one.

    ``kept_share``: of the drafted tokens those that the judge keeps, where checks in short spans are an action.
    """
    questions = calibration.questions
    alone = np.array([float(prices.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in questions])
    nats = calibration.loss == "nats"
    lost = np.array([each.excess if nats else float(each.turned_down) for each in questions])
    mean_excess = max(1e-9, float(lost.mean())) if nats else None
    excess = np.array([each.excess for each in questions])
    points = []
    for worth in worths:
        dial = Worth(amount=worth * float(alone.mean())) if nats else Worth(worth)
        plans = [
            Planner(
                score=ToldScore(calibration.judge, calibration.score.again, each),
                prices=prices,
                worth=dial,
                prompt_tokens=each.prompt_tokens,
                mean_excess=mean_excess,
                kept_share=kept_share,
            ).plan(_draft_of(each), final=True)
            for each in questions
        ]
        outcomes = [_outcome(each, plan, prices) for each, plan in zip(questions, plans, strict=True)]
        excess_left = _share(np.array([one.excess_left for one in outcomes]), excess)
        left = excess_left if nats else _share(np.array([one.left for one in outcomes]), lost)
        shares = [sum(plan.action == action for plan in plans) / len(plans) for action in ("keep", "check", "write")]
        of_cloud = sum(one.price for one in outcomes) / float(alone.sum())
        points.append(CurvePoint(worth, of_cloud, left, excess_left, *shares))
    return tuple(points)


def _share(left: Floats, of: Floats) -> float:
    return float(left @ of / of.sum()) if of.sum() else 0.0


def left_at_bill(curve: Sequence[CurvePoint], share: float) -> float:
    """Return what stays wrong at a share of the cloud's bill, mixing the two nearest points at random if need be."""
    points = sorted((point.of_cloud, point.left) for point in curve)
    bills, left = [bill for bill, _ in points], np.minimum.accumulate([each for _, each in points])
    return float(np.interp(share, bills, left))


def routed_at_bill(calibration: Calibration, prices: AskPrices, share: float) -> float:
    """Return what stays wrong where whole questions are sent, by what is told of their drafts per price."""
    questions, nats = calibration.questions, calibration.loss == "nats"
    alone = np.array([float(prices.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in questions])
    expected = np.array([float(prices.write(each.prompt_tokens, each.draft_tokens, 0)) for each in questions])
    told = np.array([each.excess_told if nats else each.chance for each in questions])
    lost = np.array([each.excess if nats else float(each.turned_down) for each in questions])
    order = np.argsort(-told / expected, kind="stable")
    bills, left = np.cumsum(alone[order]) / alone.sum(), 1.0 - np.cumsum(lost[order]) / max(1e-12, lost.sum())
    return float(np.interp(share, np.concatenate([[0.0], bills]), np.concatenate([[1.0], left])))


def _outcome(question: CalibrationQuestion, plan: DraftPlan, prices: AskPrices) -> _Outcome:
    """Return what a plan would have cost, and the shares of what the draft loses that it would have left."""
    prompt, num, place = question.prompt_tokens, question.draft_tokens, question.first_rejection
    if plan.action == "keep":
        return _Outcome(0.0, 1.0, 1.0)
    if plan.action == "write":
        price = float(prices.write(prompt + plan.at, max(1, question.cloud_tokens - plan.at), 0))
        return _Outcome(price, float(place is not None and place < plan.at), plan.at / max(1, num))
    if plan.limit == 0 and plan.costs is not None and plan.costs.spans is not None:
        return _Outcome(plan.costs.spans, 0.0, 0.0)
    price = float(prices.check(prompt, num, 0))
    if place is None:
        return _Outcome(price, 0.0, 1.0)
    rest = max(1, question.cloud_tokens - place - 1)
    return _Outcome(price + float(prices.write(prompt + place + 1, rest, prompt + place)), 0.0, 0.0)


def _draft_of(question: CalibrationQuestion) -> DraftSignals:
    """Return signals of a draft of that length; nothing else of them is looked at."""
    num, none = question.draft_tokens, np.zeros(question.draft_tokens)
    return DraftSignals(
        (), question.prompt_tokens, 0, np.zeros(num, dtype=np.int64), none, none, none, none, ended=True
    )
