"""A design's answers: the ends of the threshold, the traces, what is recovered, and cases by rule."""

from __future__ import annotations

import asyncio
import json
import math
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise, product

import numpy as np
import pytest
from cases import each_of
from study_records import ARMS, KL, TARIFFS, design, drawn_records, made

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.frame import cost
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.answers import answers_grids, kl_arms
from hybrid.lab.study.cases import (
    ANSWERS_SECTION,
    CASES_SECTION,
    answers_document,
    answers_report,
)
from hybrid.lab.study.own_questions import OwnQuestion
from hybrid.lab.study.recovery import COIN, first_table, recovery_document
from hybrid.lab.study.threshold import (
    LOSS,
    LOSS_SECTION,
    RIGHT,
    THRESHOLD_SECTION,
    area_under,
    recovery_grids,
    recovery_report,
    ways_of,
)
from hybrid.report import Chart, Table, Text, html
from hybrid.tasks.statistics import rpi


async def no_check(*_):
    """Check nothing."""


def answered(asked, num):
    """The records of the first ``num`` questions of the first grid."""

    async def answer():
        [grid, *_] = answers_grids(asked)
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            return [await grid.answer(world, i, i, no_check) for i in range(num)]

    return json.loads(json.dumps(asyncio.run(answer())))


@pytest.mark.slow
def test_the_exact_ends_of_the_threshold_are_the_two_models_alone_and_a_trace_is_what_was_compared():
    """Greedy: at 0 every token is the cloud's, however the local model reads it; at infinity none is ever rejected."""
    problems = as_questions(draw_problems("calibration", 1, 5))
    records = answered(design({0: {"bundled": problems}}), len(problems))
    assert len(records) == len(problems) >= 14
    for record in each_of(records):
        arms = record["arms"]
        assert arms["kl:0"]["answer"] == arms["cloud"]["answer"]
        assert arms["kl:inf"]["answer"] == arms["local"]["answer"]
        assert (arms["kl:0"]["parts"], arms["kl:inf"]["handoff"]) == (None, None)
        assert arms["kl:0"]["excess"] == 0.0
        for name, arm in each_of(arms.items()):
            assert "".join(text for text, _ in arm["pieces"]) == arm["answer"]
            assert all(low <= (math.inf if high is None else high) for _, low, high, *_ in arm["trace"])
            written = [i for i, (_, writer) in enumerate(arm["pieces"]) if writer == "cloud"]
            assert arm["handoff"] in {*written[:1], len(arm["pieces"]), None}
            if name.startswith("kl"):
                judged = [i for i, (_, writer) in enumerate(arm["pieces"]) if writer == "checked"]
                assert {*judged} <= {each[0] for each in arm["trace"]}
        for place, nats, _, how, local, cloud in each_of(arms["kl:0.7"]["trace"]):
            assert how != "accepted" or nats <= 0.7 + 0.2  # a row's noise moves the end that decides
            assert how != "recovered" or arms["kl:0.7"]["pieces"][place][0] in {cloud, ""} or local == cloud
    assert any(record["arms"]["kl:0.7"]["handoff"] is not None for record in records)


@pytest.mark.slow
def test_a_question_that_nobody_grades_is_neither_right_nor_wrong():
    asked = (OwnQuestion(question="What is 2 + 2?", max_tokens=12),)
    [record] = answered(design({0: {"bundled": asked}}, KL), 1)
    assert {each["right"] for each in record["arms"].values()} == {None}
    assert {"cloud", "local"} < record["arms"].keys()


def test_a_grid_is_a_seed_and_a_pair_and_the_thresholds_are_the_kl_arms_own():
    drawn = {seed: {"bundled": as_questions(draw_problems("calibration", 1, seed))} for seed in (3, 1)}
    asked = design(drawn, (Arm("once:2", "once:2"), Arm("b", "kl:1.5"), Arm("a", "kl"), *KL))
    assert [(grid.seed, grid.questions) for grid in answers_grids(asked)] == [
        (seed, drawn[seed]["bundled"]) for seed in (3, 1)
    ]
    found = [(arm.name, nats) for nats, arm in kl_arms(asked)]
    assert found == [("kl:0", 0.0), ("a", 0.5), ("kl:0.7", 0.7), ("b", 1.5), ("kl:inf", math.inf)]
    assert len({json.dumps(answers_grids(design(drawn, arms))[0].content) for arms in (KL, ARMS, KL[:1])}) == 3


