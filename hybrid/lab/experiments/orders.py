"""What is lost and paid on open text, and what sending whole questions to the cloud recovers at a bill.

The loss is the reference's at the text's own prefixes, as excess nats and as NLL, per token (the mean of a question)
and summed per answer. Sending questions at random recovers what it pays for: the advantage is over that. The laws
(``tests/bench/test_routed_table.py``): an order spends the bill on its best questions, walked along a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from hybrid.lab.experiments.frame import (
    PRICES,
    SETTINGS,
    CacheAssumption,
    TokenPrices,
    bills,
    column,
    paid_ratio,
    resampled,
    told,
)
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Record
from hybrid.prob import Floats
from hybrid.tasks.statistics import loss_shares

HALF = 0.5
# The shares at which a bill is told, and the bills at which an order has a point.
SHARES = (0.5, 0.8, 0.95)
CURVE = tuple(np.linspace(0.0, 1.0, 21).tolist())
LossName: TypeAlias = Literal["excess", "nll"]
LOSSES: tuple[LossName, ...] = ("excess", "nll")


@dataclass(frozen=True, eq=False)
class AnswerLosses:
    """What one way of answering did on the questions of a section, in their order.

    ``losses``: per question, by the loss and how it is counted. ``bills``: per question, by price and setting.
    """

    losses: Mapping[tuple[LossName, str], Floats]
    bills: Mapping[tuple[TokenPrices, CacheAssumption], Floats]


def answered(records: Sequence[Record], arm: str) -> AnswerLosses:
    """Take an arm's losses and bills from the records of a grid."""
    answers = [record["arms"][arm] for record in records]
    tokens = np.maximum(1.0, column(answers, "tokens"))
    losses: dict[tuple[LossName, str], Floats] = {}
    for name in LOSSES:
        summed = column(answers, name)
        losses[name, "per_answer"], losses[name, "per_token"] = summed, summed / tokens
    keys = [(prices, setting) for prices in PRICES for setting in SETTINGS]
    return AnswerLosses(losses, {key: bills(answers, key[1], key[0]) for key in keys})


def shares_and_bills(local: AnswerLosses, hybrid: AnswerLosses, cloud: AnswerLosses) -> dict[str, Any]:
    """Return recovered shares, bills as multiples of the cloud's, and the advantage over random routing."""
    pairs, draws = hybrid.losses.items(), resampled(len(local.losses["excess", "per_token"]))
    shares = {key: loss_shares(draws, local.losses[key], each, cloud.losses[key]) for key, each in pairs}
    ratios = {f"{key[0]} {key[1].name}": paid_ratio(paid, cloud.bills[key]) for key, paid in hybrid.bills.items()}
    return {
        "recovered": {f"{name} {how}": told(each) for (name, how), each in shares.items()},
        "bill": {where: told(each) for where, each in ratios.items()},
        "advantage": {
            where: {name: told(shares[name, "per_token"] - each) for name in LOSSES} for where, each in ratios.items()
        },
    }


def point_of(
    local: AnswerLosses, hybrid: AnswerLosses, cloud: AnswerLosses, setting: CacheAssumption
) -> dict[str, float]:
    """Return the bill, and the recovered share of each loss; nothing where there is no gap."""
    key = (PRICES[0], setting)
    point = {"bill": float(hybrid.bills[key].sum() / cloud.bills[key].sum())}
    for loss in LOSSES:
        low, here, high = (float(each.losses[loss, "per_token"].sum()) for each in (local, hybrid, cloud))
        point[loss] = (low - here) / (low - high) if low > high else 0.0
    return point


def bills_at(points: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Return the bill at which each share is first reached, between two points; None where it is not."""
    return {
        loss: {f"{share:g}": _bill_at([(each["bill"], each[loss]) for each in points], share) for share in SHARES}
        for loss in LOSSES
    }


def _bill_at(curve: Sequence[tuple[float, float]], share: float) -> float | None:
    for (bill, below), (more, above) in pairwise(curve):
        if below < share <= above:
            return round(bill + (more - bill) * (share - below) / (above - below), 4)
    return None


# Sending whole questions to the cloud: what it recovers at a bill, from the two models' own answers alone.
#
# Questions are sent in the order of a score until the bill is reached; the one at the edge is sent in part, which is
# what a coin would do on average. The scores know the draft and the price that its length suggests; the oracle knows
# the loss. The orders stand still in the bootstrap, as a score that was chosen before does.


def order_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a row for every order: at half the cloud's bill under the first price setting, and the bill at a share."""
    local, cloud = answered(records, LOCAL.name), answered(records, CLOUD.name)
    alone, rows = cloud.bills[PRICES[0], SETTINGS[0]], []
    for name, order in orders(records, local, cloud).items():
        half, *curve = (mixed(local, cloud, at_bill(order, alone, share)) for share in (HALF, *CURVE))
        points = [point_of(local, each, cloud, SETTINGS[0]) for each in curve]
        rows.append({"rule": name, **shares_and_bills(local, half, cloud), "bill_at": bills_at(points)})
    return rows


def orders(records: Sequence[Record], local: AnswerLosses, cloud: AnswerLosses) -> dict[str, Floats]:
    """Return the scores by which questions are sent, the highest first, by name; shape (N,) each."""
    drafts = [record["arms"][LOCAL.name] for record in records]
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


def at_bill(order: Floats, paid: Floats, share: float) -> Floats:
    """Return how far each question is sent, 0 to 1, so that a share of the bill is spent on the highest scores.

    >>> at_bill(np.array([1.0, 3.0, 2.0]), np.array([4.0, 2.0, 2.0]), 0.5)
    array([0., 1., 1.])
    """
    sent = np.zeros(order.size)
    left = share * float(paid.sum())
    for i in np.argsort(-order, kind="stable"):
        sent[i] = min(1.0, left / paid[i])
        left -= sent[i] * paid[i]
        if left <= 0.0:
            break
    return sent


def mixed(local: AnswerLosses, cloud: AnswerLosses, sent: Floats) -> AnswerLosses:
    """Return what is lost and paid on average where each question is sent so often."""
    losses = {key: sent * cloud.losses[key] + (1.0 - sent) * local.losses[key] for key in local.losses}
    return AnswerLosses(losses, {key: sent * paid for key, paid in cloud.bills.items()})
