"""Exploration: fewer branches are the product's own, and every share, bill and difference is that of a second hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli.experiment import DESIGNS
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest, cost, counted
from hybrid.lab.experiments.grid import ModelPair
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.design import Design, NamedTariff, read_design
from hybrid.lab.study.exploration import (
    MAJORITY,
    NUMS,
    OWN,
    PASSED,
    SCORED,
    exploration_document,
    exploration_grids,
    exploration_report,
    fewer,
    try_branches,
)
from hybrid.lab.study.sections import sections_of
from hybrid.policy.branches import final_answer
from hybrid.report import Table
from hybrid.types import Sampling

TARIFFS = tuple(NamedTariff(each.name, PRICES[0], each) for each in (SETTINGS[0], SETTINGS[-1]))
HEATS = ("0.5", "1.5")


async def no_check(*_):
    """Check nothing."""


def test_fewer_branches_are_what_the_product_shows_and_pays_where_it_draws_so_few():
    """So that the most are drawn once. On the bundled pair; answers are cut, which changes nothing of the law."""
    question = replace(as_questions(draw_problems("calibration", 1, 3))[4], max_tokens=24)
    seen = Counter()

    async def compare():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            for seed in (0, 1):
                sampling = Sampling(seed=seed)
                record = await try_branches((0.5, 1.3), world, question, sampling, no_check)
                for heat, num in ((heat, num) for heat in (0.5, 1.3) for num in NUMS):
                    drawn = record["branches"][f"{heat:g}"]["drawn"]
                    ways = fewer(record["branches"][f"{heat:g}"], num)
                    for way, choose in ((SCORED, "logprob"), (MAJORITY, "majority")):
                        arm = Arm("branches", "local", {"branches": num, "choose": choose})
                        own = await world.answer(question.text, arm, Sampling(heat, seed=seed), question.max_tokens)
                        assert own.answer.text == ways[way]["text"]
                        assert ways[way]["right"] == question.grade(own.answer.text)
                        assert [*counted(own.requests)] == ways[way]["requests"]
                        seen[sum(draws[0] < num for *_, draws, _ in drawn), len(drawn)] += 1

    asyncio.run(compare())
    assert {num for num, of in seen if of > 1} > {1, 2}, "where all of the first are the same, and where they are not"


def answer(right, prompt=40, tokens=10):
    return {"right": right, "requests": [CountedRequest("write", prompt, 0, 0, tokens)]}


def made(rng):
    """A question's record of the arms, and one of its branches: nothing of a model, every number drawn."""
    arms = {
        name: answer(bool(rng.random() < chance)) for name, chance in (("local", 0.3), ("cloud", 0.9), ("auto", 0.6))
    }
    arms["local"]["requests"] = []
    arms["auto"]["requests"] = [CountedRequest("check", 50, 10, 0, 1)] if rng.random() < 0.5 else []
    branches = {}
    for heat in HEATS:
        texts = [f"It is {rng.integers(4)}" for _ in range(NUMS[-1])]
        draws = {text: tuple(i for i, each in enumerate(texts) if each == text) for text in texts}
        sizes = {text: int(rng.integers(3, 9)) for text in draws}
        drawn = [(sizes[t], t, -float(rng.random()), numbers, -float(rng.random())) for t, numbers in draws.items()]
        sent = [CountedRequest("check", 40 + sizes[text], sizes[text], 40 * (i > 0), 1) for i, text in enumerate(draws)]
        branches[heat] = {
            "drawn": drawn,
            "right": [text[-1] == "3" for text in draws],
            "requests": sent if len(draws) > 1 else [],
        }
    return {"arms": arms}, {"seed": 0, "branches": branches}


def by_hand(record, heat, num, way):
    """Whether a way is right, and the requests that it pays for."""
    told = record["branches"][heat]
    first = [(i, each) for i, each in enumerate(told["drawn"]) if min(each[3]) < num]
    votes = Counter(final_answer(each[1]) for _, each in first for draw in each[3] if draw < num)
    if way == PASSED:
        return any(told["right"][i] for i, _ in first), []
    ranks = {
        SCORED: lambda each: each[4] / each[0],
        OWN: lambda each: each[2] / each[0],
        MAJORITY: lambda each: (votes[final_answer(each[1])], each[2] / each[0]),
        "one draw": lambda each: -min(each[3]),
    }
    best = max(first, key=lambda pair: ranks[way](pair[1]))[0]
    return told["right"][best], told["requests"][: len(first)] if way == SCORED and len(first) > 1 else []


