"""Which models answer which families: every bundled one is asked its own group's, and graded as they are."""

from __future__ import annotations

import random
from itertools import chain

import numpy as np

from hybrid.models import card as evaluation
from hybrid.models.card import GROUPS, LADDER, WORDINGS, ModelAnswer, group_of
from hybrid.settings.names import BUNDLED, MODELS
from hybrid.tasks import wordings


def test_every_bundled_model_is_of_one_group_and_every_family_too():
    names = [name for group in GROUPS for name in group.names]
    families = [family for group in GROUPS for family in group.families]
    assert sorted(names) == sorted(BUNDLED)
    assert len({*families}) == len(families)
    assert all(group.large in group.names for group in GROUPS)
    assert group_of("wordings-small") is WORDINGS
    assert group_of("my/model.gguf") is LADDER


def test_the_wordings_pair_is_small():
    """Four MiB together, as it was asked for: a wheel carries it."""
    assert sum((MODELS / f"{name}.gguf").stat().st_size for name in WORDINGS.names) < 4 * 2**20


def test_the_wordings_pair_is_asked_its_own_families_and_graded_by_meaning():
    """An answer in other words than the worked one's is right, its mistake is wrong."""
    problems = evaluation.problems_of("test", 4, group=WORDINGS)
    assert [*problems] == [family.name for family in wordings.FAMILIES]
    rng = random.Random(0)
    asked = [*chain.from_iterable(problems.values())]
    told = {problem.question: wordings.say(problem.mistake or problem.worked, rng, "fancy") for problem in asked}

    class Fancy:
        def write(self, question, max_tokens, *, keep_rows):
            assert (max_tokens, keep_rows) == (wordings.MAX_TOKENS, True)
            return ModelAnswer((), (), np.empty((0, 2)), told[question])

    found = evaluation.evaluate(Fancy(), problems, lambda _: None, group=WORDINGS)
    assert [answer.problem for answer in chain.from_iterable(found.values())] == asked
    assert all(answer.correct == (not answer.problem.mistake) for answer in chain.from_iterable(found.values()))
    assert {answer.correct for answer in chain.from_iterable(found.values())} == {True, False}
