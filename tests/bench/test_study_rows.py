"""Both models' rows along two texts, and the three sections made of them, against programs written another way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from arithmetic import rounds_by_shape, tolerance
from cases import each_of
from naive_rules import rejected
from scipy.stats import spearmanr

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.experiments import position_table
from hybrid.lab.experiments.frame import PRICES, SETTINGS
from hybrid.lab.experiments.grid import GridRun, ModelPair
from hybrid.lab.experiments.position_table import compare_rows, weighted_spearman
from hybrid.lab.experiments.questions import as_questions, draw_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.design import Design, NamedTariff
from hybrid.lab.study.row_sections import (
    CERTIFICATES,
    MULTIPLES,
    ROW_SECTIONS,
    SOURCES,
    certificates_report,
    noise_floor,
    temperature_report,
    truncation_report,
)
from hybrid.lab.study.rows import RULES, TOP_KS, TREE, compare_heated, rows_grids, show_lists
from hybrid.prob import Dense
from hybrid.report import Chart, html, terminal

SMALL, MID, LARGE = BUNDLED_LOCAL, BUNDLED_LOCAL.with_name("mid.gguf"), BUNDLED_CLOUD
TARIFFS = (NamedTariff("1/0.1/4 U", PRICES[0], SETTINGS[0]),)


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    """Values do not hang on how often positions are drawn again."""
    monkeypatch.setattr(position_table, "NUM_RESAMPLES", 20)


def naive_kl(target, draft):
    return sum(p * (np.log(p) - np.log(q)) for p, q in zip(target, draft, strict=True) if p > 0)


def drawn_pairs():
    """Targets and drafts, near and far, over few tokens and over more than the longest list has."""
    rng = np.random.default_rng(0)
    for size, spread, near in product((4, 30, 250), (0.1, 1.0), (0.05, 0.5, 1.0)):
        for _ in range(6):
            target, other = rng.dirichlet(np.full(size, spread), size=2) + 1e-9
            draft = (1 - near) * target + near * other
            yield target / target.sum(), draft / draft.sum()


def dense(probs):
    return Dense.from_probs(np.asarray(probs))


def test_no_rule_rejects_a_favourite_below_its_certificate_and_a_list_promises_no_more_than_the_dense_row():
    num_rejected = dict.fromkeys(CERTIFICATES, 0)
    for target, draft in each_of(drawn_pairs()):
        found = show_lists(dense(target), dense(draft), int(target.argmax()))
        divergence = naive_kl(target, draft)
        for (low, high), of_list in each_of(zip(found["intervals"], found["certificates"][1:], strict=True)):
            assert low <= divergence + 1e-9
            assert divergence <= high + 1e-9
            assert np.all(np.array(of_list) <= np.array(found["certificates"][0]) + 1e-9)
        favourite = int(draft.argmax())
        expected = [favourite in rejected(target, rule) for rule in RULES.values()]
        expected.append(int(target.argmax()) not in np.argsort(-draft)[:TREE])
        assert found["rejected"] == expected
        for name, turned_down, least in each_of(zip(CERTIFICATES, expected, found["certificates"][0], strict=True)):
            num_rejected[name] += turned_down
            assert divergence >= least - 1e-9 or not turned_down, (name, divergence, least)
    assert min(num_rejected.values()) > 5


def test_a_favourite_is_rejected_from_its_certificate_on():
    """0.6 and 0.3 draw level at 0.45: 0.6 ln(0.6 / 0.45) + 0.3 ln(0.3 / 0.45) nats."""
    least = 0.6 * np.log(0.6 / 0.45) + 0.3 * np.log(0.3 / 0.45)
    target = dense([0.6, 0.3, 0.1])
    for tilt in (1e-6, -1e-6):
        draft = dense([0.45 - tilt, 0.45 + tilt, 0.1])
        found = show_lists(target, draft, 0)
        assert found["rejected"] == [tilt > 0, False, False, False]
        assert found["certificates"][0][0] == pytest.approx(least)
        assert compare_rows(target, draft)["kl"] == pytest.approx(least, abs=1e-5)


def test_two_models_at_a_temperature_are_compared_as_by_powers_of_their_probabilities():
    for (target, draft), temperature in each_of(zip(drawn_pairs(), np.resize((0.3, 0.7, 1.0, 1.5), 200), strict=False)):
        cold, hot = (each ** (1 / temperature) / np.sum(each ** (1 / temperature)) for each in (target, draft))
        both, lower, upper, outside, alone, low, high, out = compare_heated(dense(target), dense(draft), temperature)
        assert both == pytest.approx(naive_kl(cold, hot), abs=1e-9)
        assert alone == pytest.approx(naive_kl(target, hot), abs=1e-9)
        assert outside == out == 0.0
        assert lower - 1e-6 <= both <= upper + 1e-6
        assert low - 1e-6 <= alone <= high + 1e-6
    swapped = compare_heated(dense([0.5, 0.4, 0.1]), dense([0.8, 0.1, 0.1]), 0.7)
    assert swapped[0] != pytest.approx(compare_heated(dense([0.8, 0.1, 0.1]), dense([0.5, 0.4, 0.1]), 0.7)[0])


def test_a_rank_correlation_under_weights_is_that_of_repeated_pairs():
    rng = np.random.default_rng(0)
    for _ in range(30):
        values, others = rng.integers(0, 6, size=(2, 12)).astype(float)
        weights = rng.integers(0, 4, size=12)
        expected = spearmanr(np.repeat(values, weights), np.repeat(others, weights)).statistic
        assert weighted_spearman(values, others)(weights.astype(float)) == pytest.approx(expected)
    assert weighted_spearman(np.ones(3), np.arange(3.0))(np.ones(3)) is None


# Records made by hand: positions of drawn numbers, in the shape of a record.


def position(rng):
    kl = float(rng.exponential(0.4))
    least = np.sort(rng.exponential(0.3, size=(5, 4)), axis=0)[::-1]  # the dense row's is the highest
    return {
        "kl": kl,
        "agrees": bool(rng.uniform() < 0.7),
        "overlap": float(rng.uniform()),
        "entropy": float(rng.exponential()),
        "intervals": [[kl - low, kl + high] for low, high in rng.exponential(0.3, size=(4, 2))],
        "certificates": least.tolist(),
        "rejected": [bool(kl > each and rng.uniform() < 0.6) for each in least[0]],
        "floor": rng.exponential(0.01, size=3).tolist(),
    }


def record(number, rng, sent=40):
    texts = {}
    for name in ("cloud", "local"):
        positions = [position(rng) for _ in range(int(rng.integers(0, 20)))]
        heated = {at: (rng.uniform(size=8) * len(positions)).tolist() for at in ("0.5", "1")}
        texts[name] = {"positions": positions, "heated": heated}
    arms = {"cloud": {"requests": [["write", 20, 0, 0, 10]]}, "local": {"requests": []}}
    arms["greedy-exact"] = {"requests": [["check", sent, 8, 0, 1]]}
    return {"text": f"{number}", "texts": texts, "arms": arms}


def made(**sent):
    """A design of pairs over one cloud, and records of nine questions of each."""
    rng, pairs = np.random.default_rng(1), {name: ModelPair(SMALL, LARGE) for name in sent}
    questions = as_questions(draw_problems("calibration", 1, 0)[:9])
    design = Design("made", (), pairs, {0: dict.fromkeys(pairs, questions)}, tariffs=TARIFFS)
    found = [[record(number, rng, of_pair) for number in range(9)] for of_pair in sent.values()]
    return design, rows_grids(design), found


def test_what_lists_decide_is_counted_position_by_position():
    design, grids, found = made(one=40)
    design = replace(design, options={"thresholds": [0.25]})
    rows = truncation_report(design, grids, found)["rows"]
    assert [(row["text"], row["k"]) for row in rows] == list(product(("cloud", "local"), TOP_KS))
    for row in each_of(rows):
        flat = [each for one in found[0] for each in one["texts"][row["text"]]["positions"]]
        ends = [each["intervals"][TOP_KS.index(row["k"])] for each in flat]
        count = partial(np.mean, dtype=float)
        assert row["positions"] == len(flat)
        assert row["open at 0.25"]["value"] == pytest.approx(count([a <= 0.25 < b for a, b in ends]), abs=1e-4)
        for end, which in each_of((("lower", 0), ("upper", 1))):
            right = [(both[which] > 0.25) == (e["kl"] > 0.25) for both, e in zip(ends, flat, strict=True)]
            assert row[f"{end} at 0.25"]["value"] == pytest.approx(count(right), abs=1e-4)
        assert row["covered"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        widths = np.quantile([b - a for a, b in ends], 0.9, method="inverted_cdf")
        assert row["width 0.9"]["value"] == pytest.approx(widths, abs=1e-8)
        for power, left in each_of(row["open"]):
            assert left == pytest.approx(count([a <= 10**power < b for a, b in ends]))


def test_how_far_two_models_are_apart_is_told_by_means_over_positions():
    design, grids, found = made(one=40)
    for row in each_of(truncation_report(design, grids, found)["apart"]):
        flat = [each for one in found[0] for each in one["texts"][row["text"]]["positions"]]
        for name in ("agrees", "kl", "overlap", "entropy"):
            assert row[name]["value"] == pytest.approx(np.mean([each[name] for each in flat]), abs=1e-4)
        parted, same = ([each["entropy"] for each in flat if each["agrees"] is agrees] for agrees in (False, True))
        above = np.mean([a > b for a in parted for b in same])
        assert row["auroc"]["value"] == pytest.approx(above, abs=1e-4)


def test_an_interval_that_misses_the_value_is_not_counted_as_holding_it():
    design, grids, [records] = made(one=40)
    read = [each for one in records for each in one["texts"]["cloud"]["positions"]]
    read[0]["intervals"][1] = [read[0]["kl"] + 0.1, read[0]["kl"] + 0.2]
    covered = [row["covered"]["value"] for row in truncation_report(design, grids, [records])["rows"][:4]]
    assert covered == [1.0, pytest.approx(1 - 1 / len(read), abs=1e-4), 1.0, 1.0]


def test_the_noise_floor_is_over_both_texts():
    _, _, [records] = made(one=40)
    floor = noise_floor(records)
    flat = [each["floor"] for one in records for text in one["texts"].values() for each in text["positions"]]
    assert (floor["questions"], floor["positions"]) == (9, len(flat))
    for number, name in each_of(enumerate(("cloud", "local", "difference"))):
        for share, told in each_of(floor[name].items()):
            expected = np.quantile([each[number] for each in flat], float(share), method="inverted_cdf")
            assert told["value"] == pytest.approx(expected, abs=1e-8)
            assert told["low"] <= told["value"] <= told["high"]


def test_runs_first_rejections_and_bins_are_those_found_by_walking_along_each_text():
    design, grids, found = made(one=40)
    rows = certificates_report(design, grids, found)["rows"]
    for row, (text, rule) in each_of(zip(rows, product(("cloud", "local"), range(4)), strict=True)):
        assert (row["text"], row["rule"]) == (text, CERTIFICATES[rule])
        texts = [each["texts"][text]["positions"] for each in found[0]]
        for number, shown in each_of(enumerate(SOURCES)):
            runs, certain, first = [], [], []
            for read in texts:
                proved = [
                    (each["intervals"][number - 1][1] if number else each["kl"]) < each["certificates"][number][rule]
                    for each in read
                ]
                certain += proved
                runs += [next((n for n, e in enumerate([*proved[i:], False]) if not e)) for i in range(len(proved))]
                first += [(e["certificates"][number][rule], e["kl"]) for e in read if e["rejected"][rule]][:1]
            assert row["certified"][shown]["value"] == pytest.approx(np.mean(certain), abs=1e-4)
            assert row["run"][shown]["value"] == pytest.approx(np.mean(runs), abs=1e-4)
            assert row["below"][shown] == 0
            assert row["rank"][shown]["value"] == pytest.approx(
                spearmanr(*zip(*first, strict=True)).statistic, abs=1e-4
            )
            middle = np.quantile([least for least, _ in first], 0.5, method="inverted_cdf")
            assert row["predicted"][shown]["value"] == pytest.approx(middle, abs=1e-4)
            if not number:
                assert row["points"] == [list(each) for each in first]
        for low, high, told in each_of(zip(MULTIPLES, (*MULTIPLES[1:], np.inf), row["bins"], strict=True)):
            inside = [
                each["rejected"][rule]
                for read in texts
                for each in read
                if low <= each["kl"] / each["certificates"][0][rule] < high
            ]
            assert told["positions"] == len(inside)
            assert told["value"] == (pytest.approx(np.mean(inside), abs=1e-4) if inside else None)
        assert row["bins"][0]["value"] in {None, 0.0}


def test_a_rejection_below_a_certificate_is_counted():
    design, grids, [records] = made(one=40)
    each = next(each for one in records for each in one["texts"]["local"]["positions"])
    each |= {"rejected": [True] * 4, "kl": 0.0}
    row = certificates_report(design, grids, [records])["rows"][4]
    assert (row["text"], row["below"]["full"], row["bins"][0]["value"] > 0) == ("local", 1, True)


def test_the_drafter_with_the_longest_runs_stands_beside_the_cheapest_one_found():
    design, grids, found = made(dear=60, cheap=20)
    for each in (each for one in found[1] for each in one["texts"]["cloud"]["positions"]):
        each["kl"] = 9.0  # nothing is certified
    [told] = certificates_report(design, grids, found)["drafters"]
    assert (told["selected"], told["cheapest"], told["questions"]) == ("dear", "cheap", 9)
    assert told["bills"]["dear"]["value"] == pytest.approx((60 + 4) / (20 + 40), abs=1e-4)
    assert told["less"]["value"] == pytest.approx((60 - 20) / (20 + 40), abs=1e-4)
    found[1][0]["text"] = "another question"  # is no common one
    [told] = certificates_report(design, grids, found)["drafters"]
    assert (told["questions"], told["less"]["value"]) == (8, pytest.approx((60 - 20) / (20 + 40), abs=1e-4))
    for each in found[1]:
        each["text"] += " with other words"
    assert certificates_report(design, grids, found)["drafters"] == []


def test_rows_are_read_along_so_many_questions_of_each_seed():
    questions = as_questions(draw_problems("calibration", 1, 0)[:6])
    drawn = {0: {"one": questions[:4]}, 1: {"one": questions[4:]}}
    design = Design("d", (), {"one": None}, drawn)
    for most, wanted in each_of([(None, (0, 1, 2, 3, 4, 5)), (3, (0, 1, 2, 4, 5)), (1, (0, 4))]):
        [grid] = rows_grids(replace(design, options={} if most is None else {"read": most}))
        assert grid.questions == tuple(questions[i] for i in wanted)


def test_temperatures_are_means_over_positions():
    design, grids, found = made(one=40)
    rows = temperature_report(design, grids, found)["rows"]
    assert len(rows) == 2 * 2 * 2
    for row in each_of(rows):
        texts = [each["texts"][row["text"]] for each in found[0]]
        start = 4 * ("both", "local alone").index(row["heated"])
        sums = np.sum([text["heated"][f"{row['temperature']:g}"][start : start + 3] for text in texts], axis=0)
        means = sums / sum(len(text["positions"]) for text in texts)
        assert [row[name]["value"] for name in ("truth", "lower", "upper")] == pytest.approx(means, abs=1e-4)


@pytest.mark.parametrize("num", [9, 0])
def test_every_section_is_shown_whatever_was_read(num):
    design, grids, found = made(one=40, two=50)
    found[0][0]["texts"]["cloud"]["heated"]["1"][2] = np.inf  # a list bounds nothing where the draft excludes a token
    for each in found[0][0]["texts"]["local"]["positions"]:
        each["intervals"][0][1] = np.inf
        each["certificates"][0] = [np.inf] * 4  # a rule that accepts all
    if not num:
        empty = {"positions": [], "heated": {"1": [0.0] * 8}}
        found = [[each | {"texts": {"cloud": empty, "local": empty}} for each in records] for records in found]
    for section in each_of(ROW_SECTIONS):
        report = json.loads(json.dumps(section.report(design, grids, found)))
        document = section.document(report)
        assert "<table>" in html.page("title", document)
        terminal.show(document)
        charts = [block for block in document if isinstance(block, Chart)]
        assert len(charts) >= 2 or not num


def test_a_record_depends_on_the_temperatures_and_grids_of_a_pair_are_one():
    design, grids, _ = made(one=40)
    other = rows_grids(replace(design, options={"temperatures": 0.5}))
    runs = [GridRun(each, design.pairs, SMALL.parent) for each in (grids, rows_grids(design), other)]
    keys = [run.key((0, 0)) for run in runs]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
def test_on_the_bundled_pair_the_laws_hold_and_the_first_greedy_rejection_is_where_the_texts_part():
    questions = as_questions(draw_problems("calibration", 1, 0)[:3])
    pairs = {name: ModelPair(model, LARGE) for name, model in (("small", SMALL), ("mid", MID))}
    design = Design("bundled", (), pairs, {0: dict.fromkeys(pairs, questions)}, tariffs=TARIFFS)

    async def records(grid):
        answers, found = [], []

        async def check(arm, sampling, answered):
            answers.append(answered)

        async with open_world(pairs[grid.pair].local, LARGE) as world:
            for number in range(3):
                made = await grid.answer(world, number, 0, check)
                local = answers[-2]
                best = [row.top(2) for row in world.rows(local.prompt, local.ids)[1]]
                found.append(
                    (made, [each.ids for each in answers[-3:]], [first[1] - other[1] for first, other in best])
                )
        return found

    grids = rows_grids(design)
    answered = [asyncio.run(records(grid)) for grid in grids]
    found = [json.loads(json.dumps([each for each, *_ in of_pair])) for of_pair in answered]
    num_compared = 0
    for one, (cloud, local, exact), gaps in each_of(each for of_pair in answered for each in of_pair):
        length = min(len(cloud), len(local))
        parted = next((i for i in range(length) if cloud[i] != local[i]), length)
        turned_down = [each["rejected"][0] for each in one["texts"]["local"]["positions"]]
        if min(gaps[: parted + 1]) > tolerance().gap:  # else how a row was read may decide
            assert exact == cloud
            assert [*turned_down[:length], True].index(True) == parted
            num_compared += 1
        for name, text in each_of((("cloud", cloud), ("local", local))):
            read = one["texts"][name]
            assert len(read["positions"]) == len(text)
            total = sum(each["kl"] for each in read["positions"])
            assert [read["heated"]["1"][i] for i in (0, 4)] == pytest.approx([total, total], abs=1e-6)
            assert all(sums[3] == sums[7] == 0.0 for sums in read["heated"].values())
    assert num_compared
    floors = [noise_floor(of_pair)["difference"]["1"]["value"] for of_pair in found]
    assert (max(floors) > 0.0) == rounds_by_shape()
    for section in each_of(ROW_SECTIONS):
        report = section.report(design, grids, found)
        assert section.document(report)
        for row in each_of(report["rows"]):
            assert not any(row.get("below", {}).values())
            assert row.get("covered", {"value": 1.0})["value"] == 1.0
