"""An answer that follows from kept decisions is the one that is really written."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, Forecast, QuestionForecast
from hybrid.lab.experiments.auto_trial import (
    EVERY_ABILITY,
    AutoRule,
    CachedScore,
    DecisionMemo,
    MeanCloudPrice,
    RecordingPlanner,
)
from hybrid.lab.experiments.frame import SETTINGS
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner


class SomeScore:
    """A score whose hazards are drawn from the draft's own tokens; it counts what it is asked."""

    judge, again, critic = "kl:0.7", 0.6, None

    def __init__(self):
        self.num_forecasts = 0

    def forecast(self, signals):
        self.num_forecasts += 1
        rng = np.random.default_rng(signals.tokens)
        return Forecast(rng.uniform(0, 0.2, size=len(signals)) ** 2, np.zeros(len(signals)))

    def before(self, words, prompt_tokens):
        return QuestionForecast(0.4, 20.0, 0.1)


def signals_of(shown, num):
    rng = np.random.default_rng((shown, num))
    entropy = rng.uniform(0, 2, size=num)
    top = np.full(num, 0.6)
    return DraftSignals((1, 2), 30, shown, rng.integers(0, 9, size=num), entropy, top, top / 3, np.log(top), ended=True)


async def told(planner):
    """Stand in for a client: draft, ask, and go on as it was told; the answer is all that was decided."""
    shown, told = 0, []
    for num in (24, 12, 5):
        plan = planner.plan(signals_of(shown, num), final=True, known=shown and 30 + shown)
        told.append((shown, plan.action, plan.at, plan.limit))
        if plan.action in {"keep", "write"}:
            break
        shown += 3
    return told


def planners(score):
    rule = AutoRule("auto", "auto", (0.1, 0.5, 1.0, 2.0, 4.0))
    usual = MeanCloudPrice(((30, 40), (50, 20)))
    for constant in (False, True):
        for abilities in (EVERY_ABILITY, frozenset({"open"})):
            own = AutoRule("auto", "auto", rule.dials, constant=constant, abilities=abilities)
            for setting in SETTINGS:
                for dial in own.dials:
                    yield own.planner(((1, 2), 30), score, setting, own.worth(dial, setting, usual))


def test_a_kept_answer_is_the_one_that_the_planner_would_have_had():
    async def compared():
        answers, score = DecisionMemo(told), SomeScore()
        kept = CachedScore(score)
        for planner in planners(kept):
            number, decided = await answers.answer(planner)
            yield answers.outcomes[number], await told(planner), [plan.action for plan in decided]
        yield len(answers.outcomes), score.num_forecasts, None

    async def run():
        return [each async for each in compared()]

    *found, (num_outcomes, _, _) = asyncio.run(run())
    assert all(kept == direct for kept, direct, _ in found)
    assert 3 < num_outcomes < len(found) / 3, "most planners decide as another did"
    assert all(actions[0] == kept[0][1] for kept, _, actions in found)


def test_a_score_is_asked_once_about_a_draft_however_many_planners_decide():
    score = SomeScore()
    kept, signals = CachedScore(score), signals_of(0, 9)
    for _ in range(3):
        assert kept.forecast(signals) is kept.forecast(signals_of(0, 9))
    assert score.num_forecasts == 1
    assert kept.forecast(signals_of(0, 8)).turned_down == score.forecast(signals_of(0, 8)).turned_down
    assert kept.judge == score.judge


def test_planners_that_cut_a_draft_in_another_way_share_no_answer():
    async def outcomes():
        answers = DecisionMemo(told)
        for planner in (Planner(worth=Worth(0.0)), Planner(worth=Worth(0.0), stream="blocks", block=4)):
            await answers.answer(planner)
        return answers.outcomes

    assert len(asyncio.run(outcomes())) == 2


def test_a_heard_planner_decides_as_the_one_it_was_made_of():
    planner = Planner(score=SomeScore(), worth=Worth(1.3))
    heard = RecordingPlanner.over(planner)
    assert heard.plan(signals_of(0, 9), final=True) == planner.plan(signals_of(0, 9), final=True)
    [call] = heard.heard
    assert call.again(planner) == call.answered


def test_answers_with_a_critic_and_without_are_not_taken_for_one_another():
    """A kept call of the one holds signals that the other cannot read; their forecasts are two as well."""

    async def run():
        answers, score = DecisionMemo(told), SomeScore()
        planner = next(planners(score))
        numbers = [await answers.answer(planner)]
        score.critic = "c1"
        return [*numbers, await answers.answer(planner)], len(answers.outcomes)

    (first, second), num = asyncio.run(run())
    assert (first[0], second[0], num) == (0, 1, 2)
    kept = CachedScore(score := SomeScore())
    assert kept.critic is None
    plain = signals_of(0, 5)
    for critic in (None, CriticNumbers(np.zeros(5), np.zeros(5)), CriticNumbers(np.ones(5), np.zeros(5))):
        kept.forecast(replace(plain, critic=critic))
    assert score.num_forecasts == 3
