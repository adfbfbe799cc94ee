"""A run over many questions: shared among processes, taken up where it stopped, and read into tables. Bundled pair."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from cases import each_of
from typer.testing import CliRunner

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli import app
from hybrid.engine import real_models
from hybrid.errors import EngineError
from hybrid.lab.experiments.grid import CLOUD, LOCAL, GridRun, ModelPair, read_parts, run_grids
from hybrid.lab.experiments.plot import svg
from hybrid.lab.experiments.position_table import (
    Positions,
    weighted_auroc,
    weighted_quantile,
)
from hybrid.lab.experiments.text import EXACT_GREEDY, RULES, at_bill, text_grids, text_report
from hybrid.lab.experiments.trials import text_grid
from hybrid.tasks.assistant import QUESTIONS
from hybrid.tasks.statistics import Resamples, auroc

ARMS = (CLOUD, LOCAL, RULES[0], EXACT_GREEDY)


def bundled_run(folder, num=2, **more):
    """The bundled pair under the name of another: it knows nothing of these questions, and answers all the same."""
    questions = tuple(replace(each, max_tokens=16) for each in QUESTIONS[:num])
    grid = text_grid("bundled", "q3", questions, ARMS)
    return GridRun((grid,), {"q3": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}, folder, **more)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    run = bundled_run(tmp_path_factory.mktemp("text"), num=4, check_share=0.5)
    told = []
    return run, run_grids(run, told.append), told


@pytest.mark.slow
def test_every_question_is_answered_once_by_all_rules_whichever_process_took_it(ran):
    run, found, told = ran
    [records] = found
    assert [record["text"] for record in records] == [each.text for each in run.grids[0].questions]
    assert all(list(record["arms"]) == [arm.name for arm in ARMS] for record in records)
    assert len(list(run.folder.glob("part-*.jsonl"))) == 2
    assert len(told) == 4
    assert "about 0 min left" in told[-1]
    checked = [each for record in records for each in record["checked"]]
    assert checked
    assert all(each["text"] and each["requests"] and each["bill"] for each in checked), checked


@pytest.mark.slow
def test_a_run_goes_on_where_it_stopped_and_a_line_that_was_cut_off_is_written_again(ran, tmp_path):
    run, found, _ = ran
    lines = [line for path in sorted(run.folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    (tmp_path / "part-1.jsonl").write_text("\n".join([*lines[:3], lines[3][:-40]]))
    told = []
    again = run_grids(replace(run, folder=tmp_path), told.append)
    assert told[0] == "3 of 4 questions were answered before"
    assert len(told) == 2
    assert again == found
    told.clear()
    assert run_grids(replace(run, folder=tmp_path), told.append) == found
    assert told == ["4 of 4 questions were answered before"]


def test_what_a_record_depends_on_names_it(ran):
    run, _, _ = ran
    questions = run.grids[0].questions
    grids = (
        text_grid("bundled", "q3", questions, ARMS, 0.5),
        text_grid("bundled", "q3", questions, ARMS, top_k=3),
        text_grid("bundled", "q3", questions, ARMS[:3]),
    )
    others = (
        replace(run, seed=1),
        *(replace(run, grids=(grid,)) for grid in grids),
        replace(run, pairs={"q3": ModelPair(BUNDLED_CLOUD, BUNDLED_CLOUD)}),
    )
    assert run.key((0, 0)) not in {other.key((0, 0)) for other in others}
    assert len({other.key((0, 0)) for other in others}) == len(others)
    assert replace(run, num_processes=7).key((0, 0)) == run.key((0, 0))


@pytest.mark.slow
def test_what_a_child_cannot_do_is_one_sentence_and_no_child_is_left(tmp_path):
    run = bundled_run(tmp_path, check_share=0.0)
    broken = replace(run, pairs={"q3": ModelPair(BUNDLED_LOCAL, tmp_path)})
    with pytest.raises(EngineError):
        run_grids(broken, lambda _: None)
    assert read_parts(tmp_path) == {}


def test_the_report_has_the_models_alone_at_the_ends_of_every_scale(ran):
    run, found, _ = ran
    report = json.loads(json.dumps(text_report(run.grids, found)))
    [section] = report["sections"]
    rows = {row["rule"]: row for row in section["rules"]}
    assert {bill["value"] for bill in rows["cloud"]["bill"].values()} == {1.0}
    assert {bill["value"] for bill in rows["local"]["bill"].values()} == {0.0}
    for name, exact in each_of(rows["greedy-exact"]["recovered"].items()):
        assert exact["value"] in {None, 1.0}
        assert rows["local"]["recovered"][name]["value"] in {None, 0.0}
    assert rows["cloud"]["best_tokens"] == rows["greedy-exact"]["best_tokens"] == 1.0
    assert rows["greedy-exact"]["same_text"] == 1.0
    assert rows["cloud"]["excess_nats"] == 0.0
    assert report["against_the_client"]["other_text"] == 0
    assert svg(report).count("<circle") >= 2


def test_at_half_the_bill_half_is_spent_and_on_the_highest_scores():
    rng = np.random.default_rng(0)
    for _ in range(50):
        order, bills = rng.normal(size=7), rng.uniform(1, 9, size=7)
        sent = at_bill(order, bills, 0.5)
        assert sent @ bills == pytest.approx(bills.sum() / 2)
        assert np.sum((sent > 0) & (sent < 1)) <= 1
        assert order[sent > 0].min() >= order[sent < 1].max()


def test_a_statistic_under_weights_is_that_of_repeated_positions():
    rng = np.random.default_rng(0)
    for _ in range(30):
        values = rng.integers(0, 5, size=9).astype(float)
        weights = rng.integers(0, 4, size=9)
        positive = rng.uniform(size=9) < 0.5
        repeated = np.repeat(values, weights)
        for share in (0.1, 0.5, 0.9):
            expected = np.quantile(repeated, share, method="inverted_cdf")
            assert weighted_quantile(values, share)(weights.astype(float)) == expected
        found = weighted_auroc(values, positive)(weights.astype(float))
        assert found == pytest.approx(auroc(repeated, np.repeat(positive, weights)))


def test_a_mean_and_its_interval_are_those_of_the_texts_as_often_as_each_was_drawn():
    rng = np.random.default_rng(0)
    for num in (1, 4, 9):
        owners, values = np.sort(rng.integers(0, num, size=20)), rng.uniform(size=20)
        found, drawn = Positions(owners, num).mean(values), Resamples(num, 0, 1000).counts.T[1:].astype(int)
        means = [repeated.mean() for each in drawn if (repeated := np.repeat(values, each[owners])).size]
        expected = [values.mean(), *np.quantile(means, (0.025, 0.975), method="inverted_cdf")]
        assert [found.value, found.low, found.high] == pytest.approx(expected)
    assert Positions(np.zeros(0, dtype=int), 3).mean(np.zeros(0)) is None


def test_an_interval_is_over_texts_and_not_over_positions():
    """Two texts of a hundred equal positions each: over positions the interval would be narrow."""
    owners = np.repeat([0, 1], 100)
    found = Positions(owners, 2).mean(owners)
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


def test_the_default_run_has_every_pair_both_temperatures_and_300_graded_questions_a_pair():
    every = text_grids()
    assert {grid.pair for grid in every} == {"q3", "d2", "d4"}
    assert {grid.temperature for grid in every} >= {0.0, 0.7, 1.0}
    graded = [grid for grid in every if grid.name.endswith("graded")]
    assert {grid.pair for grid in graded} == {"q3", "d2"}
    assert all(len(grid.questions) >= 300 and all(each.graded for each in grid.questions) for grid in graded)
    assert all(each.split == "test" for grid in every if grid not in graded for each in grid.questions)
    assert all(grid.arms[:2] == (CLOUD, LOCAL) for grid in every)
    [few] = text_grids(num=3, pair="d2", temperature=0.3)
    assert (len(few.questions), few.pair, few.temperature) == (3, "d2", 0.3)


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(real_models, "PACKAGE", "no_such_package")
    result = CliRunner().invoke(app, ["bench", "text", "--num", "1"])
    assert result.exit_code == 2
    assert "pip install" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(find_spec(real_models.PACKAGE) is None, reason=f"needs {real_models.REQUIREMENT}")
def test_the_command_answers_a_question_with_a_real_pair(tmp_path):
    flags = ["--num", "1", "--pair", "d4", "--temperature", "0", "--out", str(tmp_path), "--plot"]
    result = CliRunner().invoke(app, ["bench", "text", "--json", *flags, str(tmp_path / "a.svg")])
    assert result.exit_code == 0, result.output
    [section] = json.loads(result.stdout)["sections"]
    assert (section["section"], section["questions"]) == ("d4 at 0", 1)
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    again = CliRunner().invoke(app, ["bench", "text", *flags[:-1]])
    assert again.exit_code == 0, again.output
    assert "whole questions sent" in again.stdout
