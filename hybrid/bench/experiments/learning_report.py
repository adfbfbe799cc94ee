"""The report of what is learned online: cold starts, shifts, levels of risk and paced days, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from hybrid.bench.experiments.learning_stream import (
    DecidedQuestion,
    StreamChoice,
    StreamFigures,
    TaughtQuestion,
    outcome,
)
from hybrid.bench.experiments.learning_suite import (
    COLD_PARTS,
    LEVELS,
    SHIFT_PARTS,
    FitCalibration,
    Parts,
    ShiftFigures,
    cold_starts,
    left_out,
    paced_day,
    risk_splits,
    shifts,
)
from hybrid.bench.experiments.tariffs import SETTINGS
from hybrid.defer import Calibration
from hybrid.policy.plan import DraftPlan

SETTING = SETTINGS[0]
# Dials of a cold start: one amount in mean prices of the questions by the cloud alone, and multiples of each one's own.
COLD_AMOUNT, COLD_MULTIPLES = 1.5, (1.2, 2.2)
# A day's worth in such means, and its cap as a share of what the cloud alone takes.
DAY_AMOUNT, CAP_SHARES, NUM_DAYS = 2.2, (0.2, 0.35), 3


def learning_report(
    taught: Sequence[TaughtQuestion],
    asked: Sequence[TaughtQuestion],
    fit: FitCalibration,
    fitted: Calibration,
    *,
    unseen: bool,
) -> dict[str, Any]:
    """Return all figures, under tariff U.

    ``taught``: questions that scores are fitted on; ``asked``: those of the streams. ``fitted``: a calibration on all
    of ``taught``. ``unseen``: no question of ``asked`` is one of ``taught``; else its chances of them are those of the
    calibration's own folds, in the same order.
    """
    mean = float(np.mean([_alone(each) for each in asked]))
    amount = StreamChoice(SETTING, amount=COLD_AMOUNT * mean)
    cold = {f"{COLD_AMOUNT:g} mean prices for all": amount} | {
        f"{multiple:g} times each own price": StreamChoice(SETTING, multiple) for multiple in COLD_MULTIPLES
    }
    choice = StreamChoice(SETTING, fitted.worth)
    chances = [(each.chance, each.turned_down) for each in fitted.questions]
    if unseen:
        told = [fitted.score.forecast(each.signals).turned_down for each in asked]
        chances = [
            (chance, each.labelled.draft.first_rejection is not None) for chance, each in zip(told, asked, strict=True)
        ]
    day = StreamChoice(SETTING, amount=DAY_AMOUNT * mean)
    half = fitted if unseen else fit([each.labelled for each in taught[::2]])
    of_day = asked if unseen else asked[1::2]
    return {
        "questions": len(asked),
        "once": asdict(StreamFigures.of([_checked(each, choice) for each in asked])),
        "cold": {name: _cold(cold_starts(asked, each, fitted.judge)) for name, each in cold.items()},
        "shifts": [_shift(each) for each in shifts(taught, asked, choice, fit)],
        "left_out": [_shift(each) for each in left_out(taught, asked, choice, fit)],
        "risk": [asdict(risk_splits(chances, level)) for level in LEVELS],
        "days": [
            {"cap": cap, "number": number} | asdict(paced_day(of_day, half, day, cap, number))
            for cap in CAP_SHARES
            for number in range(NUM_DAYS)
        ],
    }


def _checked(question: TaughtQuestion, choice: StreamChoice) -> DecidedQuestion:
    """Check the whole draft, as ``once`` does."""
    return outcome(question, DraftPlan("check", len(question.signals)), choice.prices)


def _alone(question: TaughtQuestion) -> float:
    prices = StreamChoice(SETTING).prices
    return float(prices.write(question.signals.prompt_tokens, question.labelled.cloud_tokens, 0))


def _cold(orders: list[list[StreamFigures]]) -> list[dict[str, Any]]:
    """Return the means over orders, part by part."""
    parts = zip(_names(COLD_PARTS), zip(*orders, strict=True), strict=False)
    return [{"part": name} | _means(found) for name, found in parts]


def _means(found: Sequence[StreamFigures]) -> dict[str, Any]:
    rpis = [each.rpi for each in found if each.rpi is not None]
    bills, kept = [each.bill for each in found], [each.kept for each in found]
    return {"rpi": float(np.mean(rpis)), "bill": float(np.mean(bills)), "kept": float(np.mean(kept))}


def _shift(found: ShiftFigures) -> dict[str, Any]:
    parts = [{"part": name} | asdict(each) for name, each in zip(_names(SHIFT_PARTS), found.parts, strict=False)]
    return {"kinds": found.kinds, "parts": parts, "said": found.said}


def _names(parts: Parts) -> list[str]:
    return [f"{first} to {end}" for first, end in parts]
