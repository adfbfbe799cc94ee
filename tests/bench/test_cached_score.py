"""A score that is kept tells of each draft what it would tell anew, and is asked once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hybrid.defer import CriticNumbers, DraftSignals, Forecast, QuestionForecast
from hybrid.lab.experiments.memo import CachedScore


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


def test_a_score_is_asked_once_about_a_draft_however_many_planners_decide():
    score = SomeScore()
    kept, signals = CachedScore(score), signals_of(0, 9)
    for _ in range(3):
        assert kept.forecast(signals) is kept.forecast(signals_of(0, 9))
    assert score.num_forecasts == 1
    assert kept.forecast(signals_of(0, 8)).turned_down == score.forecast(signals_of(0, 8)).turned_down
    assert kept.judge == score.judge


def test_forecasts_with_a_critic_and_without_are_not_taken_for_one_another():
    kept = CachedScore(score := SomeScore())
    assert kept.critic is None
    plain = signals_of(0, 5)
    for critic in (None, CriticNumbers(np.zeros(5), np.zeros(5)), CriticNumbers(np.ones(5), np.zeros(5))):
        kept.forecast(replace(plain, critic=critic))
    assert score.num_forecasts == 3
