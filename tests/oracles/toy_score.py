"""A score that forecasts what it is told, for tests of what is decided by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.defer import Forecast, QuestionForecast

EVEN = QuestionForecast(0.5, 20.0, 1.0)


@dataclass(frozen=True)
class ToyScore:
    """Forecasts what it is told."""

    hazard: tuple[float, ...] = ()
    excess: tuple[float, ...] = ()
    judge: str = "kl:0.5"
    critic: str | None = None
    question: QuestionForecast = EVEN

    def forecast(self, signals):
        num = len(signals)
        return Forecast(np.array(self.hazard[:num]), np.array((self.excess or (0.0,) * num)[:num]))

    def before(self, words, prompt_tokens):
        return self.question
