"""One problem with all that a stream needs to know of it: both models' answers, and the verdicts on both.

Where it is asked for, other arms answer it as well, and the local model draws some more answers: then every rule that
decides about whole questions, and each of those arms, can be tried on the one record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hybrid.defer import Calibration
from hybrid.lab.arms import Arm
from hybrid.lab.experiments.auto_trial import first_rejection, label, label_to_json, labelled_question
from hybrid.lab.experiments.learning_stream import DecidedQuestion, StreamChoice, StreamFigures, TaughtQuestion, outcome
from hybrid.lab.experiments.learning_suite import (
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
from hybrid.lab.experiments.problem_suite import GradedQuestion, graded_record
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, answer_arms, arms_to_json
from hybrid.lab.experiments.tariffs import SETTINGS
from hybrid.lab.experiments.world import World
from hybrid.policy.plan import DraftPlan
from hybrid.types import Sampling


@dataclass(frozen=True)
class TeachingSection:
    """Problems whose greedy drafts, and the cloud's own texts, are judged at a threshold in nats.

    ``arms``: others that answer each. ``num_drawn``: so many more answers of the local model are drawn at
    ``temperature``.
    """

    name: str
    pair: str
    questions: tuple[GradedQuestion, ...]
    threshold: float
    arms: tuple[Arm, ...] = ()
    num_drawn: int = 0
    temperature: float = 0.7

    @property
    def num_arms(self) -> int:
        """Both models alone, each one's rows along the other's text, and the others."""
        return 3 + len(self.arms) + self.num_drawn

    def content(self) -> list[Any]:
        """Return the judge, and what else answers."""
        others = [arms_to_json(self.arms), self.num_drawn, self.temperature]
        return ["teaching", self.threshold, *(others if self.arms or self.num_drawn else [])]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Judge one problem's two answers; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        drafted, written = (await answer_arms(world, question, (LOCAL, CLOUD), sampling, check)).values()
        labelled = label(world, question.text, drafted, self.threshold)
        local, cloud = world.rows(written.prompt, written.ids) if written.ids else ([], [])
        record: dict[str, Any] = {
            "text": question.text,
            "kind": question.kind,
            "cloud_tokens": len(written.ids) + written.ended,
            "draft": label_to_json(labelled),
            "written_turned_down": first_rejection(written.ids, local, cloud, self.threshold) is not None,
            "local_right": question.grade(drafted.answer.text),
            "cloud_right": question.grade(written.answer.text),
        }
        if self.arms:
            answers = await answer_arms(world, question, self.arms, sampling, check)
            record["arms"] = {name: graded_record(answered, question) for name, answered in answers.items()}
        if self.num_drawn:
            record |= {"text_drafted": drafted.answer.text, "texts_drawn": []}
        for number_drawn in range(self.num_drawn):
            drawing = replace(sampling, temperature=self.temperature, seed=seed + number_drawn)
            drawn = await world.answer(question.text, LOCAL, drawing, question.max_tokens)
            record["texts_drawn"].append(drawn.answer.text)
        world.forget()
        return record


def taught_question(record: Mapping[str, Any]) -> TaughtQuestion:
    """Return what a stream needs, from a problem's record."""
    verdicts = (bool(record[name]) for name in ("written_turned_down", "local_right", "cloud_right"))
    return TaughtQuestion(record["kind"], labelled_question(record), *verdicts)


# The report of what is learned online: cold starts, shifts, levels of risk and paced days, as plain data.

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