# ---- what is recovered ---------------------------------------------------------------------------------------------


def reported(seeds=(0, 1), measures=RIGHT, num=200):
    asked = design({seed: {"bundled": ()} for seed in seeds}, ARMS[:4])
    found = [drawn_records(num, seed) for seed in seeds]
    return recovery_report(measures, asked, answers_grids(asked), found), found


def test_an_area_is_that_of_the_mixtures_of_two_ways_enumerated():
    """The oracle mixes every two ways by every hundredth, and takes the best of all that cost no more."""
    rng, steps = np.random.default_rng(0), np.linspace(0.0, 1.0, 101)
    for _ in each_of(range(6)):
        shares, paid = (np.append(rng.uniform(0.0, most, 4), [0.0, 1.0]) for most in (1.2, 1.6))
        mixed = [
            ((1 - t) * paid[i] + t * paid[j], (1 - t) * shares[i] + t * shares[j])
            for i, j, t in product(range(6), range(6), steps)
        ]
        bills = np.linspace(0.0, 1.0, 201)
        best = [max(share for bill, share in mixed if bill <= limit + 1e-12) for limit in bills]
        naive = sum((one + other) / 2 for one, other in pairwise(best)) / 200
        assert area_under(shares[:, None], paid[:, None])[0] == pytest.approx(naive, abs=0.01)
        assert area_under(shares[:, None], paid[:, None])[0] >= naive - 1e-3


def test_rpi_is_the_drafts_formula_and_the_bills_are_the_tariffs():
    report, found = reported()
    records = [record for some in found for record in some]
    right = {arm: [record["arms"][arm]["right"] for record in records] for arm in records[0]["arms"]}
    paid = {arm: [record["arms"][arm]["requests"] for record in records] for arm in right}
    [part] = report["parts"]
    assert part["questions"] == len(records) == 400
    for row in each_of(part["rows"]):
        hybrid, small, large = (sum(right[arm]) for arm in (row["arm"], "local", "cloud"))
        assert row["share"]["value"] == round(float(Fraction(hybrid - small, large - small)), 4)
        told = rpi(right["local"], right[row["arm"]], right["cloud"])
        assert (row["share"]["low"], row["share"]["high"]) == pytest.approx((told.low, told.high), abs=0.03)
        for tariff in each_of(TARIFFS):
            ours, alone = (
                sum(cost(sent, tariff.setting, tariff.prices) for sent in paid[arm]) for arm in (row["arm"], "cloud")
            )
            assert row["bill"][tariff.name]["value"] == round(ours / alone, 4)
            assert row["over_coin"][tariff.name]["value"] == pytest.approx(
                row["share"]["value"] - ours / alone, abs=1e-3
            )
    assert {kind["kind"]: kind["questions"] for kind in part["kinds"]} == {"sum": 200, "fact": 200}
    for areas in each_of(part["areas"].values()):
        coin = next(row for row in areas if row["rule"] == COIN)
        assert [coin[key]["value"] for key in ("area", "0.5", "0.8")] == [0.5, 0.5, 0.8]


def test_a_rule_with_the_same_answers_at_half_the_bill_is_told_first_and_by_how_much():
    report, _ = reported()
    for row in each_of(report["first"]):
        assert (row["arm"], row["picked_of"], row["questions"]) == ("kl:0.7", 3, 400)
        once = row["others"]["once"]
        assert once["less"]["value"] == pytest.approx(row["bill"]["value"] / 2, abs=0.03)
        assert once["less"]["low"] > 0.2
        assert once["more"]["value"] > 0.0
        assert row["other"] == row["cheaper"]
        assert (row["cheaper"]["arm"], row["cheaper"]["share"]) == ("once", row["share"])
        assert row["random"]["share"] == row["random"]["bill"] == row["bill"]
    [table] = first_table(report["first"])
    assert [row[:3] for row in table.rows] == [
        row
        for tariff in TARIFFS
        for row in ((f"bundled, {tariff.name}", "kl:0.7", "400"), ("", "at random", ""), ("", "once, cheaper", ""))
    ]
    assert any("picked on these same questions" in note for note in table.notes)
    document = recovery_document(report)
    assert not any(isinstance(block, Text) and block.text in report["summary"] for block in document)
    assert sum(isinstance(block, Chart) for block in document) == 2
    html.page("Title", [table, *document])


