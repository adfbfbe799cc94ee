"""Section adaptive: ``kl:adaptive`` beside each of its arms, and beside the best of them in hindsight.

Each arm answers each question; over the records a client's bandit is played, along streams drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import Frame, bills, column, told
from hybrid.lab.experiments.grid import CLOUD, LOCAL, CheckAnswer, GradedQuestion, Grid, Record, arms_to_json
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.experiments.trials import answer_arms, spent_record
from hybrid.lab.experiments.world import World
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.section import Section
from hybrid.pairs.profile import lost_in
from hybrid.policy.adaptive import ADAPTIVE, ARMS, IN_BILLS, ArmCounts, choose_arm, reward
from hybrid.prob import Floats
from hybrid.report import Axis, Block, Chart, Document, Heading, Text
from hybrid.report.tables import at, estimate, table_of, with_interval
from hybrid.types import Sampling

FIXED = tuple(Arm(str(arm), "kl", {"threshold": arm.threshold, "span": arm.span, "hold": arm.hold}) for arm in ARMS)
EVERY = (*FIXED, LOCAL, CLOUD)
STREAMS, ANSWERS = 40, 1000


def adaptive_grids(design: Design) -> tuple[Grid, ...]:
    """Return each pair's questions under every arm."""
    content = ("adaptive", design.temperature, arms_to_json(EVERY))
    return tuple(
        Grid(f"adaptive, {pair}", pair, questions, try_fixed, content, len(EVERY), EVERY, design.temperature)
        for pair, questions in design.questions.items()
    )


async def try_fixed(world: World, question: GradedQuestion, sampling: Sampling, check: CheckAnswer) -> Record:
    """Let every arm answer; keep who is right, what was paid and what is known to be lost."""
    answers, graded = await answer_arms(world, question, EVERY, sampling, check), getattr(question, "graded", True)
    kept = {
        name: {"right": question.grade(each.answer.text) if graded else None, "lost": lost_in(each.answer)}
        for name, each in answers.items()
    }
    arms = {name: spent_record(each) | kept[name] for name, each in answers.items()}
    return {"text": question.text, "kind": question.kind, "arms": arms}


def play(rewards: Floats, seed: int) -> list[int]:
    """Return the arms that are chosen along a stream; ``rewards``: of A arms at each of its T answers, shape (A, T)."""
    counts, chosen = dict[str, ArmCounts](), list[int]()
    for coin, earned in zip(
        np.random.default_rng(seed).random(len(rewards.T)).tolist(), rewards.T.tolist(), strict=True
    ):
        arm = choose_arm(counts, coin).arm
        chosen.append(ARMS.index(arm))
        now = earned[chosen[-1]]
        counts[str(arm)] = counts.get(str(arm), ArmCounts()).plus(ArmCounts(1, 1, now, now**2))
    return chosen


