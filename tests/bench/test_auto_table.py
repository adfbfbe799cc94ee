"""What rules with dials reach is read from records as it stands there: known cases, no model."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
from cases import each_of

from hybrid.defer import Calibration, UninformedScore
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.auto_suite import Fitted
from hybrid.lab.experiments.auto_trial import PLANNED_SETTINGS, AutoRule, AutoTrial, MeanCloudPrice
from hybrid.lab.experiments.frame import PRICES, SETTINGS, ask_prices
from hybrid.lab.experiments.grid import CLOUD, LOCAL
from hybrid.lab.experiments.problem_report import WANTED, AutoTable, default_answers, problem_report
from hybrid.tasks.statistics import auroc, cheapest_bill

NUM = 120
DOUBT = Arm("doubt 0.3", "doubt", {"entropy": 0.3})


def outcome(right, requests):
    return {"right": bool(right), "tokens": 9, "cloud_tokens": 4, "degraded": None, "requests": requests}


@pytest.fixture(scope="module")
def made():
    """Problems of which everything is known: whoever is right, what an answer costs, and who was told what.

    ``auto`` lets the cloud write the answers that help, the cheapest first, seven more with each dial; the control lets
    it write the first ones.
    """
    rng = np.random.default_rng(0)
    local, cloud, lengths = rng.uniform(size=NUM) < 0.5, rng.uniform(size=NUM) < 0.95, rng.integers(5, 90, size=NUM)
    written = [[["write", 30, 0, 0, int(length)]] for length in lengths]
    helps = np.flatnonzero(cloud & ~local)
    cheapest = helps[np.argsort(lengths[helps], kind="stable")]
    dials = (*(float(k) for k in range(0, len(cheapest), 7)), float(len(cheapest)))
    rank = {int(problem): place for place, problem in enumerate(cheapest)}
    records = []
    for i in range(NUM):
        asked = {
            "auto": [rank.get(i, NUM) < dial for dial in dials],
            "highest entropy": [i < dial * NUM / len(cheapest) for dial in dials],
        }
        planned = {name: [[int(write), "write" if write else "keep"] for write in each] for name, each in asked.items()}
        own = {"local": outcome(local[i], []), "cloud": outcome(cloud[i], written[i])}
        own["doubt 0.3"] = own["cloud"] if i % 3 else own["local"]
        records.append(
            {
                "text": f"problem {i}",
                "kind": f"family {i % 2}",
                "turned_down": bool(not local[i]),
                "told": {"auto": float(rng.uniform())},
                "arms": own,
                "outcomes": [own["local"], own["cloud"]],
                "planned": {name: dict.fromkeys(("U", "C", "S", "SU"), each) for name, each in planned.items()},
                "again": [True],
                "checked": [],
            }
        )
    rules = tuple(AutoRule(name, "auto", dials) for name in ("auto", "highest entropy"))
    scores, usual = {"auto": UninformedScore("kl:0.7")}, MeanCloudPrice(((30, 40),))
    trial = AutoTrial((CLOUD, LOCAL, DOUBT), rules, scores, {"auto": ""}, usual)
    return trial, records, cheapest, lengths


@pytest.mark.slow
def test_a_rule_that_knows_what_the_oracle_knows_closes_the_gap(made):
    trial, records, _, _ = made
    for setting in each_of(PLANNED_SETTINGS):
        table = AutoTable(trial, records, setting)
        for wanted in each_of(WANTED):
            ours = cheapest_bill(*table.ways["auto"], wanted)[0]
            assert table.oracle[wanted][0] <= ours + 1e-9 < 1.1 * table.oracle[wanted][0]
        [row] = table.compared()
        assert 0.95 < row["0.8"]["closed"]["value"] <= 1.0
        assert row["0.8"]["difference"]["high"] < 0.0


def test_a_dial_is_what_its_problems_cost_by_the_setting_and_no_other(made):
    trial, records, cheapest, lengths = made
    for setting in each_of(PLANNED_SETTINGS):
        alone = np.array([float(ask_prices(setting, PRICES[0]).write(30, int(length), 0)) for length in lengths])
        told = AutoTable(trial, records, setting).rule_row(trial.rules[0])["dials"][1]
        assert told["bill"]["value"] == pytest.approx(alone[cheapest[:7]].sum() / alone.sum(), abs=1e-4)
        assert told["actions"] == {
            "keep": pytest.approx(1 - 7 / NUM, abs=1e-4),
            "write": pytest.approx(7 / NUM, abs=1e-4),
        }


def test_a_rule_that_does_what_a_preset_does_costs_what_it_costs(made):
    """Were it not for the mixtures: presets below their chord have no cheaper one."""
    trial, records, cheapest, _ = made
    seven = set(cheapest[:7].tolist())
    records = [
        record | {"arms": record["arms"] | {"doubt 0.3": record["outcomes"][int(i in seven)]}}
        for i, record in enumerate(records)
    ]
    told = AutoTable(trial, records, SETTINGS[0]).rule_row(trial.rules[0])["dials"][1]["over_presets"]
    assert told["value"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_the_report_pools_families_over_sections_and_counts_a_problem_once(made):
    trial, records, _, _ = made
    report = json.loads(json.dumps(problem_report([trial.grid(name, ()) for name in "ab"], [records] * 2, 7.0)))
    assert [row["problems"] for row in report["families"]] == [NUM // 2, NUM // 2]
    assert {row["gap"] >= 30 for row in report["families"]} == {
        row["rpi"]["auto U"]["value"] is not None for row in report["families"]
    }
    assert report["planned_again"] == {"answers": 2 * NUM, "same": 2 * NUM}
    [verdict] = report["sections"][0]["verdicts"]
    told = np.array([record["told"]["auto"] for record in records])
    assert verdict["auroc"] == pytest.approx(auroc(told, np.array([r["turned_down"] for r in records])), abs=1e-4)


def test_answers_at_the_default_come_from_each_sections_own_dials(made):
    trial, records, cheapest, _ = made
    few = replace(trial, rules=(AutoRule("auto", "auto", (7.0,)),))
    short = [record | {"planned": {"auto": {"U": [record["planned"]["auto"]["U"][1]]}}} for record in records]
    tried = [*((trial, each) for each in records), *((few, each) for each in short)]
    asked = [bool(each["requests"]) for each in default_answers(tried, "auto", 7.0)["auto U"]]
    assert asked[:NUM] == asked[NUM:] == [i in set(cheapest[:7].tolist()) for i in range(NUM)]


def test_a_constant_worth_is_a_multiple_of_the_mean_price_another_of_each_ones_own():
    usual = MeanCloudPrice(((30, 40), (50, 20)))
    for setting in each_of(SETTINGS):
        prices = ask_prices(setting, PRICES[0])
        mean = (float(prices.write(30, 40, 0)) + float(prices.write(50, 20, 0))) / 2
        one = AutoRule("auto", "auto", (2.0,), constant=True).worth(2.0, setting, usual)
        each = AutoRule("auto", "auto", (2.0,)).worth(2.0, setting, usual)
        assert one.of(1.0) == one.of(500.0) == pytest.approx(2.0 * mean)
        assert (each.of(1.0), each.of(500.0)) == (2.0, 1000.0)


def test_a_critics_score_is_told_from_the_one_without_it():
    data = resources.files("hybrid.defer") / "data"
    own, critic = (
        Calibration.from_json(json.loads((data / name).read_text())) for name in ("bundled.json", "bundled-critic.json")
    )

    def digests(critic):
        fitted = Fitted(own, own, (), critic)
        vars(fitted)["scores"] = {}  # the controls, which take labels
        return fitted.digests

    without, found = digests(None), digests(critic)
    assert without == {name: found[name] for name in ("auto", "logistic")}
    assert found["auto"] == found["logistic"] != found["auto, critic"]
