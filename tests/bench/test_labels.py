"""Labels are what a check tells. Bundled pair."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.grid import LOCAL
from hybrid.lab.experiments.questions import draw_problems
from hybrid.lab.experiments.trials import label, label_of_json, label_to_json
from hybrid.lab.experiments.world import open_world
from hybrid.types import Sampling

ONCE = Arm("once", "once", {"threshold": 0.7})


@pytest.fixture(scope="module")
def labelled():
    """Labels of some problems, and what ``once`` answered to each."""

    async def found():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            pairs = []
            for problem in draw_problems("test", 1, 0):
                once = await world.answer(problem.question, ONCE, Sampling(), 240)
                drafted = await world.answer(problem.question, LOCAL, Sampling(), 240)
                pairs.append((label(world, problem.question, drafted, 0.7), once, drafted))
                world.forget()
            return pairs

    return asyncio.run(found())


@pytest.mark.slow
def test_a_label_is_what_a_check_of_the_whole_draft_told(labelled):
    for found, once, drafted in each_of(labelled):
        scored = once.requests[0].num_scored
        assert len(found.signals) == scored == len(drafted.ids) + drafted.ended
        kept = [token.source for token in once.answer.tokens].index("cloud") if once.answer.usage.cloud_tokens else None
        assert found.first_rejection == kept
    rejected = [found.first_rejection is not None for found, _, _ in labelled]
    assert 0 < sum(rejected) < len(rejected)


def test_signals_are_those_of_the_models_own_rows_and_excess_is_none_of_the_clouds_favourite(labelled):
    for found, _, drafted in each_of(labelled):
        assert found.signals.tokens.tolist()[: len(drafted.ids)] == list(drafted.ids)
        assert np.allclose(np.exp(found.signals.logprob), found.signals.top), "a greedy draft takes the favourite"
        assert (found.excess >= 0.0).all()


def test_a_label_is_read_as_it_was_kept(labelled):
    for found, _, _ in each_of(labelled):
        again = label_of_json(json.loads(json.dumps(label_to_json(found))))
        assert label_to_json(again) == label_to_json(found)


@pytest.mark.slow
def test_a_critics_numbers_are_a_labels_too():
    """The model itself as its own critic has nothing to say against its draft."""

    async def found():
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD, critic=BUNDLED_LOCAL) as world:
            problem = draw_problems("test", 1, 0)[0]
            drafted = await world.answer(problem.question, LOCAL, Sampling(), 240)
            return label(world, problem.question, drafted, 0.7)

    own = asyncio.run(found())
    assert own.signals.critic.kl == pytest.approx(np.zeros(len(own.signals)), abs=0.02)
    again = label_of_json(json.loads(json.dumps(label_to_json(own))))
    assert label_to_json(again) == label_to_json(own)
    assert again.signals.critic.logprob.tolist() == own.signals.critic.logprob.tolist()
