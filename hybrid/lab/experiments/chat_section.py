"""``route`` over an endpoint that takes messages: what ``hybrid bench auto --real --chat`` runs, and its report.

Both models alone, ``doubt``, ``auto`` and ``route`` answer in the world, so that the loss of every text and the bill of
every request are known under each tariff. ``auto`` and ``route`` decide by what is shipped of the pair, at the dial
that spends half of the bill on the calibration's questions. What ``route`` and the cloud answer is then written again
by the client over a server that has the chat route alone: texts and requests are compared, every one of them. The bills
may be lower there: its server tells what it had cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid.defer import Calibration, word_buckets
from hybrid.lab.arms import Arm, estimate_to_json
from hybrid.lab.experiments.routed_section import signals_of, signals_to_json
from hybrid.lab.experiments.routed_table import RoutedTable
from hybrid.lab.experiments.section import CLOUD, LOCAL, CheckAnswer, arms_to_json
from hybrid.lab.experiments.suite import answer_record
from hybrid.lab.experiments.tariffs import PRICES, SETTINGS
from hybrid.lab.experiments.text_report import NUM_RESAMPLES, agreement, answered, rule_rows
from hybrid.lab.experiments.world import World, WorldAnswer
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.tasks.assistant import AssistantQuestion
from hybrid.tasks.statistics import rpi, wilson
from hybrid.tasks.text_statistics import bill_ratio
from hybrid.types import Sampling

DOUBT = Arm("doubt", "doubt")
PLANNED = ("auto", "route")
HALF = "half the bill"
CHAT = "openai-chat"


def half_the_bill(calibration: Calibration) -> Planner:
    """Return what decides at half of the bill, as a calibration's questions tell, bound to no question."""
    table = RoutedTable([], calibration, SETTINGS[0])
    return replace(table.planner, worth=Worth(amount=table.amounts[HALF]))


@dataclass(frozen=True)
class ChatSection:
    """A pair, answering greedily. ``planner``: what decides, bound to no question."""

    name: str
    pair: str
    questions: tuple[AssistantQuestion, ...]
    planner: Planner

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Those that need no planner."""
        return (CLOUD, LOCAL, DOUBT)

    @property
    def num_arms(self) -> int:
        """All, and what the client writes again."""
        return len(self.arms) + len(PLANNED) + 2

    def content(self) -> list[Any]:
        """Return the arms, and the dial."""
        return ["chat", arms_to_json(self.arms), PLANNED, str(self.planner)]

    async def answer(self, world: World, number: int, seed: int, check: CheckAnswer) -> dict[str, Any]:
        """Let every arm answer a question; the world forgets it afterwards."""
        question, sampling = self.questions[number], Sampling(seed=seed)
        answers: dict[str, WorldAnswer] = {}
        for arm in self.arms:
            answers[arm.name] = await world.answer(question.text, arm, sampling, question.max_tokens)
        await check(CLOUD, sampling, answers[CLOUD.name])
        drafted = answers[LOCAL.name]
        words, prompt_tokens = word_buckets(question.text), len(drafted.prompt)
        bound = replace(self.planner, words=words, prompt_tokens=prompt_tokens)
        for name in PLANNED:
            arm = Arm(name, name, planner=bound)
            answers[name] = await world.answer(question.text, arm, sampling, question.max_tokens)
            if name != "auto":
                await check(arm, sampling, answers[name])
        clouds = answers[CLOUD.name].ids
        whole = [answers["route"].ids == answers[arm.name].ids for arm in (LOCAL, CLOUD)]
        records = {name: answer_record(world, told, clouds, question) for name, told in answers.items()}
        signals = signals_of(world, question.text, drafted)
        world.forget()
        return {
            "text": question.text,
            "kind": question.kind,
            "seed": seed,
            "prompt_tokens": prompt_tokens,
            "spans": None,
            "signals": signals_to_json(signals),
            "whole": any(whole),
            "arms": records,
        }


def chat_report(
    sections: Sequence[ChatSection],
    found: Mapping[tuple[int, int], dict[str, Any]],
    calibrations: Mapping[str, Calibration],
) -> dict[str, Any]:
    """Return the report as plain data, from the records of every question by section and number."""
    told, every = [], []
    for number, section in enumerate(sections):
        records = [found[number, i] for i in range(len(section.questions))]
        every += records
        arms = [*(arm.name for arm in section.arms), *PLANNED]
        told.append(
            {
                "section": section.name,
                "pair": section.pair,
                "questions": len(records),
                "calibrated_on": len(calibrations[section.pair].questions),
                "whole": sum(record["whole"] for record in records),
                "rules": rule_rows(records, arms),
                "right": right_rows(records, arms),
            }
        )
    return {"sections": told, "over_chat": agreement(_without_bills(every))}


def _without_bills(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what was compared; a bill counts as the same where the requests do, whatever was cached."""
    return [each | {"bill": each["requests"]} for record in records for each in record["checked"]]


def right_rows(records: Sequence[dict[str, Any]], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return each arm's right answers on the graded questions, with RPI and bill."""
    graded = [record for record in records if record["arms"][CLOUD.name]["right"] is not None]
    if not graded:
        return []
    right = {arm: np.array([record["arms"][arm]["right"] for record in graded]) for arm in arms}
    key = PRICES[0], SETTINGS[0]
    bills = {arm: answered(graded, arm).bills[key] for arm in arms}
    return [
        {
            "arm": arm,
            "questions": len(graded),
            "right": estimate_to_json(wilson(int(right[arm].sum()), len(graded))),
            "rpi": estimate_to_json(rpi(right[LOCAL.name], right[arm], right[CLOUD.name])),
            "bill": estimate_to_json(bill_ratio(bills[arm], bills[CLOUD.name], num_resamples=NUM_RESAMPLES)),
        }
        for arm in arms
    ]
