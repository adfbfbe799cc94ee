"""Exploration: branches of the small model beside one answer of ``auto``, at an equal bill, by temperature.

At each temperature the most branches are drawn once, by the product; fewer are the first of them. The large model's
choice pays for its checks; a majority, and the small model's own choice, are free. pass@N is what a perfect choice
would have right: nobody can buy it. The law (``tests/bench/test_study_exploration.py``): what is told of fewer branches
is what the product shows and pays where it draws so few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.frame import counted, told
from hybrid.lab.experiments.grid import CLOUD, CheckAnswer, GradedQuestion, Grid, Record
from hybrid.lab.experiments.peers_report import best_share
from hybrid.lab.experiments.world import World
from hybrid.lab.study.answers import answers_grids
from hybrid.lab.study.design import Design
from hybrid.lab.study.section import Section
from hybrid.lab.study.threshold import RIGHT, ways_of
from hybrid.policy.branches import BranchRule, choose_branch
from hybrid.policy.requests import Branch, PendingToken
from hybrid.report import Block, Document
from hybrid.report.tables import at, estimate, table_of, with_interval
from hybrid.run.composition import weighs
from hybrid.tasks.statistics import wilson
from hybrid.types import Sampling

NUMS = (2, 4, 8)
TEMPERATURES = (0.3, 0.5, 0.7, 1.0, 1.3, 1.5)
SCORED, MAJORITY, OWN, PASSED = "large model", "majority", "small model", "pass@N"
ONE = PendingToken(0, "local", "unchecked")


def exploration_grids(design: Design) -> tuple[Grid, ...]:
    """Return the grids of the arms' answers, and after them as many of branches."""
    temperatures = tuple(map(float, design.options.get("temperatures", TEMPERATURES)))
    trial, content = partial(try_branches, temperatures), ("branches", temperatures, NUMS[-1])
    grids, num = answers_grids(design), len(temperatures) * NUMS[-1]
    own = (Grid(f"{g.name}: branches", g.pair, g.questions, trial, content, num, seed=g.seed) for g in grids)
    return (*grids, *own)


async def try_branches(
    temperatures: Sequence[float], world: World, question: GradedQuestion, sampling: Sampling, check: CheckAnswer
) -> Record:
    """Draw the most branches at each temperature, have each scored, and grade it."""
    found, graded = {}, getattr(question, "graded", True)
    for temperature in temperatures:
        arm, drawing = Arm("branches", "local", {"branches": NUMS[-1]}), replace(sampling, temperature=temperature)
        answered = await world.answer(question.text, arm, drawing, question.max_tokens)
        await check(arm, drawing, answered)
        drawn = [
            (each.num_tokens, each.text, each.local_logprob, each.draws, each.cloud_logprob)
            for each in answered.branches
        ]
        right = [question.grade(each.text) if graded else None for each in answered.branches]
        found[f"{temperature:g}"] = {"drawn": drawn, "right": right, "requests": list(counted(answered.requests))}
    return {"seed": sampling.seed, "branches": found}


def fewer(recorded: Mapping[str, Any], num: int) -> dict[str, dict[str, Any]]:
    """Return what each way to choose among the first ``num`` draws shows, whether it is right, and what it asks."""
    drawn = [(*each, [draw for draw in draws if draw < num], score) for *each, draws, score in recorded["drawn"]]
    first = [Branch((ONE,) * size, text, own, tuple(draws), score) for size, text, own, draws, score in drawn if draws]
    ways = {
        SCORED: choose_branch(BranchRule(num), first),
        MAJORITY: choose_branch(BranchRule(num), [replace(each, cloud_logprob=None) for each in first]),
        OWN: max(first, key=lambda each: each.local_logprob / len(each.tokens)),
        "one draw": first[0],
    }
    right = dict(zip((each.text for each in first), recorded["right"], strict=False))
    shown = {way: {"text": best.text, "right": right[best.text], "requests": []} for way, best in ways.items()}
    shown[SCORED]["requests"] = recorded["requests"][: len(first)] if len(first) > 1 else []
    return shown | {PASSED: {"right": any(right.values()), "requests": []}}