@pytest.mark.parametrize(("paid", "verdict"), [(12, "beats"), (18, "is not shown to beat"), (40, "loses to")])
def test_the_hand_off_beats_or_loses_to_questions_at_random_where_the_interval_says_so(paid, verdict):
    """The cloud alone sends 20 tokens, and ``once``, which recovers as much, 90: it is no cheaper, mixed or not."""
    names = ("local", "cloud", "kl:0.7", "once")
    bills = {"local": 0, "cloud": 20, "kl:0.7": paid, "once": 90}
    records = [made(dict.fromkeys(names, i % 3 > 0) | {"local": i % 3 > 1}, bills) for i in range(60)]
    for number, record in enumerate(records):  # some are dearer than others
        for arm in set(names) - {"local"}:
            record["arms"][arm]["requests"] *= 1 + number // 3 % 2
        record["arms"]["kl:0.7"]["requests"] = record["arms"]["kl:0.7"]["requests"] * (3 if number % 20 == 0 else 1)
    asked = design({0: {"bundled": ()}}, (KL[1], Arm("once", "once")))
    report = recovery_report(RIGHT, asked, answers_grids(asked), [records])
    tariffs = ", ".join(tariff.name for tariff in TARIFFS)
    what = "bundled (60 questions), the KL hand-off beside sending whole questions at random, at an equal bill"
    assert report["summary"] == [f"{what}: {verdict} it under {tariffs}."]
    [table] = first_table(report["first"])
    named = {arm for _, arm, *_ in table.rows}
    assert named == {"kl:0.7", "at random", "once"} | ({"cloud, cheaper"} if verdict == "loses to" else set())
    assert "differ on 20 questions" in table.notes[-1]
    assert not any("picked" in note for note in table.notes)
    for row in each_of(report["first"]):
        assert row["random"]["share"]["value"] == min(1.0, row["bill"]["value"])


def test_a_threshold_picked_on_one_half_of_the_questions_is_tried_on_the_other():
    """Each of two thresholds is right where the other is not: the best of either half is the worst of the other one."""
    both = {"kl:0.3": 0, "kl:0.7": 1}
    records = []
    for i, text in enumerate(sorted((f"question {i}" for i in range(80)), key=lambda e: sha256(e.encode()).digest())):
        right = {"local": False, "cloud": True} | {name: i % 2 == own for name, own in both.items()}
        records.append(made(right, {"local": 0, "cloud": 20, **dict.fromkeys(both, 4)}) | {"text": text, "kind": "k"})
    asked = design({0: {"bundled": ()}}, tuple(Arm(name, "kl", {"threshold": float(name[3:])}) for name in both))
    report = recovery_report(RIGHT, asked, answers_grids(asked), [records])
    for beside in each_of(report["parts"][0]["beside_kl"].values()):
        assert beside["share"]["value"] == 0.5 > beside["bill"]["value"]
        assert beside["held_out"]["value"] == pytest.approx(-beside["bill"]["value"])
    assert ": loses to it under" in report["summary"][0]
    # In whichever order they were asked.
    again = recovery_report(RIGHT, asked, answers_grids(asked), [records[40:][::-1] + records[:40]])
    assert again["summary"] == report["summary"]
    # One threshold is no pick: it is tried on all questions.
    alone = design({0: {"bundled": ()}}, asked.arms[:1])
    one = recovery_report(RIGHT, alone, answers_grids(alone), [records])["parts"][0]["beside_kl"]
    for beside in each_of(one.values()):
        assert beside["held_out"]["value"] == pytest.approx(
            beside["share"]["value"] - beside["bill"]["value"], abs=1e-4
        )


