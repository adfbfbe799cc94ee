"""What is tried of ``auto``: rules, dials and scores, and the grids of ``hybrid bench auto``.

A score is a control, or what was fitted to a pair; the presets are ``auto_trial``'s, the problems ``questions``'.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from hybrid.defer import (
    Calibration,
    DraftSignals,
    Forecast,
    LabelledQuestion,
    QuestionForecast,
    Score,
    score_to_json,
    statistics,
)
from hybrid.defer.logistic import SparseRows, fit_logistic, sigmoid
from hybrid.defer.online import OnlineLearner
from hybrid.defer.words import NOTHING_FAMILIAR, NoveltyScore
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.auto_trial import PRESETS, AutoRule, AutoTrial, MeanCloudPrice
from hybrid.lab.experiments.grid import CLOUD, LOCAL, GradedQuestion, Grid
from hybrid.lab.experiments.questions import Half, as_questions, draw_problems
from hybrid.prob import Floats

# Scores that know little, for the planner that ``auto`` has: what a better score adds is the difference to these.
#
# Each is a logistic regression of the verdict on a few signals, fitted on the same labels. The chance of a draft is
# spread evenly over it, as ``UninformedScore`` does: these signals tell no place.

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
    familiarity: ClassVar[NoveltyScore] = NOTHING_FAMILIAR
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


# Multiples of a price. The default of a calibration stands among them.
DIALS = (0.45, 0.6, 0.8, 1.0, 1.2, 1.5, 1.8, 2.2, 2.8, 3.5, 8.0)
BLOCKS = (16, 32)
AUTO, LOGISTIC, ROUTE = "auto", "logistic", "route"
AUTO_CRITIC, ROUTE_CRITIC = "auto, critic", "route, critic"


@dataclass(frozen=True)
class Fitted:
    """What was fitted to a pair's labels: with trees and without, and the labels themselves for the controls.

    ``critic``: what was fitted to them and to what a critic said; None: nobody read along.
    """

    calibration: Calibration
    logistic: Calibration
    labelled: Sequence[LabelledQuestion]
    critic: Calibration | None = None

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Every score by its name; the controls last. A calibration's is that of a client that learned nothing."""
        own = self.calibration.score
        controls: dict[str, Score] = {
            f"{'highest ' * (signal == 'entropy')}{signal}": fit_control(signal, self.labelled, own.judge)
            for signal in CONTROLS
        }
        logistic = OnlineLearner(self.logistic.score, calibration=self.logistic).score
        learned = OnlineLearner(own, calibration=self.calibration).score
        critic: dict[str, Score] = {}
        if self.critic is not None:
            critic[AUTO_CRITIC] = OnlineLearner(self.critic.score, calibration=self.critic).score
        return {AUTO: learned, LOGISTIC: logistic, **critic, **controls}

    @property
    def digests(self) -> dict[str, str]:
        """What tells a score from another of its name."""
        kept = {AUTO: self.calibration, LOGISTIC: self.logistic}
        kept |= {} if self.critic is None else {AUTO_CRITIC: self.critic}
        found = {name: _digest(json.dumps(score_to_json(each.score)).encode()) for name, each in kept.items()}
        controls = {name: each for name, each in self.scores.items() if isinstance(each, ControlScore)}
        return found | {name: _digest(np.round(each.weights, 9).tobytes()) for name, each in controls.items()}

    @property
    def usual(self) -> MeanCloudPrice:
        """The lengths of the questions that it was fitted to."""
        return MeanCloudPrice(tuple((prompt_tokens_of(each), each.cloud_tokens) for each in self.labelled))

    @property
    def dials(self) -> tuple[float, ...]:
        """The dials that are tried, the calibration's default among them."""
        return tuple(sorted({*DIALS, self.calibration.worth}))


def prompt_tokens_of(labelled: LabelledQuestion) -> int:
    """Return the tokens of a question's prompt."""
    return labelled.draft.signals.prompt_tokens


def rules_of(fitted: Fitted) -> tuple[AutoRule, ...]:
    """Return every rule."""
    dials, default = fitted.dials, (fitted.calibration.worth,)
    scores = (AUTO, LOGISTIC, "highest entropy")
    return (
        *(AutoRule(name, name, dials) for name in scores),
        *(AutoRule(f"{name}, one worth", name, dials, constant=True) for name in (*scores, "words", "length")),
        AutoRule("keep or write, one worth", AUTO, dials, constant=True, abilities=frozenset({"open"})),
        *(AutoRule(f"auto, blocks of {block}", AUTO, default, stream="blocks", block=block) for block in BLOCKS),
        AutoRule("auto, early", AUTO, default, stream="early"),
        AutoRule(ROUTE, AUTO, dials, whole=True),
        AutoRule(f"{ROUTE}, one worth", AUTO, dials, constant=True, whole=True),
        AutoRule(f"{ROUTE}, early", AUTO, default, stream="early", whole=True),
    )


def critic_rules(fitted: Fitted) -> tuple[AutoRule, ...]:
    """Return ``auto`` and ``route`` with a critic and without, each with both kinds of dials."""
    pairs = ((AUTO, AUTO, False), (AUTO_CRITIC, AUTO_CRITIC, False), (ROUTE, AUTO, True))
    rules = (*pairs, (ROUTE_CRITIC, AUTO_CRITIC, True))
    return tuple(
        AutoRule(f"{name}{', one worth' * constant}", score, fitted.dials, constant=constant, whole=whole)
        for name, score, whole in rules
        for constant in (False, True)
    )


def auto_grids(fitted: Fitted, split: Half, num: int, seeds: Sequence[int]) -> tuple[Grid, ...]:
    """Return a grid for every seed: all of the first two, the default alone of what is only pooled by family.

    Where a critic read along, only what it adds is tried, beside both models alone.
    """
    default = (AutoRule(AUTO, AUTO, (fitted.calibration.worth,)),)
    grids = []
    for number, seed in enumerate(seeds):
        rules = critic_rules(fitted) if fitted.critic else rules_of(fitted) if number < 2 else default
        arms = PRESETS if number < 2 and not fitted.critic else (CLOUD, LOCAL)
        drawn = as_questions(draw_problems(split, num, seed))
        grids.append(auto_grid(f"{split}, seed {seed}", drawn, fitted, arms, rules))
    return tuple(grids)


def auto_grid(
    name: str,
    questions: Sequence[GradedQuestion],
    fitted: Fitted,
    arms: tuple[Arm, ...] = PRESETS,
    rules: tuple[AutoRule, ...] | None = None,
) -> Grid:
    """Return a grid of some questions with the rules' scores; all rules by default."""
    chosen = rules_of(fitted) if rules is None else rules
    used = {rule.score for rule in chosen}
    scores = {name: score for name, score in fitted.scores.items() if name in used}
    digests = {name: digest for name, digest in fitted.digests.items() if name in used}
    return AutoTrial(arms, chosen, scores, digests, fitted.usual).grid(name, questions)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
