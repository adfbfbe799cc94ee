"""The bill curve of ``auto``: for each worth what a pair's calibration questions would have cost, and what stays wrong.

How. The planner itself decides about each question's draft, from what a score that was fitted without that question
told of it; the labels then tell what came of it (``policy.expectation``).

The laws (``tests/tune/test_curve.py``): at worth 0 nothing is asked and all is left; what is asked is charged as the
planner's prices have it; a question is never charged for more than a check and the rest. Any price will do: no request
is behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.defer import Calibration
from hybrid.policy.expectation import planned_outcomes
from hybrid.policy.plan import Worth
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
        planner = Planner(
            score=calibration.score, prices=prices, worth=dial, mean_excess=mean_excess, kept_share=kept_share
        )
        outcomes = planned_outcomes(questions, planner)
        excess_left = _share(np.array([one.excess_left for one in outcomes]), excess)
        left = excess_left if nats else _share(np.array([one.left for one in outcomes]), lost)
        shares = [
            sum(one.action == action for one in outcomes) / len(outcomes) for action in ("keep", "check", "write")
        ]
        of_cloud = sum(one.paid for one in outcomes) / float(alone.sum())
        points.append(CurvePoint(worth, of_cloud, left, excess_left, *shares))
    return tuple(points)


def _share(left: Floats, of: Floats) -> float:
    return float(left @ of / of.sum()) if of.sum() else 0.0


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
