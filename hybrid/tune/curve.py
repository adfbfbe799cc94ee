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
from hybrid.policy.expectation import PlannedOutcome, planned_outcomes
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices

# Multiples of a price from "hardly ever" to "nearly always"; the proposed worth is added.
WORTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.85, 2.2, 3.0, 4.0, 6.0, 10.0)


@dataclass(frozen=True)
class CurvePoint:
    """What a worth comes to over the questions.

    ``of_cloud``: the bill, of what the cloud alone takes. ``left``: what stays wrong, as a share: of the drafts that
    would be turned down those that are shown, or of the drafts' excess loss what is shown. ``kept``, ``checked`` and
    ``written``: shares of the questions.
    """

    worth: float
    of_cloud: float
    left: float
    kept: float
    checked: float
    written: float


def bill_curve(calibration: Calibration, prices: AskPrices, worths: Sequence[float] = WORTHS) -> tuple[CurvePoint, ...]:
    """Return a point for each worth; the questions are the calibration's, at least one."""
    questions, nats = calibration.questions, calibration.loss == "nats"
    lost = np.array([each.excess if nats else float(each.turned_down) for each in questions])
    points = []
    for worth in worths:
        outcomes = plan_all(calibration, prices, worth)
        left = np.array([one.excess_left if nats else one.left for one in outcomes])
        shares = [
            sum(one.action == action for one in outcomes) / len(outcomes) for action in ("keep", "check", "write")
        ]
        of_cloud = sum(one.paid for one in outcomes) / sum(one.alone for one in outcomes)
        points.append(CurvePoint(worth, of_cloud, float(left @ lost / (lost.sum() or 1.0)), *shares))
    return tuple(points)


def plan_all(
    calibration: Calibration, prices: AskPrices, worth: float, *, whole: bool = False
) -> tuple[PlannedOutcome, ...]:
    """Return what the planner would have done with each question at a worth; ``whole``: with whole answers alone."""
    questions, nats = calibration.questions, calibration.loss == "nats"
    alone = [float(prices.write(each.prompt_tokens, each.cloud_tokens, 0)) for each in questions]
    mean_excess = float(np.mean([each.excess for each in questions]))
    planner = Planner(
        score=calibration.score,
        prices=prices,
        worth=Worth(amount=worth * float(np.mean(alone))) if nats else Worth(worth),
        mean_excess=max(1e-9, mean_excess) if nats else None,
        kept_share=calibration.kept_share,
    )
    return planned_outcomes(questions, planner.of_whole_answers() if whole else planner)