def exploration_report(design: Design, grids: Sequence[Grid], found: Sequence[Sequence[Record]]) -> dict[str, Any]:
    """Return every way to choose at every temperature and number, beside what ``auto`` recovers at its bill."""
    parts, half = [], len(grids) // 2
    for pair in design.pairs:
        pairs = zip(grids, found[:half], found[half:], strict=False)
        records = [a | b for grid, *both in pairs if grid.pair == pair for a, b in zip(*both, strict=True)]
        graded = [each for each in records if each["arms"][CLOUD.name]["right"] is not None]
        parts += [{"pair": pair, "questions": len(graded), "rows": [*_rows(design, graded)]}] if graded else []
    return {"parts": parts, "summary": [said for part in parts for said in _said(part)]}


def _rows(design: Design, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield a row for each, as if it were an arm beside those that weigh."""
    heats = [*records[0]["branches"]]
    keys = list(product(heats, NUMS, fewer(records[0]["branches"][heats[0]], 1)))
    for record, heat, num in product(records, heats, NUMS):
        found = {str((heat, num, way)): each for way, each in fewer(record["branches"][heat], num).items()}
        record["arms"] = record["arms"] | found
    arms = [Arm(str(key), "local") for key in keys] + [arm for arm in design.arms if weighs(arm.policy)]
    ways = {tariff.name: ways_of(records, arms, RIGHT["right"], tariff) for tariff in design.tariffs}
    shares = next(iter(ways.values()))[0]
    for i, (heat, num, way) in enumerate(keys):
        right = [record["arms"][str(keys[i])]["right"] for record in records]
        coldest = shares[keys.index((heats[0], num, way))]
        others = slice(len(keys), None)
        yield {
            "temperature": float(heat),
            "num": num,
            "way": way,
            "right": estimate_to_json(wilson(sum(right), len(right))),
            "share": told(shares[i]),
            "less_coldest": told(shares[i] - coldest),
            "tariffs": {
                name: {"bill": told(paid[i]), "beyond": told(own[i] - best_share(own[others], paid[others], paid[i]))}
                for name, (own, paid) in ways.items()
            },
        }


def _said(part: Mapping[str, Any]) -> Iterator[str]:
    """Say where each choice is farthest beyond ``auto``, under the first tariff, and what heat does to the most."""
    tariff = next(iter(part["rows"][0]["tariffs"]))
    for way in (SCORED, MAJORITY, OWN, PASSED):
        rows = [each for each in part["rows"] if each["way"] == way]
        if rows[0]["share"]["value"] is None:
            yield f"{part['pair']}: the gap between the two models is not clear."
            return
        best = max(rows, key=lambda row: row["tariffs"][tariff]["beyond"]["value"])
        bill, beyond = (estimate(best["tariffs"][tariff][name]) for name in ("bill", "beyond"))
        yield (
            f"{part['pair']}, {way}: best on these questions with {best['num']} draws at {best['temperature']:g}, "
            f"{estimate(best['share'])} of the gap at {bill} of the bill ({tariff}), {beyond} beyond auto at that; "
            f"from temperature {rows[0]['temperature']:g} to {rows[-1]['temperature']:g} {NUMS[-1]} draws change by "
            f"{estimate(rows[-1]['less_coldest'])}."
        )


def exploration_document(report: dict[str, Any]) -> Document:
    """Say what came of it; a table of each pair and number."""
    blocks: list[Block] = []
    for part in report["parts"]:
        columns = {"temperature": at("temperature", form="g"), "chosen by": at("way"), "right": with_interval("right")}
        columns |= {"recovered": with_interval("share"), "less the coldest": with_interval("less_coldest")}
        for name in part["rows"][0]["tariffs"]:
            columns[f"bill, {name}"] = with_interval("tariffs", name, "bill")
            columns[f"beyond auto, {name}"] = with_interval("tariffs", name, "beyond")
        for num in NUMS:
            rows = [each for each in part["rows"] if each["num"] == num]
            blocks.append(table_of(f"{part['pair']}: {num} branches, {part['questions']} questions", rows, columns))
    return blocks


EXPLORATION_SECTION = Section(
    "exploration", "Exploration", exploration_grids, exploration_report, exploration_document, ("temperatures",)
)