def test_where_no_half_has_a_clear_gap_no_verdict_is_given():
    """The models differ on the questions of one half alone."""
    texts = sorted((f"question {i}" for i in range(40)), key=lambda e: sha256(e.encode()).digest())
    records = [
        made(
            {"local": i % 2 == 0, "cloud": True, "kl:0.3": True, "kl:0.7": True},
            {"local": 0, "cloud": 20, "kl:0.3": 4, "kl:0.7": 4},
        )
        | {"text": text, "kind": "k"}
        for i, text in enumerate(texts)
    ]
    arms = tuple(Arm(f"kl:{nats}", "kl", {"threshold": nats}) for nats in (0.3, 0.7))
    asked = design({0: {"bundled": ()}}, arms)
    [said] = recovery_report(RIGHT, asked, answers_grids(asked), [records])["summary"]
    assert "has too few questions to pick a threshold, so nothing is said of it under 1/0.1/4" in said


def test_a_report_has_no_column_of_dashes_and_says_what_is_not_graded():
    """In ten questions the gap is not clear; in a kind of one it never is."""
    for num in each_of((10, 60)):
        records = drawn_records(num, 0)
        for number, record in enumerate(records):
            record["kind"] = f"kind {number}"
        ungraded = made(dict.fromkeys(("local", "cloud"), 1), dict.fromkeys(("local", "cloud"), 1))
        ungraded["arms"]["cloud"]["right"] = None
        asked = design({0: {"bundled": ()}}, ARMS[:4])
        found = [[*(record if num == 60 else alike(record) for record in records), ungraded, ungraded]]
        document = recovery_document(recovery_report(RIGHT, asked, answers_grids(asked), found))
        told = [block.text for block in document if isinstance(block, Text)]
        assert f"Not graded, and not counted here: 2 of {num + 2} questions." in told
        for table in each_of(block for block in document if isinstance(block, Table)):
            for column in each_of(zip(*table.rows, strict=True)):
                assert set(column) != {"-"}, table.heading
        tables = [block.heading for block in document if isinstance(block, Table)]
        assert any("recovered less the bill" in each for each in tables) == (num == 60)
        assert any("the bill (the cloud alone: 1)" in each for each in tables)


def test_a_summary_says_why_it_has_no_hand_off_to_tell_of():
    asked = design({0: {"bundled": ()}}, (ARMS[3],))
    report = recovery_report(RIGHT, asked, answers_grids(asked), [drawn_records(60, 0)])
    assert (report["summary"], report["first"]) == (["bundled (60 questions): no KL hand-off was run."], [])
    record = made(dict.fromkeys(("local", "cloud"), 1), dict.fromkeys(("local", "cloud"), 1))
    record["arms"]["cloud"]["right"] = None
    none = recovery_report(RIGHT, asked, answers_grids(asked), [[record]])
    assert none == {"parts": [], "first": [], "summary": ["bundled: nothing is graded."]}
    assert recovery_document(none) == []


def alike(record):
    """Let all arms be right."""
    for arm in record["arms"].values():
        arm["right"] = True
    return record


def test_charts_show_every_arm_and_end_a_little_beyond_the_last():
    report, _ = reported()
    dials, paid = (block for block in recovery_document(report) if isinstance(block, Chart))
    assert {name: len(points) for name, points in paid.lines} == {COIN: 2, "kl": 3, "once": 1}
    for chart in each_of((dials, paid)):
        last = max(x for _, points in chart.lines for x, _ in points)
        assert last < chart.across.most < 1.1 * last
        assert 3 <= len(chart.across.ticks) <= 8
        assert chart.across.ticks[-1][0] <= chart.across.most


def test_a_users_own_questions_are_listed_with_their_graders_and_what_no_arm_got_right():
    lines = ("What is 6 * 7?", "number", 42), ("Which?", "choice", "B")
    questions = tuple(OwnQuestion(question=text, grader=grader, answer=answer) for text, grader, answer in lines)
    asked = design({0: {"bundled": (*questions, OwnQuestion(question="Talk."))}}, ARMS[:4])
    records = drawn_records(3, 0)
    for arm in records[1]["arms"].values():
        arm["right"] = False
    report = json.loads(json.dumps(answers_report(asked, answers_grids(asked), [records])))
    [table, told, *_] = answers_document(report)
    names = [*records[0]["arms"]]
    assert table.columns == ("question", "grader", "expected", "the cloud's answer", *names)
    rights = ["right" if records[0]["arms"][name]["right"] else "wrong" for name in names]
    said = [record["arms"]["cloud"]["answer"][:60] for record in records]
    assert table.rows == [
        ("What is 6 * 7?", "number", "42", said[0], *rights),
        ("Which?", "choice", "B", said[1], *["wrong"] * 6),
    ]
    assert told.text == "No arm was right on these 1: check the grader of 'Which?'."


