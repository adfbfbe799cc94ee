"""Section adaptive: ``kl:adaptive``, played over the records of its arms, beside the best of them in hindsight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import Frame, bills, column, told
from hybrid.lab.experiments.grid import CLOUD, LOCAL, Grid, Record
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.study.answers import answers_grids
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.section import Section
from hybrid.policy.adaptive import ADAPTIVE, ARMS, IN_BILLS, ArmCounts, choose_arm, lost_share, reward
from hybrid.prob import Floats
from hybrid.report import Axis, Block, Chart, Document
from hybrid.report.tables import at, estimate, table_of, with_interval

FIXED = tuple(Arm(str(arm), "kl", {"threshold": arm.threshold, "span": arm.span, "hold": arm.hold}) for arm in ARMS)
EVERY = (*FIXED, LOCAL, CLOUD)
STREAMS, ANSWERS = 40, 1000


def adaptive_grids(design: Design) -> tuple[Grid, ...]:
    """Return each pair's questions under every arm, in the place of the design's own."""
    return answers_grids(replace(design, arms=FIXED))


def lost_of(answer: Mapping[str, Any]) -> float | None:
    """Return what is known to be lost of a recorded answer, as a client has it; None: nobody looked."""
    nats = {position: low for position, low, *_ in answer["trace"]}
    writers = [(who == "cloud", nats.get(position)) for position, (_, who) in enumerate(answer["pieces"])]
    return lost_share(*([low for by_cloud, low in writers if by_cloud == side] for side in (False, True)))


def play(rewards: Floats, seed: int) -> list[int]:
    """Return the arms that a client chooses along a stream; ``rewards``: of A arms at T answers, shape (A, T)."""
    counts, chosen, draw = dict[str, ArmCounts](), list[int](), np.random.default_rng(seed).random
    for earned in rewards.T.tolist():
        arm = choose_arm(counts, draw()).arm
        chosen.append(ARMS.index(arm))
        now = earned[chosen[-1]]
        counts[str(arm)] = counts.get(str(arm), ArmCounts()).plus(ArmCounts(1, 1, now, now**2))
    return chosen


def adaptive_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return each arm, and as answers come regret and what is recovered at an equal bill, by pair and tariff."""
    size = int(design.options.get("streams", STREAMS)), int(design.options.get("answers", ANSWERS))
    of_pairs: dict[str, list[Record]] = {grid.pair: [] for grid in grids}
    for grid, records in zip(grids, found, strict=True):
        of_pairs[grid.pair] += records
    parts = [_part(pair, _graded(own), tariff, *size) for pair, own in of_pairs.items() for tariff in design.tariffs]
    return {"parts": parts, "summary": [_said(part) for part in parts]}


def _graded(records: Sequence[Record]) -> Sequence[Record]:
    """Return those that are graded, of some that are; else all, of which costs alone are told."""
    return [each for each in records if each["arms"][CLOUD.name]["right"] is not None] or records


def _part(pair: str, records: Sequence[Record], tariff: NamedTariff, num: int, length: int) -> dict[str, Any]:
    answers = [[each["arms"][arm.name] for each in records] for arm in EVERY]
    paid = np.array([bills(own, tariff.setting, tariff.prices) for own in answers])
    right = np.array([column(own, "right") for own in answers])
    rewards = np.vectorize(reward)(paid / paid[-1], [[*map(lost_of, own)] for own in answers])[: len(ARMS)]
    # A stream is drawn with replacement: what is told of streams lies between what 95 % of them have.
    drawn = np.random.default_rng(0).integers(len(records), size=(num, length))
    chosen = np.array([play(rewards[:, own], number) for number, own in enumerate(drawn)])
    frame, step = Frame(right[-2], right[-1], paid[-1]), length // 10

    def row(until: int) -> dict[str, Any]:
        """Tell the regret of the first answers, and what the last tenth of them recovers, shape (S,) each."""
        last = drawn[:, until - step : until], chosen[:, until - step : until]
        every_right, every_paid = (values[:, last[0]].sum(2) for values in (right, paid))
        drawn_gap = every_right[-1] - every_right[-2]
        gap = np.where(frame.clear & (drawn_gap > 0.0), drawn_gap, np.nan)
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
    recovered = frame.shares(right[:-2]) if frame.clear else np.full_like(costs, np.nan)
    alone = zip(FIXED, recovered, frame.ratios(paid[:-2]), costs, strict=True)
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
    more = f"recover {estimate(end['more'])} more than the arms and both models mixed by a coin"
    known = end["more"]["value"] is not None
    recovers = f"At an equal bill its last answers {more}." if known else "The gap between the models is not clear."
    return (
        f"{part['pair']}, {part['tariff']}: over {end['answers']} answers {ADAPTIVE} costs {estimate(end['adaptive'])} "
        f"bills of the cloud's an answer more than the best arm in hindsight (over all questions: {best['arm']}), the "
        f"preset {estimate(end['preset'])}. {recovers}"
    )


RECOVERED = {"recovered": with_interval("share"), "bill": with_interval("bill")}
ARM = {"arm": at("arm")} | RECOVERED | {"cost": with_interval("cost"), "taken at last": at("taken", form=".0%")}
REGRETS = {"regret": with_interval("adaptive"), "the preset's": with_interval("preset")}
CURVE = {"answers": at("answers")} | REGRETS | RECOVERED | {"above a mixture": with_interval("more")}


def adaptive_document(report: dict[str, Any]) -> Document:
    """Say what it came to; then each arm, and a table and a chart as answers come."""
    blocks: list[Block] = []
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
ADAPTIVE_SECTION = Section("adaptive", TITLE, adaptive_grids, adaptive_report, adaptive_document, OPTIONS, False)
