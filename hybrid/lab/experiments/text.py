"""``hybrid bench text``: what every rule recovers of the loss between two real models, and what it costs.

A grid is a pair of models at one temperature, some questions, and the rules that answer them. The grids' sizes are
chosen so that all of them fit 45 minutes on two idle cores (``lab/README.md`` has the measured speeds).

The loss is the reference's at the text's own prefixes, as excess nats and as NLL, per token (the mean of a question)
and summed per answer. Sending whole questions at random recovers what it pays for: the diagonal, whose advantage is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import (
    PRICES,
    SETTINGS,
    CacheAssumption,
    TokenPrices,
    agreement,
    bills,
    column,
    paid_ratio,
    resampled,
    told,
)
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.questions import draw_questions
from hybrid.lab.experiments.trials import text_grid
from hybrid.prob import Floats
from hybrid.tasks.assistant import QuestionSplit
from hybrid.tasks.statistics import loss_shares, rpi, wilson

# A rule's default, and the dials that tell the most of it: thresholds in nats.
RULES = (
    *(
        Arm(f"kl {t:g}, span {span}", "kl", {"threshold": t, "span": span})
        for t, span in ((0.5, 32), (1.5, 32), (3, 64))
    ),
    *(Arm(f"doubt {entropy:g}", "doubt", {"entropy": entropy}) for entropy in (0.5, 1.5, 3)),
    *(Arm(f"doubt {h:g}, back at 0.5", "doubt", {"entropy": h, "threshold": 0.5}) for h in (3, 4)),
    *(Arm(f"excess {t:g}", "excess", {"threshold": t}) for t in (0.5, 1, 2)),
    *(Arm(f"excess {t:g}, hold 12", "excess", {"threshold": t, "hold": 12}) for t in (0.5, 1, 2)),
    *(Arm(f"once {t:g}", "once", {"threshold": t}) for t in (0.5, 1.5)),
    *(Arm(name, name) for name in ("paper", "fsd", "relaxed", "cascade", "certified", "bild", "random")),
)
EXACT_GREEDY = Arm("greedy-exact", "greedy-exact")
EXACT_SAMPLED = (Arm("exact", "exact"), Arm("block", "block"), Arm("u-hlm", "u-hlm"))
# Where only new tokens are paid, a drafted token that is turned down is paid for nothing: fewer at once cost less.
SHORT_SPANS = tuple(Arm(f"excess {t:g}, span 4", "excess", {"threshold": t, "span": 4}) for t in (0.5, 1, 2))
# Below temperature 1 a rule that draws the cloud's token must know its distribution: 19 tokens, of 20 that are shown.
SAMPLED_TOP_K = 19


# The default run: pair, temperature, what for, so many questions, arms.
GREEDY, BOTH = (CLOUD, LOCAL, *RULES, EXACT_GREEDY), (CLOUD, LOCAL)
SHORT, GRADED = ", short spans", " graded"
DEFAULT_RUN: tuple[tuple[str, float, str, int, tuple[Arm, ...]], ...] = (
    ("q3", 0.0, "", 100, GREEDY),
    ("q3", 0.0, SHORT, 60, (*BOTH, *SHORT_SPANS)),
    ("q3", 0.0, GRADED, 300, BOTH),
    ("q3", 0.7, "", 30, (*BOTH, *RULES, *EXACT_SAMPLED)),
    ("q3", 1.0, "", 24, (*BOTH, *EXACT_SAMPLED)),
    ("d2", 0.0, "", 40, GREEDY),
    ("d2", 0.0, SHORT, 40, (*BOTH, *SHORT_SPANS)),
    ("d2", 0.0, GRADED, 300, BOTH),
    ("d2", 0.7, "", 40, BOTH),
    ("d4", 0.0, "", 40, BOTH),
)


def text_grids(
    num: int | None = None,
    pair: str | None = None,
    temperature: float | None = None,
    split: QuestionSplit = "test",
    seed: int = 0,
) -> tuple[Grid, ...]:
    """Return what is run: the default run's grids of a pair and a temperature (None: of all), or one for a new one."""
    chosen = [each for each in DEFAULT_RUN if pair in {None, each[0]} and temperature in {None, each[1]}]
    if not chosen:
        exact = temperature == 1.0  # its law holds there without a cut
        arms = (*BOTH, *EXACT_SAMPLED) if exact else (*BOTH, *RULES, *EXACT_SAMPLED)
        chosen = [(pair or "q3", temperature or 0.0, "", 40, arms)]
    grids = []
    for name, at, what, wanted, arms in chosen:
        graded = what == GRADED
        drawn = draw_questions(None if graded else split, num or wanted, seed, graded=graded)
        top_k = 0 if at in {0.0, 1.0} else SAMPLED_TOP_K
        title = f"{name}{what}" if graded else f"{name} at {at:g}{what}"
        grids.append(text_grid(title, name, drawn, arms, at, top_k))
    return tuple(grids)


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


def rule_rows(records: Sequence[Record], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for every rule of a section."""
    local, cloud = answered(records, "local"), answered(records, "cloud")
    return [
        {"rule": arm} | shares_and_bills(local, answered(records, arm), cloud) | _texts(records, arm) for arm in arms
    ]


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


def _texts(records: Sequence[Record], arm: str) -> dict[str, Any]:
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


def routing_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
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


def orders(records: Sequence[Record], local: AnswerLosses, cloud: AnswerLosses) -> dict[str, Floats]:
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


def mixed(local: AnswerLosses, cloud: AnswerLosses, sent: Floats) -> AnswerLosses:
    """Return what is lost and paid on average where each question is sent so often."""
    losses = {key: sent * cloud.losses[key] + (1.0 - sent) * local.losses[key] for key in local.losses}
    return AnswerLosses(losses, {key: sent * paid for key, paid in cloud.bills.items()})


def right_answers(records: Sequence[Record]) -> dict[str, Any]:
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


def _curve(local: AnswerLosses, cloud: AnswerLosses, points: Sequence[Floats], loss: LossName) -> list[list[float]]:
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


def text_report(grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return the report as plain data, from the records of every grid's questions."""
    return {
        "sections": [_section(grid, records) for grid, records in zip(grids, found, strict=True)],
        "against_the_client": agreement(
            [each for records in found for record in records for each in record["checked"]]
        ),
    }


def _section(grid: Grid, records: Sequence[Record]) -> dict[str, Any]:
    return {
        "section": grid.name,
        "pair": grid.pair,
        "temperature": grid.temperature,
        "top_k": grid.top_k,
        "questions": len(records),
        "rules": rule_rows(records, [arm.name for arm in grid.arms]),
        "routing": routing_rows(records),
        "right": right_answers(records),
    }
