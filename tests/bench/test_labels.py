"""Labels are what a check tells, and controls know what they are said to know. Bundled pair."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from cases import each_of

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.defer import DraftSignals, LabelledDraft, LabelledQuestion
from hybrid.lab.experiments.auto_suite import CONTROLS, fit_control
from hybrid.lab.experiments.auto_trial import PRESETS
from hybrid.lab.experiments.grid import LOCAL
from hybrid.lab.experiments.questions import draw_problems
from hybrid.lab.experiments.trials import label, label_of_json, label_to_json
from hybrid.lab.experiments.world import open_world
from hybrid.tasks.statistics import auroc
from hybrid.types import Sampling

ONCE = next(arm for arm in PRESETS if arm.name == "once")


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


def draws(num, seed):
    """Labels by a known law: an entropy above 1 is turned down in nine of ten cases, a lower one in one of ten."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        highest, length = rng.uniform(0.0, 2.0), int(rng.integers(2, 40))
        entropy = rng.uniform(0.0, 1.0, size=length) * highest
        entropy[rng.integers(length)] = highest
        ones = np.full(length, 0.5)
        words = (7,) if highest > 1.0 else (9,)
        signals = DraftSignals(words, 20, 0, np.arange(length), entropy, ones, ones / 2, np.log(ones), ended=True)
        down = rng.uniform() < (0.9 if highest > 1.0 else 0.1)
        yield LabelledQuestion(LabelledDraft(signals, 0 if down else None, np.full(length, 0.1)), length)


@pytest.mark.parametrize("signal", CONTROLS)
def test_a_control_tells_what_its_signal_tells(signal):
    fitted = fit_control(signal, list(draws(600, 0)), "kl:0.7")
    fresh = list(draws(600, 1))
    down = np.array([each.draft.first_rejection is not None for each in fresh])
    told = np.array([fitted.forecast(each.draft.signals).turned_down for each in fresh])
    assert told.mean() == pytest.approx(down.mean(), abs=0.06)
    telling = auroc(told, down)
    assert telling < 0.6 if signal == "length" else telling > 0.8


def test_a_control_tells_no_place():
    fitted = fit_control("entropy", list(draws(50, 0)), "kl:0.7")
    hazard = fitted.forecast(next(draws(1, 5)).draft.signals).hazard
    assert np.ptp(hazard) == 0.0


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