def adaptive_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return each arm, and as answers come regret and what is recovered at an equal bill, by pair and tariff."""
    size = int(design.options.get("streams", STREAMS)), int(design.options.get("answers", ANSWERS))
    pairs = zip((grid.pair for grid in grids), found, strict=True)
    parts = [_part(pair, records, tariff, *size) for pair, records in pairs for tariff in design.tariffs]
    return {"parts": parts, "summary": [_said(part) for part in parts]}


def _part(pair: str, records: Sequence[Record], tariff: NamedTariff, num: int, length: int) -> dict[str, Any]:
    answers = [[each["arms"][arm.name] for each in records] for arm in EVERY]
    paid = np.array([bills(own, tariff.setting, tariff.prices) for own in answers])
    right, lost = (np.array([column(own, name) for own in answers]) for name in ("right", "lost"))
    rewards = np.vectorize(reward)(paid / paid[-1], lost)[: len(ARMS)]
    drawn = np.random.default_rng(0).integers(len(records), size=(num, length))
    chosen = np.array([play(rewards[:, own], number) for number, own in enumerate(drawn)])
    frame, step = Frame(right[-2], right[-1], paid[-1]), length // 10

    def row(until: int) -> dict[str, Any]:
        """Tell the regret of the first answers, and what the last tenth of them recovers, shape (S,) each."""
        last = drawn[:, until - step : until], chosen[:, until - step : until]
        every_right, every_paid = (values[:, last[0]].sum(2) for values in (right, paid))
        gap = np.where(every_right[-1] > every_right[-2], every_right[-1] - every_right[-2], np.nan)
        shares, ratios = (every_right - every_right[-2]) / gap, every_paid / every_paid[-1]
        share = (right[last[1], last[0]].sum(1) - every_right[-2]) / gap
        bill = paid[last[1], last[0]].sum(1) / every_paid[-1]
        best = rewards[:, drawn[:, :until]].mean(2).max(0)
        arms = {"adaptive": chosen[:, :until], "preset": np.zeros_like(chosen[:, :until])}
        regret = {who: IN_BILLS * (best - rewards[own, drawn[:, :until]].mean(1)) for who, own in arms.items()}
        more = share - best_share(shares, ratios, bill)
        told_of = {**regret, "share": share, "bill": bill, "more": more}
        return {"answers": until} | {name: told(np.append(each.mean(), each)) for name, each in told_of.items()}

    costs = -IN_BILLS * frame.resamples.sums(rewards) / len(records)
    alone = zip(FIXED, frame.shares(right[:-2]), frame.ratios(paid[:-2]), costs, strict=True)
    return {
        "pair": pair,
        "tariff": tariff.name,
        "questions": len(records),
        "streams": num,
        "arms": [
            {"arm": arm.name, "share": told(share), "bill": told(bill), "cost": told(cost)}
            | {"taken": float((chosen[:, -step:] == number).mean())}
            for number, (arm, share, bill, cost) in enumerate(alone)
        ],
        "curve": [row(until) for until in range(step, length + 1, step)],
    }


def _said(part: dict[str, Any]) -> str:
    best, end = min(part["arms"], key=lambda arm: arm["cost"]["value"]), part["curve"][-1]
    return (
        f"{part['pair']}, {part['tariff']}: over {end['answers']} answers {ADAPTIVE} costs {estimate(end['adaptive'])} "
        f"bills of the cloud's an answer more than the best arm in hindsight (over all questions: {best['arm']}), the "
        f"preset {estimate(end['preset'])}. At an equal bill its last answers recover {estimate(end['more'])} "
        "more than the arms and both models mixed by a coin."
    )


RECOVERED = {"recovered": with_interval("share"), "bill": with_interval("bill")}
ARM = {"arm": at("arm")} | RECOVERED | {"cost": with_interval("cost"), "taken at last": at("taken", form=".0%")}
REGRETS = {"regret": with_interval("adaptive"), "the preset's": with_interval("preset")}
CURVE = {"answers": at("answers")} | REGRETS | RECOVERED | {"above a mixture": with_interval("more")}


def adaptive_document(report: dict[str, Any]) -> Document:
    """Say what it came to; then each arm, and a table and a chart as answers come."""
    blocks: list[Block] = [Heading(ADAPTIVE_SECTION.title), *(Text(said, "strong") for said in report["summary"])]
    for part in report["parts"]:
        name, curve = f"{part['pair']}, {part['tariff']}", part["curve"]
        lines = [(who, [(each["answers"], each[who]["value"]) for each in curve]) for who in ("adaptive", "preset")]
        most = max(0.01, *(value for _, line in lines for _, value in line))
        across = Axis("answers", 0.0, curve[-1]["answers"], [(each["answers"], f"{each['answers']}") for each in curve])
        up = Axis("regret", 0.0, most, [(most, f"{most:.2f}")])
        blocks += [
            table_of(f"{name}: each arm, {part['questions']} questions", part["arms"], ARM),
            table_of(f"{name}: {ADAPTIVE}, {part['streams']} streams, the last tenth of their answers", curve, CURVE),
            Chart(f"{name}: regret an answer, in bills of the cloud's", across, up, lines),
        ]
    return blocks


TITLE, OPTIONS = "The adaptive threshold: a bandit over settings of kl", ("streams", "answers")
ADAPTIVE_SECTION = Section("adaptive", TITLE, adaptive_grids, adaptive_report, adaptive_document, OPTIONS)
