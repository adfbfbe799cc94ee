"""The whole report of ``hybrid bench text``: every section's tables, and how the world compares with the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.driver_check import NEAR_TIE_NATS
from hybrid.lab.experiments.position_table import position_table
from hybrid.lab.experiments.suite import TextSection
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS, CountedRequest, PriceSetting, TokenPrices, cost
from hybrid.prob import Floats
from hybrid.tasks.statistics import advantage, bill_ratio, recovered_share, rpi, wilson

# The second table: what each rule recovers of the loss between the two models, and what it costs under each tariff.
#
# The loss is the reference's at the text's own prefixes, as excess nats and as NLL, per token (the mean of a question)
# and summed per answer. Sending whole questions at random recovers what it pays for: the diagonal, whose advantage is
# 0. Records are interpreted; nothing is run.

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


# Sending whole questions to the cloud: what it recovers at a bill, from the two models' own answers alone.
#
# Questions are sent in the order of a score until the bill is reached; the one at the edge is sent in part, which is
# what a coin would do on average. The scores know the draft and the price that its length suggests; the oracle knows
# the loss. The orders stand still in the bootstrap, as a score that was chosen before does.

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
        row["bill_at"] = {
            loss: {f"{share:g}": bill_at(row["curve"][loss], share) for share in SHARES} for loss in LOSSES
        }
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


def bill_at(curve: Sequence[Sequence[float]], share: float) -> float | None:
    """Return the bill at which a share is first reached, between two points (bill, share); None where it is not."""
    for (bill, below), (more, above) in pairwise(curve):
        if below < share <= above:
            return round(bill + (more - bill) * (share - below) / (above - below), 4)
    return None


def text_report(sections: Sequence[TextSection], found: Mapping[tuple[int, int], dict[str, Any]]) -> dict[str, Any]:
    """Return the report as plain data, from the records of every question by section and number."""
    told, every = [], []
    for number, section in enumerate(sections):
        records = [found[number, i] for i in range(len(section.questions))]
        every += records
        told.append(_section(section, records))
    return {"sections": told, "against_the_client": agreement([each for record in every for each in record["checked"]])}


def _section(section: TextSection, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    arms = [arm.name for arm in section.arms]
    return {
        "section": section.name,
        "pair": section.pair,
        "temperature": section.temperature,
        "top_k": section.top_k,
        "questions": len(records),
        "positions": position_table(records) if section.positions and records else None,
        "rules": rule_rows(records, arms),
        "routing": routing_rows(records),
        "right": right_answers(records),
    }


def agreement(checked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the answers that the client over the bundled server wrote again, and how they differ."""
    same = [each for each in checked if each["text"] and each["requests"] and each["bill"]]
    other_text = [each for each in checked if not each["text"]]
    near = [each for each in other_text if each["greedy"] and each["gap"] < NEAR_TIE_NATS]
    return {
        "answers": len(checked),
        "same": len(same),
        "other_requests": len(checked) - len(same) - len(other_text),
        "other_text": len(other_text),
        "other_text_greedy": sum(each["greedy"] for each in other_text),
        "other_text_greedy_at_a_near_tie": len(near),
        "differences": [each for each in checked if each not in same],
    }
