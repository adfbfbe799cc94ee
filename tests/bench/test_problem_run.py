"""Problems with right answers under every arm: what is recorded of them, and the table's ends. Bundled pair."""

from __future__ import annotations

import asyncio
import json

import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.cli.lab_tables import auto_document
from hybrid.defer import UninformedScore
from hybrid.lab.experiments.auto_trial import PRESETS, AutoRule, AutoTrial, MeanCloudPrice
from hybrid.lab.experiments.grid import CLOUD, LOCAL
from hybrid.lab.experiments.problem_report import problem_report
from hybrid.lab.experiments.questions import as_questions, draw_problems, fitted_problems
from hybrid.lab.experiments.world import open_world
from hybrid.report import terminal
from hybrid.tasks import FAMILIES, split_of

ONCE = next(arm for arm in PRESETS if arm.name == "once")


@pytest.fixture(scope="module")
def tried():
    """A grid, and the records of its problems."""
    problems = draw_problems("test", 1, 0)
    score = UninformedScore("kl:0.7", 0.4)
    rules = (AutoRule("auto", "auto", (0.5, 2.2)), AutoRule("highest entropy", "auto", (2.2, 9.0)))
    questions, usual = as_questions(problems[4:12]), MeanCloudPrice(((30, 60),))
    trial = AutoTrial((CLOUD, LOCAL, ONCE), rules, {"auto": score}, {"auto": "prior"}, usual)
    grid = trial.grid("test, seed 0", questions)

    async def check(arm, sampling, answered):
        assert answered.answer.degraded is None

    async def records():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            return [await grid.answer(world, i, i, check) | {"checked": []} for i in range(len(questions))]

    return grid, asyncio.run(records())


@pytest.mark.slow
def test_a_record_is_graded_as_its_family_does_and_counts_every_request(tried):
    grid, records = tried
    for question, record in each_of(zip(grid.questions, records, strict=True)):
        assert (record["text"], record["kind"]) == (question.problem.question, question.problem.family)
        assert record["arms"]["local"]["requests"] == []
        [[kind, sent, scored, known, written]] = record["arms"]["cloud"]["requests"]
        assert (kind, sent, scored, known) == ("write", record["prompt_tokens"], 0, 0)
        assert written >= record["arms"]["cloud"]["tokens"] == record["arms"]["cloud"]["cloud_tokens"]
        assert record["arms"]["once"]["requests"][0][0] == "check"
        assert len(record["arms"]["once"]["requests"]) <= 2
    assert any(record["arms"]["cloud"]["right"] > record["arms"]["local"]["right"] for record in records)


def test_the_table_has_the_models_alone_at_its_ends(tried, capsys):
    grid, records = tried
    report = json.loads(json.dumps(problem_report([grid], [records], 2.2)))
    [told] = report["sections"]
    rows = {row["arm"]: row for row in told["arms"]}
    for arm, end in (("cloud", 1.0), ("local", 0.0)):
        assert {bill["value"] for bill in rows[arm]["bill"].values()} == {end}
        assert rows[arm]["rpi"]["value"] == end
    assert 0.0 < rows["once"]["bill"]["U"]["value"] < rows["once"]["bill"]["SU"]["value"]
    assert sum(row["problems"] for row in report["families"]) == len(records)
    terminal.show(auto_document(report))
    assert "once" in capsys.readouterr().out


def test_what_is_tried_of_the_calibration_split_fitted_no_score():
    tried, fitted = draw_problems("calibration", 3, 0), fitted_problems()
    assert len(tried) == 3 * len(FAMILIES)
    assert {split_of(each) for each in tried} == {"calibration"}
    assert not {each.canonical for each in tried} & {each.canonical for each in fitted}
    assert {split_of(each) for each in draw_problems("test", 1, 1)} == {"test"}
