"""What is learned online, put to the test on streams of labelled questions: cold starts, shifts, levels of risk, days.

Each trial has an order, or a draw, of its own, by its number; nothing is drawn otherwise. What is fitted comes from
outside (``FitCalibration``): this file fits nothing but what the product learns while it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hybrid.defer import Calibration, LabelledQuestion, worth_factor
from hybrid.defer.dials import RiskQuestion, risk_cutoff
from hybrid.lab.experiments.learning_stream import (
    LearningStream,
    StreamChoice,
    StreamFigures,
    TaughtQuestion,
)

FitCalibration: TypeAlias = Callable[[Sequence[LabelledQuestion]], Calibration]
Parts: TypeAlias = tuple[tuple[int, int], ...]
COLD_PARTS: Parts = ((0, 100), (100, 300), (300, 600))
SHIFT_PARTS: Parts = ((0, 150), (0, 300))
LEVELS = (0.02, 0.05, 0.1)


def cold_starts(
    questions: Sequence[TaughtQuestion], choice: StreamChoice, judge: str, num_orders: int = 5, num: int = 600
) -> list[list[StreamFigures]]:
    """Start with nothing, in several orders; return the figures of each order's parts."""
    found = []
    for order in range(num_orders):
        drawn = np.random.default_rng(order).permutation(len(questions))[:num]
        stream = LearningStream(choice, judge)
        found.append(_parts(stream, [questions[i] for i in drawn], COLD_PARTS))
    return found


@dataclass(frozen=True)
class ShiftFigures:
    """A score that was fitted to other kinds than it met. ``parts``: as ``SHIFT_PARTS``; ``said``: what users hear."""

    kinds: tuple[str, ...]
    parts: list[StreamFigures]
    said: tuple[str, ...]


def shifts(
    taught: Sequence[TaughtQuestion],
    asked: Sequence[TaughtQuestion],
    choice: StreamChoice,
    fit: FitCalibration,
    num_draws: int = 5,
) -> list[ShiftFigures]:
    """Fit half of the kinds of ``taught``, then meet the other half among ``asked``; several draws of the half."""
    kinds = sorted({each.kind for each in taught})
    halves = (np.random.default_rng(draw).permutation(kinds)[len(kinds) // 2 :] for draw in range(num_draws))
    return [_shift(taught, asked, choice, fit, tuple(sorted(map(str, others)))) for others in halves]


def left_out(
    taught: Sequence[TaughtQuestion], asked: Sequence[TaughtQuestion], choice: StreamChoice, fit: FitCalibration
) -> list[ShiftFigures]:
    """Fit all kinds of ``taught`` but one, then meet that one among ``asked``; each kind once."""
    return [_shift(taught, asked, choice, fit, (kind,)) for kind in sorted({each.kind for each in taught})]


def _shift(
    taught: Sequence[TaughtQuestion],
    asked: Sequence[TaughtQuestion],
    choice: StreamChoice,
    fit: FitCalibration,
    others: tuple[str, ...],
) -> ShiftFigures:
    calibration = fit([each.labelled for each in taught if each.kind not in others])
    new = [each for each in asked if each.kind in others]
    order = np.random.default_rng(0).permutation(len(new))[: SHIFT_PARTS[-1][1]]
    stream = LearningStream(choice, calibration.judge, calibration)
    return ShiftFigures(others, _parts(stream, [new[i] for i in order], SHIFT_PARTS), tuple(stream.said))


def _parts(stream: LearningStream, questions: Sequence[TaughtQuestion], parts: Parts) -> list[StreamFigures]:
    decided = stream.run(questions)
    return [StreamFigures.of(decided[first:end]) for first, end in parts if first < len(decided)]


@dataclass(frozen=True)
class RiskFigures:
    """What a level of risk came to over splits: the mean share that was lost, its standard error, the share kept."""

    level: float
    lost: float
    standard_error: float
    kept: float


def risk_splits(
    told: Sequence[tuple[float, bool]], level: float, num_splits: int = 200, num_labels: int = 350
) -> RiskFigures:
    """Take a cut-off from some labels and use it on the others, again and again.

    ``told``: for each question the chance that its draft is turned down, and whether it was.
    """
    rng, lost, kept = np.random.default_rng(0), [], []
    chances = np.array([chance for chance, _ in told])
    bad = np.array([turned_down for _, turned_down in told])
    for _ in range(num_splits):
        order = rng.permutation(len(told))
        labels = [RiskQuestion(float(chances[i]), bool(bad[i])) for i in order[:num_labels]]
        keeps = chances[order[num_labels:]] <= risk_cutoff(labels, level)
        lost.append(float(np.mean(keeps & bad[order[num_labels:]])))
        kept.append(float(np.mean(keeps)))
    return RiskFigures(level, float(np.mean(lost)), float(np.std(lost) / np.sqrt(num_splits)), float(np.mean(kept)))


@dataclass(frozen=True)
class DayFigures:
    """A day under a cap: shares of the cap that were spent in all and until the burst's end, and what that came to."""

    spent: float
    spent_by_burst: float
    figures: StreamFigures


def paced_day(
    questions: Sequence[TaughtQuestion],
    calibration: Calibration,
    choice: StreamChoice,
    cap_share: float,
    number: int = 0,
    burst: tuple[float, float] = (0.4, 0.45),
    burst_share: float = 0.4,
) -> DayFigures:
    """Decide the questions of one day, a part of them in a burst. ``choice.amount``: what is stated as the worth.

    The cap is a share of what the cloud alone would take for all. As the ledger does, whatever does not fit any more is
    not asked, so the local model's answer stands.
    """
    rng = np.random.default_rng(number)
    order = rng.permutation(len(questions))
    in_burst = rng.random(len(questions)) < burst_share
    moments = np.sort(np.where(in_burst, rng.uniform(*burst, len(questions)), rng.random(len(questions))))
    stream = LearningStream(choice, calibration.judge, calibration)
    prices = choice.prices
    cap = cap_share * sum(
        float(prices.write(each.signals.prompt_tokens, each.labelled.cloud_tokens, 0)) for each in questions
    )
    spent = spent_by_burst = 0.0
    for moment, i in zip(moments, order, strict=True):
        decided = stream.decide(questions[i], worth_factor(spent / cap, float(moment)), left=cap - spent)
        spent += decided.paid
        spent_by_burst = spent if moment <= burst[1] else spent_by_burst
    return DayFigures(spent / cap, spent_by_burst / cap, StreamFigures.of(stream.decided))