@pytest.fixture(scope="module")
def told():
    """The records, and the report of them."""
    rng = np.random.default_rng(5)
    records = [made(rng) for _ in range(60)]
    questions = {0: {"bundled": as_questions(draw_problems("calibration", 5, 0))[:60]}}
    pairs = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
    design = Design(
        "x", ("exploration",), pairs, questions, (Arm("auto", "auto"),), TARIFFS, options={"temperatures": (0.5, 1.5)}
    )
    grids = exploration_grids(design)
    assert [grid.pair for grid in grids] == ["bundled", "bundled"]
    return records, exploration_report(design, grids, [[a for a, _ in records], [b for _, b in records]])


@each("tariff", TARIFFS, ids=lambda tariff: tariff.name)
def test_what_is_recovered_and_paid_is_that_of_a_second_hand(told, tariff):
    records, report = told
    both = [one | other for one, other in records]

    def priced(requests):
        return cost(requests, tariff.setting, tariff.prices)

    totals = {name: sum(each["arms"][name]["right"] for each in both) for name in ("local", "cloud", "auto")}
    bills = {name: sum(priced(each["arms"][name]["requests"]) for each in both) for name in totals}
    shares = {name: (totals[name] - totals["local"]) / (totals["cloud"] - totals["local"]) for name in totals}
    paid = {name: bills[name] / bills["cloud"] for name in totals}
    (part,) = report["parts"]
    assert part["questions"] == 60
    assert len(part["rows"]) == len(HEATS) * len(NUMS) * 5
    for row in each_of(part["rows"]):
        own = [by_hand(each, f"{row['temperature']:g}", row["num"], row["way"]) for each in both]
        right, bill = sum(right for right, _ in own), sum(priced(sent) for _, sent in own) / bills["cloud"]
        share = (right - totals["local"]) / (totals["cloud"] - totals["local"])
        assert row["right"]["value"] == pytest.approx(right / 60, abs=1e-4)
        assert row["share"]["value"] == pytest.approx(share, abs=1e-4)
        assert row["tariffs"][tariff.name]["bill"]["value"] == pytest.approx(bill, abs=1e-4)
        # Two ways mixed by a coin, by enumeration of the pairs.
        most = max(
            shares[a] + (shares[b] - shares[a]) * min(1.0, (bill - paid[a]) / (paid[b] - paid[a]))
            for a in shares
            for b in shares
            if paid[a] <= bill and paid[b] > paid[a]
        )
        assert row["tariffs"][tariff.name]["beyond"]["value"] == pytest.approx(share - most, abs=1e-3)
        low, high = row["share"]["low"], row["share"]["high"]
        assert low <= row["share"]["value"] <= high
        cold = next(e for e in part["rows"] if (e["num"], e["way"]) == (row["num"], row["way"]))
        expected = row["share"]["value"] - cold["share"]["value"]
        assert row["less_coldest"]["value"] == pytest.approx(expected, abs=2e-4)


def test_every_row_is_printed_and_the_summary_names_each_way(told):
    _, report = told
    tables = [block for block in exploration_document(report) if isinstance(block, Table)]
    assert [len(table.rows) for table in tables] == [len(HEATS) * 5] * len(NUMS)
    for way in (SCORED, MAJORITY, OWN, PASSED):
        assert sum(f"bundled, {way}: best on these questions with" in said for said in report["summary"]) == 1


def test_a_question_that_nobody_grades_is_left_out(told):
    records, _ = told
    ungraded = {"arms": {name: {"right": None, "requests": []} for name in ("local", "cloud", "auto")}}
    pairs = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
    questions = {0: {"bundled": as_questions(draw_problems("calibration", 1, 0))[:2]}}
    design = Design("x", ("exploration",), pairs, questions, (Arm("auto", "auto"),), TARIFFS)
    found = [[ungraded, ungraded], [records[0][1], records[1][1]]]
    assert exploration_report(design, exploration_grids(design), found) == {"parts": [], "summary": []}


def test_the_design_that_ships_is_one():
    design = read_design(DESIGNS / "exploration.toml")
    assert [section.name for section in sections_of(design)] == ["exploration"]
    assert [arm.policy for arm in design.arms] == ["auto"]


def test_without_a_clear_gap_that_is_said_and_no_share_is(told):
    records, _ = told
    alike = [
        (
            {"arms": one["arms"] | {"cloud": one["arms"]["local"] | {"requests": one["arms"]["cloud"]["requests"]}}},
            other,
        )
        for one, other in records
    ]
    pairs = {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}
    questions = {0: {"bundled": as_questions(draw_problems("calibration", 5, 0))[:60]}}
    design = Design("x", ("exploration",), pairs, questions, (Arm("auto", "auto"),), TARIFFS)
    report = exploration_report(design, exploration_grids(design), [[a for a, _ in alike], [b for _, b in alike]])
    assert report["summary"] == ["bundled: the gap between the two models is not clear."]
    assert {row["share"]["value"] for row in report["parts"][0]["rows"]} == {None}
    assert exploration_document(report)
