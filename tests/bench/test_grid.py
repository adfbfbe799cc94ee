"""A run over many questions: shared among processes, and taken up where it stopped. The bundled pair."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from study_records import design

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.errors import EngineError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.grid import GridRun, ModelPair, read_parts, run_grids
from hybrid.lab.experiments.position_table import (
    Positions,
    weighted_auroc,
    weighted_quantile,
)
from hybrid.lab.study.answers import answers_grids
from hybrid.lab.study.own_questions import OwnQuestion
from hybrid.tasks.assistant import QUESTIONS
from hybrid.tasks.statistics import Resamples, auroc

SPANS = 4


def spans_grid(questions, spans=SPANS, temperature=0.0):
    """A study's grid: both models alone, and checks of so many tokens; None: none is run."""
    arms = () if spans is None else (Arm("spans", "excess", {"threshold": 0.5, "span": spans}),)
    [grid] = answers_grids(design({0: {"bundled": questions}}, arms, temperature=temperature))
    return grid


def bundled_run(folder, num=2, **more):
    """The bundled pair knows nothing of these questions, and answers all the same."""
    questions = tuple(replace(each, max_tokens=16) for each in QUESTIONS[:num])
    return GridRun((spans_grid(questions),), {"bundled": ModelPair(BUNDLED_LOCAL, BUNDLED_CLOUD)}, folder, **more)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    run = bundled_run(tmp_path_factory.mktemp("text"), num=4, check_share=0.5)
    told = []
    return run, run_grids(run, told.append), told


@pytest.mark.slow
def test_every_question_is_answered_once_by_all_arms_whichever_process_took_it(ran):
    run, found, told = ran
    [records] = found
    assert [record["text"] for record in records] == [each.text for each in run.grids[0].questions]
    assert all(list(record["arms"]) == ["cloud", "local", "spans"] for record in records)
    assert 1 <= len(list(run.folder.glob("part-*.jsonl"))) <= 2  # a loaded machine lets one take all
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


def test_records_that_are_not_read_are_told(tmp_path):
    """A design that was changed, or a version under which a rule did something else."""
    run = bundled_run(tmp_path)
    kept = [*({"key": run.key(unit), "text": "known"} for unit in run.units), {"key": "of an earlier version"}]
    (tmp_path / "part-1.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in kept))
    told = []
    assert run_grids(run, told.append) == [kept[:2]]
    [before, others] = told
    assert before == "2 of 2 questions were answered before"
    assert others.startswith("1 records here are of other questions")


def test_what_a_record_depends_on_names_it(tmp_path):
    run = bundled_run(tmp_path)
    questions = run.grids[0].questions
    grids = (
        spans_grid(questions, temperature=0.5),
        spans_grid(questions, SPANS + 1),
        spans_grid(questions, None),
    )
    others = (
        replace(run, seed=1),
        *(replace(run, grids=(grid,)) for grid in grids),
        replace(run, pairs={"bundled": ModelPair(BUNDLED_CLOUD, BUNDLED_CLOUD)}),
    )
    assert run.key((0, 0)) not in {other.key((0, 0)) for other in others}
    assert len({other.key((0, 0)) for other in others}) == len(others)
    assert replace(run, num_processes=7).key((0, 0)) == run.key((0, 0))


def test_a_corrected_grader_and_a_model_of_the_same_size_make_another_record(tmp_path):
    asked = OwnQuestion(question="6 * 7?", grader="number", answer="42")
    more = ({"answer": "43"}, {"grader": "contains"}, {"tolerance": 0.5}, {"max_tokens": 9}, {"kind": "sums"})
    (model := tmp_path / "model.gguf").write_bytes(b"one")
    run = bundled_run(tmp_path)

    def key(question):
        grid = replace(run.grids[0], questions=(question,))
        return replace(run, grids=(grid,), pairs={"bundled": ModelPair(model, BUNDLED_CLOUD, model)}).key((0, 0))

    keys = {key(OwnQuestion(**asked.model_dump(by_alias=True) | each)) for each in ({}, *more)}
    assert len(keys) == 1 + len(more)
    model.touch()
    assert key(asked) in keys
    model.write_bytes(b"two")
    assert key(asked) not in keys


@pytest.mark.slow
def test_what_a_child_cannot_do_is_one_sentence_and_no_child_is_left(tmp_path):
    run = bundled_run(tmp_path, check_share=0.0)
    broken = replace(run, pairs={"bundled": ModelPair(BUNDLED_LOCAL, tmp_path)})
    with pytest.raises(EngineError):
        run_grids(broken, lambda _: None)
    assert read_parts(tmp_path) == {}


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
