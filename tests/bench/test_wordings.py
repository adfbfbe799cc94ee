"""The wordings pair in a world: what a study tells of KL over concepts, and how its questions are written for one."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from cases import each_of

from hybrid.errors import UsageError
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.grid import CLOUD, LOCAL
from hybrid.lab.experiments.world import open_world
from hybrid.lab.study.own_questions import OwnQuestion
from hybrid.partitions.partition_file import load_partition
from hybrid.prob import FullRow, Partition, concept_kl, kl
from hybrid.settings.names import MODELS
from hybrid.tasks import distinct, wordings
from hybrid.types import Sampling

SMALL, LARGE = (MODELS / f"wordings-{size}.gguf" for size in ("small", "large"))


def worded(problem):
    """A problem as a line of a study's file: right is what says each concept of the worked answer in any word."""
    told = re.findall(r"\{([^}]+)\}|([\w']+)", problem.worked)
    words = [f"(?:{'|'.join(wordings.CONCEPTS[concept])})" if concept else word for concept, word in told]
    pattern = r"\A\W*" + r"\W+".join(words) + r"\W*\Z"
    return OwnQuestion(question=problem.question, kind=problem.family, grader="regex", answer=pattern, max_tokens=40)


def problems(num, *, mistaken):
    """Test problems of each family: those that the small model is taught a mistake for, or the others."""
    drawn = [distinct(family, "test", 30, 0) for family in wordings.FAMILIES]
    return [[e for e in of if bool(e.mistake) == mistaken][turn] for turn in range(num) for of in drawn]


def test_a_studys_questions_of_the_pair_are_graded_by_meaning():
    """The oracle is ``wordings.grade``: every saying of what is right, of the mistake, and of another's answer."""
    rng = random.Random(3)
    asked = problems(4, mistaken=True)
    for problem, other in each_of(zip(asked, asked[1:] + asked[:1], strict=True)):
        question = worded(problem)
        said = [wordings.say(template, rng) for template in (problem.worked, problem.mistake, other.worked)]
        for text in (*said, said[0].replace(" ", " , "), said[0] + " so", "", said[0].split(" ", 1)[1]):
            assert question.grade(text) == wordings.grade(problem, text), text


async def compared(asked):
    """KL over tokens and over concepts before each token of the large model's own answers."""
    async with open_world(SMALL, LARGE) as world:
        weights = world.local.weights
        true = load_partition(None, weights.vocabulary_digest, weights.num_tokens)
        alone, values = Partition.of_groups(weights.num_tokens, []), []
        for problem in asked:
            answered = await world.answer(problem.question, CLOUD, Sampling(0.0), wordings.MAX_TOKENS)
            for local, cloud in zip(*world.rows(answered.prompt, answered.ids), strict=True):
                parts = [concept_kl(FullRow(cloud), local, each).estimate for each in (true, alone)]
                values.append((kl(cloud, local), *parts))
            world.forget()
        return values


def test_along_the_large_models_answers_most_of_the_divergence_is_wording():
    """KL over concepts is never above that over tokens, and is it where each token is alone."""
    values = asyncio.run(compared(problems(2, mistaken=False)))
    assert len(values) > 50
    for tokens, concepts, alone in each_of(values):
        assert concepts <= tokens + 1e-9
        assert alone == pytest.approx(tokens)
    assert sum(concepts for _, concepts, _ in values) < 0.2 * sum(tokens for tokens, *_ in values)


async def answered(problem, *policies, local=SMALL, cloud=LARGE):
    async with open_world(local, cloud) as world:
        arms = (LOCAL, CLOUD, *(Arm(policy, policy) for policy in policies))
        return [await world.answer(problem.question, arm, Sampling(0.0), wordings.MAX_TOKENS) for arm in arms]


def test_the_small_model_is_wrong_alone_and_right_with_a_hand_over_that_is_no_wording():
    """On a problem of a family's hardest level, at which the small model overlooks something."""
    [problem, *_] = problems(1, mistaken=True)
    assert problem.family == "compare"
    local, cloud, by_tokens, by_concepts = asyncio.run(answered(problem, "kl:0.5", "concepts:0.5"))
    right = [wordings.grade(problem, each.answer.text) for each in (local, cloud, by_tokens, by_concepts)]
    assert right == [False, True, True, True]
    assert by_concepts.answer.usage.wording > 0 == by_tokens.answer.usage.wording
    assert by_concepts.answer.handoffs
    assert len(by_concepts.requests) < len(by_tokens.requests)
    assert by_concepts.answer.tokens[0].source == "local", "its first word is another than the cloud's, and stands"


def test_where_no_concepts_are_kept_an_arm_that_asks_for_them_is_refused():
    [problem, *_] = problems(1, mistaken=True)
    small, large = (MODELS / f"{size}.gguf" for size in ("small", "large"))
    with pytest.raises(UsageError, match="no concepts are kept for this vocabulary"):
        asyncio.run(answered(problem, "concepts", local=small, cloud=large))