def test_two_seeds_are_drawn_again_independently_of_each_other():
    """With one draw for both, the same answers under two seeds would differ by exactly nothing."""
    records = drawn_records(150, 0)
    asked = design({seed: {"bundled": ()} for seed in (0, 1)}, ARMS[:4])
    [part] = recovery_report(RIGHT, asked, answers_grids(asked), [records, records])["parts"]
    differences = {each["arm"]: each["difference"] for each in part["seeds"]}
    own = ways_of(records, KL[1:2], RIGHT["right"], TARIFFS[0])[0][0][1:]
    told = differences["kl:0.7"]
    assert told["value"] == 0.0
    # Of two independent ones the variances add up.
    assert (told["high"] - told["low"]) / 3.92 == pytest.approx(math.sqrt(2) * own.std(), rel=0.1)
    assert differences["kl:inf"] == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_where_the_models_do_not_clearly_differ_nothing_is_recovered_and_the_report_says_so():
    """Of ten questions one is the cloud's alone: a ratio over that is noise. Of the other seed nothing is graded."""
    same = dict.fromkeys(("local", "cloud", "kl:0", "kl:0.7", "kl:inf", "once"), 1)
    asked = design({seed: {"bundled": ()} for seed in (0, 1)}, ARMS[:4])
    ungraded, alike, unlike = made(same, same), made(same, same), made(same | {"local": 0}, same)
    ungraded["arms"]["cloud"]["right"] = None
    report = recovery_report(RIGHT, asked, answers_grids(asked), [[ungraded], [alike] * 9 + [unlike]])
    assert report["parts"][0]["questions"] == 10
    assert {row["share"]["value"] for row in report["parts"][0]["rows"]} == {None}
    both = "local 0.90 (0.60 to 0.98), cloud 1.00 (0.72 to 1.00)"
    assert report["summary"] == [f"bundled (10 questions): the gap between the two models is not clear ({both})."]
    assert first_table(report["first"]) == []
    html.page("Title", recovery_document(report))


def test_a_loss_is_recovered_as_right_answers_are_with_its_sign_turned():
    """Here both losses are less by one exactly where an answer is right."""
    right, loss = (reported(measures=measures)[0]["parts"] for measures in (RIGHT, LOSS))
    assert [part["measure"] for part in loss] == ["excess", "nll"]
    for part in each_of(loss):
        assert [row["share"] for row in part["rows"]] == [row["share"] for row in right[0]["rows"]]
        assert part["rows"][0]["level"]["value"] >= 0.0


def test_the_noise_floor_of_a_pair_stands_in_its_report_and_its_records_are_no_answers():
    asked = design({0: {"bundled": as_questions(draw_problems("calibration", 1, 0))}}, ARMS[:4])
    grids = recovery_grids(asked)
    assert [grid.pair for grid in grids] == ["bundled"] * 2
    positions = [{"floor": [0.0, 0.0, 0.01]}] * 98 + [{"floor": [0.0, 0.0, 0.25]}] * 2
    read = {"kind": "sum", "arms": {"cloud": {}}, "texts": {"cloud": {"positions": positions}}}
    report = recovery_report(RIGHT, asked, grids, [drawn_records(50, 0), [read]])
    assert report["parts"][0]["questions"] == 50
    document = recovery_document(report)
    assert any(isinstance(e, Text) and "0.25 nats at 99 % of 100 positions" in e.text for e in document)
    assert [name for name, _ in next(e for e in document if isinstance(e, Chart)).lines] == ["kl", "noise floor"]


def test_every_section_runs_the_same_grid():
    asked = design({0: {"bundled": as_questions(draw_problems("calibration", 1, 0))}})
    sections = (THRESHOLD_SECTION, LOSS_SECTION, CASES_SECTION, ANSWERS_SECTION)
    contents = {json.dumps(section.grids(asked)[0].content) for section in sections}
    assert len(contents) == 1
    assert [section.needs_rows for section in sections] == [False, True, False, False]
