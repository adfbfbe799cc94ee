"""Scores that know little, for the planner that ``auto`` has: what a better score adds is the difference to these.

Each is a logistic regression of the verdict on a few signals, fitted on the same labels. The chance of a draft is
spread evenly over it, as ``PriorScore`` does: these signals tell no place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from hybrid.defer import DraftSignals, Forecast, LabelledQuestion, QuestionForecast, statistics
from hybrid.defer.familiarity import NOTHING_FAMILIAR, Familiarity
from hybrid.defer.logistic import SparseRows, fit_logistic, sigmoid
from hybrid.prob import Floats

ControlSignal: TypeAlias = Literal["entropy", "words", "length"]
CONTROLS: tuple[ControlSignal, ...] = ("entropy", "words", "length")
# The strength of the pull to zero: of a word's weight, and of a number's that has a variance of one.
WORD_PRECISION, NUMBER_PRECISION = 1.0, 0.01
# Below it, entropies are alike.
LEAST_ENTROPY = 1e-3


@dataclass(frozen=True, eq=False)
class ControlScore:
    """A fitted control. ``weights``: of the word buckets, of its numbers, and of one; the numbers are standardised."""

    signal: ControlSignal
    judge: str
    weights: Floats
    centre: Floats
    width: Floats
    usual: QuestionForecast = field(compare=False)
    familiarity: ClassVar[Familiarity] = NOTHING_FAMILIAR
    critic: ClassVar[str | None] = None

    def forecast(self, signals: DraftSignals) -> Forecast:
        """Spread the chance evenly over the draft."""
        chance = float(sigmoid(self._rows([signals]).times(self.weights))[0])
        num = len(signals)
        hazard = np.full(num, 1.0 - (1.0 - chance) ** (1.0 / max(1, num)))
        return Forecast(hazard, np.full(num, self.usual.excess))

    def before(self, words: tuple[int, ...], prompt_tokens: int) -> QuestionForecast:  # noqa: ARG002  (the port's shape)
        """Say the same of every question."""
        return self.usual

    def _rows(self, drafts: Sequence[DraftSignals]) -> SparseRows:
        numbers = np.array([_numbers(self.signal, each) for each in drafts]).reshape(len(drafts), -1)
        return _standardised(self.signal, drafts, numbers, self.centre, self.width)


def fit_control(signal: ControlSignal, labelled: Sequence[LabelledQuestion], judge: str) -> ControlScore:
    """Fit a control to the verdicts of calibration questions."""
    drafts = [each.draft.signals for each in labelled]
    turned_down = np.array([each.draft.first_rejection is not None for each in labelled], dtype=np.float64)
    numbers = np.array([_numbers(signal, each) for each in drafts]).reshape(len(drafts), -1)
    centre, width = numbers.mean(axis=0), numbers.std(axis=0) + 1e-9
    rows = _standardised(signal, drafts, numbers, centre, width)
    precision = np.full(rows.num_features, WORD_PRECISION)
    precision[-(numbers.shape[1] + 1) :] = NUMBER_PRECISION
    weights = fit_logistic(rows, turned_down, precision)
    excess = float(np.mean([each.draft.excess.mean() for each in labelled if len(each.draft.excess)]))
    usual = QuestionForecast(float(turned_down.mean()), float(np.mean([len(each) for each in drafts])), excess)
    return ControlScore(signal, judge, weights, centre, width, usual)


def _numbers(signal: ControlSignal, signals: DraftSignals) -> list[float]:
    """Return what a control looks at beside words, as logarithms and as it is."""
    if signal == "entropy":
        highest = float(statistics(signals)[0])
        return [highest, float(np.log(highest + LEAST_ENTROPY))]
    if signal == "length":
        return [float(np.log1p(len(signals))), float(np.log1p(signals.prompt_tokens))]
    return []


def _standardised(
    signal: ControlSignal, drafts: Sequence[DraftSignals], numbers: Floats, centre: Floats, width: Floats
) -> SparseRows:
    """Put words, standardised numbers and a one into rows."""
    buckets = [each.words if signal == "words" else () for each in drafts]
    return SparseRows.of(buckets, np.column_stack([(numbers - centre) / width, np.ones(len(drafts))]))
