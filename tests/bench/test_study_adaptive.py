"""Section adaptive: the bandit that is played over records, what its figures are, and the records of a world."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import PRICES, SETTINGS
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.adaptive import ADAPTIVE_SECTION, EVERY, FIXED, adaptive_grids, lost_of, play
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.policy.adaptive import lost_share
from hybrid.report import Chart, Table
from hybrid.types import Sampling

TARIFF = NamedTariff("1/0.1/4 U", PRICES[0], SETTINGS[0])
DESIGN = Design("x", ("adaptive",), {}, {}, tariffs=(TARIFF,), options={"streams": 6, "answers": 600})
GRID = SimpleNamespace(pair="by hand")
CLOUD_WRITES = ["write", 100, 0, 0, 100]  # 500 prompt tokens
BEST = 4


def answer(share, *, right, lost):
    """An answer at a share of what the cloud alone takes, of one local token; all is lost of one that nobody saw."""
    trace = [] if lost == 1.0 else [(0, -math.log1p(-lost), None, "accepted")]
    return {
        "right": right,
        "pieces": [("x", "checked")],
        "trace": trace,
        "requests": [["write", round(500 * share), 0, 0, 0]] if share else [],
    }


def records(num, shares, losses):
    """Questions that the cloud has right and the local model has not; each arm has every second one right."""
    return [
        {"text": f"{i}", "kind": "k"}
        | {
            "arms": {
                arm.name: answer(share, right=i % 2 == 0, lost=lost)
                for arm, share, lost in zip(FIXED, shares, losses, strict=True)
            }
            | {"local": answer(0.0, right=False, lost=1.0)}
            | {"cloud": {"right": True, "pieces": [("x", "cloud")], "trace": [], "requests": [CLOUD_WRITES]}}
        }
        for i in range(num)
    ]


def part_of(found, **options):
    report = ADAPTIVE_SECTION.report(replace(DESIGN, options=DESIGN.options | options), [GRID], [found])
    [part], [_] = report["parts"], report["summary"]
    assert json.loads(json.dumps(report)) == report
    return part


def test_of_arms_that_are_alike_none_is_regretted_and_nothing_is_above_their_mixture():
    part = part_of(records(40, [0.5] * 7, [0.1] * 7))
    for row in each_of(part["curve"]):
        assert [row["adaptive"][end] for end in ("low", "value", "high")] == pytest.approx([0.0] * 3, abs=1e-9)
        assert (row["bill"]["value"], row["more"]["value"]) == (0.5, pytest.approx(0.0, abs=0.05))
    assert sum(arm["taken"] for arm in part["arms"]) == pytest.approx(1.0)
    assert [arm["cost"]["value"] for arm in part["arms"]] == pytest.approx([0.5 + 2.2 * 0.1] * 7, abs=1e-4)


def test_regret_is_told_in_bills_of_the_clouds_own_and_falls_once_the_better_arm_is_proven():
    """The arm costs 0.6 bills less and loses as much: an answer of the preset's own is 0.6 dearer, on any stream."""
    shares = [1.0] * 7
    shares[BEST] = 0.4
    part = part_of(records(40, shares, [0.2] * 7))
    assert [row["preset"]["value"] for row in part["curve"]] == pytest.approx([0.6] * 10, abs=1e-4)
    first, *_, last = (row["adaptive"]["value"] for row in part["curve"])
    assert 0.4 < first <= 0.6
    assert last < 0.5 * first
    assert part["arms"][BEST]["taken"] > 0.9
    assert part["curve"][-1]["bill"]["value"] < 0.5


def test_what_an_arm_loses_counts_as_worth_says():
    """A loss of half an answer outweighs a whole bill."""
    shares, losses = [1.0] * 7, [0.0] * 7
    shares[BEST], losses[BEST] = 0.1, 0.5
    part = part_of(records(40, shares, losses))
    assert part["arms"][BEST]["cost"]["value"] == pytest.approx(0.1 + 1.1, abs=1e-4)
    assert (part["arms"][0]["taken"], part["curve"][-1]["preset"]["value"]) == (pytest.approx(0.75, abs=0.1), 0.0)


