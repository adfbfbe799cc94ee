"""Problems with right answers under every arm: what is recorded of them. Bundled pair."""

from __future__ import annotations

import asyncio

import pytest
from cases import each_of
from study_records import design

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.questions import as_questions, draw_problems, fitted_problems
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.answers import answers_grids
from hybrid.tasks import FAMILIES, split_of

ONCE = Arm("once", "once", {"threshold": 0.7})


@pytest.mark.slow
def test_a_record_is_graded_as_its_family_does_and_counts_every_request():
    questions = as_questions(draw_problems("test", 1, 0)[4:12])
    [grid] = answers_grids(design({0: {"bundled": questions}}, (ONCE,)))

    async def check(arm, sampling, answered):
        assert answered.answer.degraded is None

    async def answered():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            return [await grid.answer(world, i, i, check) for i in range(len(questions))]

    records = asyncio.run(answered())
    for question, record in each_of(zip(questions, records, strict=True)):
        assert (record["text"], record["kind"]) == (question.problem.question, question.problem.family)
        assert record["arms"]["local"]["requests"] == []
        [[kind, sent, scored, known, written]] = record["arms"]["cloud"]["requests"]
        assert (kind, sent, scored, known) == ("write", record["prompt_tokens"], 0, 0)
        assert written >= record["arms"]["cloud"]["tokens"] == record["arms"]["cloud"]["cloud_tokens"] + 1
        assert record["arms"]["once"]["requests"][0][0] == "check"
        assert len(record["arms"]["once"]["requests"]) <= 2
    assert any(record["arms"]["cloud"]["right"] > record["arms"]["local"]["right"] for record in records)


def test_what_is_tried_of_the_calibration_split_fitted_no_score():
    tried, fitted = draw_problems("calibration", 3, 0), fitted_problems()
    assert len(tried) == 3 * len(FAMILIES)
    assert {split_of(each) for each in tried} == {"calibration"}
    assert not {each.canonical for each in tried} & {each.canonical for each in fitted}
    assert {split_of(each) for each in draw_problems("test", 1, 1)} == {"test"}
