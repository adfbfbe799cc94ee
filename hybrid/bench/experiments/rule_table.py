"""The second table: what each rule recovers of the loss between the two models, and what it costs under each tariff.

The loss is the reference's at the text's own prefixes, as excess nats and as NLL, per token (the mean of a question)
and summed per answer. Sending whole questions at random recovers what it pays for: the diagonal, whose advantage is 0.
This file interprets records; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from hybrid.bench.comparison import estimate_to_json
from hybrid.bench.experiments.tariffs import PRICES, SETTINGS, CountedRequest, PriceSetting, TokenPrices, cost
from hybrid.prob import Floats
from hybrid.tasks.statistics import wilson
from hybrid.tasks.text_statistics import advantage, bill_ratio, recovered_share

LossName: TypeAlias = Literal["excess", "nll"]
LOSSES: tuple[LossName, ...] = ("excess", "nll")
NUM_RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class AnsweredTexts:
    """What one way of answering did on the questions of a section, in their order.

    ``losses``: per question, by the loss and how it is counted. ``bills``: per question, by price and setting.
    """

    losses: Mapping[tuple[LossName, str], Floats]
    bills: Mapping[tuple[TokenPrices, PriceSetting], Floats]


def answered(records: Sequence[dict[str, Any]], arm: str) -> AnsweredTexts:
    """Take an arm's losses and bills from the records of a section."""
    rows = [record["arms"][arm] for record in records]
    tokens = np.array([max(1, row["tokens"]) for row in rows], dtype=np.float64)
    losses: dict[tuple[LossName, str], Floats] = {}
    for name in LOSSES:
        summed = np.array([row[name] for row in rows], dtype=np.float64)
        losses[name, "per_answer"], losses[name, "per_token"] = summed, summed / tokens
    requests = [[CountedRequest(*each) for each in row["requests"]] for row in rows]
    bills = {
        (prices, setting): np.array([cost(each, setting, prices) for each in requests])
        for prices in PRICES
        for setting in SETTINGS
    }
    return AnsweredTexts(losses, bills)


def rule_rows(records: Sequence[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for every rule of a section."""
    local, cloud = answered(records, "local"), answered(records, "cloud")
    return [
        {"rule": arm} | shares_and_bills(local, answered(records, arm), cloud) | _texts(records, arm) for arm in arms
    ]


def shares_and_bills(local: AnsweredTexts, hybrid: AnsweredTexts, cloud: AnsweredTexts) -> dict[str, Any]:
    """Return recovered shares, bills as multiples of the cloud's, and the advantage over random routing."""
    shares = {
        f"{name} {how}": estimate_to_json(
            recovered_share(local.losses[name, how], losses, cloud.losses[name, how], num_resamples=NUM_RESAMPLES)
        )
        for (name, how), losses in hybrid.losses.items()
    }
    bills, gains = {}, {}
    for (prices, setting), paid in hybrid.bills.items():
        alone, where = cloud.bills[prices, setting], f"{prices} {setting.name}"
        bills[where] = estimate_to_json(bill_ratio(paid, alone, num_resamples=NUM_RESAMPLES))
        gains[where] = {
            name: estimate_to_json(
                advantage(
                    local.losses[name, "per_token"],
                    hybrid.losses[name, "per_token"],
                    cloud.losses[name, "per_token"],
                    paid,
                    alone,
                    num_resamples=NUM_RESAMPLES,
                )
            )
            for name in LOSSES
        }
    return {"recovered": shares, "bill": bills, "advantage": gains}


def _texts(records: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Return what the texts themselves are like: who wrote them, how long they are, how far they are the cloud's."""
    rows = [record["arms"][arm] for record in records]
    shown = sum(len(row["ids"]) for row in rows)
    judged = sum(row["tokens"] for row in rows)
    graded = [row["right"] for row in rows if row["right"] is not None]
    return {
        "cloud_tokens": round(sum(row["cloud_tokens"] for row in rows) / max(1, shown), 4),
        "tokens": round(shown / max(1, len(rows)), 2),
        "requests": round(sum(len(row["requests"]) for row in rows) / max(1, len(rows)), 2),
        "best_tokens": round(sum(row["best"] for row in rows) / max(1, judged), 4),
        "same_text": round(sum(row["same"] for row in rows) / max(1, len(rows)), 4),
        "repetition": round(float(np.mean([row["repetition"] for row in rows])), 4) if rows else None,
        "excess_nats": round(sum(row["excess"] for row in rows) / max(1, judged), 4),
        "nll_nats": round(sum(row["nll"] for row in rows) / max(1, judged), 4),
        "right": estimate_to_json(wilson(sum(graded), len(graded))) | {"graded": len(graded)},
        "degraded": sum(row["degraded"] is not None for row in rows),
    }