def test_a_stream_is_played_the_same_each_time_and_by_another_coin_otherwise():
    rewards = np.random.default_rng(0).uniform(-1.0, 0.0, (7, 300))
    assert play(rewards, 1) == play(rewards, 1) != play(rewards, 2)


def test_where_nothing_is_graded_costs_are_told_and_shares_are_not():
    found = records(20, [0.5] * 7, [0.1] * 7)
    for arm in each_of(each for record in found for each in record["arms"].values()):
        arm["right"] = None
        assert lost_of(arm) is None or 0.0 <= lost_of(arm) <= 1.0
    part = part_of(found, answers=100)
    assert (part["arms"][0]["share"]["value"], part["curve"][-1]["more"]["value"]) == (None, None)
    assert part["arms"][0]["cost"]["value"] == pytest.approx(0.72, abs=1e-4)


def test_where_the_gap_between_the_models_may_be_chance_no_share_is_told():
    """The cloud alone is right on one question of twenty, the local model on none."""
    found = records(20, [0.5] * 7, [0.1] * 7)
    for number, record in each_of(enumerate(found)):
        for name, arm in record["arms"].items():
            arm["right"] = number == 0 and name == "cloud"
    report = ADAPTIVE_SECTION.report(DESIGN, [GRID], [found])
    [part] = report["parts"]
    assert {arm["share"]["value"] for arm in part["arms"]} == {None}
    assert {each[what]["value"] for each in part["curve"] for what in ("share", "more")} == {None}
    assert report["summary"][0].endswith("The gap between the models is not clear.")


def test_ungraded_questions_are_left_out_where_some_are_graded():
    graded, unknown = records(20, [0.5] * 7, [0.1] * 7), records(3, [9.0] * 7, [0.9] * 7)
    for arm in each_of(each for record in unknown for each in record["arms"].values()):
        arm["right"] = None
    found = [ADAPTIVE_SECTION.report(DESIGN, [GRID], [each]) for each in (graded, graded + unknown)]
    assert found[0] == found[1]
    assert found[0]["parts"][0]["arms"][0]["share"]["value"] is not None


def test_the_report_shows_every_arm_and_both_curves():
    shown = ADAPTIVE_SECTION.document(ADAPTIVE_SECTION.report(DESIGN, [GRID], [records(20, [0.5] * 7, [0.1] * 7)]))
    arms, curve = (block for block in shown if isinstance(block, Table))
    assert [row[0] for row in arms.rows] == [arm.name for arm in FIXED]
    assert [row[0] for row in curve.rows] == [str(number) for number in range(60, 601, 60)]
    [chart] = [block for block in shown if isinstance(block, Chart)]
    assert [name for name, _ in chart.lines] == ["adaptive", "preset"]


def test_a_world_keeps_what_each_arm_lost_and_learns_nothing_between_questions():
    """What is lost where nobody looked is not known, and what the cloud wrote loses nothing."""
    [question] = as_questions(draw_problems("calibration", 1, 0)[:1])
    design = replace(DESIGN, drawn={0: {"bundled": (question,)}}, pairs={"bundled": None})
    [grid] = adaptive_grids(design)

    async def tried():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:

            async def unchecked(*_):
                pass

            record = await grid.answer(world, 0, 0, unchecked)
            one, other = [
                await world.answer(question.text, arm, Sampling(seed=0), question.max_tokens)
                for arm in (Arm("a", "kl:adaptive"), FIXED[0])
            ]
            return record, one, other

    record, one, other = asyncio.run(tried())
    lost = {name: lost_of(each) for name, each in record["arms"].items()}
    assert lost.keys() == {arm.name for arm in EVERY}
    assert (lost["local"], lost["cloud"]) == (None, 0.0)
    local = [token.kl.lower for token in other.answer.tokens if token.source == "local"]
    assert 0.0 < lost[FIXED[0].name] == pytest.approx(lost_share(local), abs=1e-3)
    assert (one.answer.tokens, one.requests) == (other.answer.tokens, other.requests)
