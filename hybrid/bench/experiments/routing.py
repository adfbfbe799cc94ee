"""Sending whole questions to the cloud: what it recovers at a bill, from the two models' own answers alone.

Questions are sent in the order of a score until the bill is reached; the one at the edge is sent in part, which is what
a coin would do on average. The scores know the draft and the price that its length suggests; the oracle knows the loss.
The orders stand still in the bootstrap, as a score that was chosen before does. This file interprets records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid.bench.comparison import estimate_to_json
from hybrid.bench.experiments.rule_table import LOSSES, AnsweredTexts, LossName, answered, shares_and_bills
from hybrid.bench.experiments.tariffs import PRICES, SETTINGS
from hybrid.prob import Floats
from hybrid.tasks.statistics import rpi, wilson

HALF = 0.5
# The shares at which a bill is told, and the bills at which a curve has a point.
SHARES = (0.5, 0.8, 0.95)
CURVE = tuple(np.linspace(0.0, 1.0, 21).round(2).tolist())


def routing_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every way to choose whole questions, at half the cloud's bill under the first price setting."""
    local, cloud = answered(records, "local"), answered(records, "cloud")
    alone = cloud.bills[PRICES[0], SETTINGS[0]]
    rows = []
    for name, order in orders(records, local, cloud).items():
        sent = at_bill(order, alone, HALF)
        row = {"rule": name, **shares_and_bills(local, mixed(local, cloud, sent), cloud)}
        points = [at_bill(order, alone, share) for share in CURVE]
        row["curve"] = {loss: _curve(local, cloud, points, loss) for loss in LOSSES}
        row["bill_at"] = {loss: _bills_at(row["curve"][loss]) for loss in LOSSES}
        row["questions_sent"] = round(float(sent.mean()), 4) if sent.size else None
        rows.append(row)
    return rows


def orders(records: Sequence[dict[str, Any]], local: AnsweredTexts, cloud: AnsweredTexts) -> dict[str, Floats]:
    """Return the scores by which questions are sent, the highest first, by name; shape (N,) each."""
    drafts = [record["arms"]["local"] for record in records]
    tokens = np.array([max(1, len(draft["ids"])) for draft in drafts], dtype=np.float64)
    expected = np.array([record["prompt_tokens"] for record in records]) + PRICES[0].written * tokens
    doubt = {
        name: np.array([sign * draft[name] for draft in drafts]) / tokens
        for name, sign in (("logprob", -1.0), ("entropy", 1.0))
    }
    gap = local.losses["excess", "per_token"] - cloud.losses["excess", "per_token"]
    return {
        "mean log-probability / price": doubt["logprob"] / expected,
        "mean log-probability": doubt["logprob"],
        "mean entropy / price": doubt["entropy"] / expected,
        "shortest first": -expected,
        "oracle: gap / price": gap / cloud.bills[PRICES[0], SETTINGS[0]],
    }


def at_bill(order: Floats, bills: Floats, share: float) -> Floats:
    """Return how far each question is sent, 0 to 1, so that a share of the bill is spent on the highest scores.

    >>> at_bill(np.array([1.0, 3.0, 2.0]), np.array([4.0, 2.0, 2.0]), 0.5)
    array([0., 1., 1.])
    """
    sent = np.zeros(order.size)
    left = share * float(bills.sum())
    for i in np.argsort(-order, kind="stable"):
        sent[i] = min(1.0, left / bills[i])
        left -= sent[i] * bills[i]
        if left <= 0.0:
            break
    return sent


def mixed(local: AnsweredTexts, cloud: AnsweredTexts, sent: Floats) -> AnsweredTexts:
    """Return what is lost and paid on average where each question is sent so often."""
    losses = {key: sent * cloud.losses[key] + (1.0 - sent) * local.losses[key] for key in local.losses}
    return AnsweredTexts(losses, {key: sent * paid for key, paid in cloud.bills.items()})


def right_answers(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return right answers on graded questions: local, cloud, and whole questions at half the bill, with RPI."""
    graded = [record for record in records if record["arms"]["cloud"]["right"] is not None]
    if not graded:
        return {"questions": 0}
    local, cloud = answered(graded, "local"), answered(graded, "cloud")
    alone = cloud.bills[PRICES[0], SETTINGS[0]]
    right = {arm: np.array([record["arms"][arm]["right"] for record in graded]) for arm in ("local", "cloud")}
    found: dict[str, Any] = {"questions": len(graded)}
    for arm, grades in right.items():
        found[arm] = estimate_to_json(wilson(int(grades.sum()), grades.size))
    for name, order in orders(graded, local, cloud).items():
        sent = at_bill(order, alone, HALF) >= 1.0  # a question is right or wrong: the one at the edge stays here
        routed = np.where(sent, right["cloud"], right["local"])
        found[f"{name}, half the bill"] = estimate_to_json(wilson(int(routed.sum()), routed.size)) | {
            "rpi": estimate_to_json(rpi(right["local"], routed, right["cloud"])),
            "bill": round(float(alone[sent].sum() / alone.sum()), 4),
        }
    return found


def _curve(local: AnsweredTexts, cloud: AnsweredTexts, points: Sequence[Floats], loss: LossName) -> list[list[float]]:
    """Return (bill, recovered share) at each point; nothing where there is no gap."""
    key = (loss, "per_token")
    gap = local.losses[key] - cloud.losses[key]
    if not gap.sum() > 0.0:
        return []
    return [[bill, round(float((sent * gap).sum() / gap.sum()), 4)] for bill, sent in zip(CURVE, points, strict=True)]


def _bills_at(curve: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """Return the least bill at which a share is recovered, between two points of a curve."""
    return {f"{share:g}": _first(curve, share) for share in SHARES}


def _first(curve: Sequence[Sequence[float]], share: float) -> float | None:
    for (bill, below), (more, above) in pairwise(curve):
        if below < share <= above:
            return round(bill + (more - bill) * (share - below) / (above - below), 4)
    return None
