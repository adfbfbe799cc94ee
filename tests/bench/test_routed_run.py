"""What a record foretells of a planner is what the client does: on the bundled pair, as if its loss were nats."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import product

import pytest
from arithmetic import tolerance

from hybrid.assemble import BUNDLED_CLOUD, BUNDLED_LOCAL
from hybrid.defer import Calibration, CalibrationQuestion, UninformedScore
from hybrid.lab.arms import Arm, draw_balanced
from hybrid.lab.experiments.auto_trial import RecordingPlanner
from hybrid.lab.experiments.frame import SETTINGS
from hybrid.lab.experiments.routed import RoutedTable
from hybrid.lab.experiments.trials import routed_grid, signals_to_json, spent_record
from hybrid.lab.experiments.world import open_world
from hybrid.policy.plan import Worth
from hybrid.types import Sampling


@dataclass(frozen=True)
class AskedProblem:
    text: str
    kind: str = "problem"
    max_tokens: int = 40
    graded: bool = False


QUESTIONS = tuple(AskedProblem(problem.question) for problem in draw_balanced(14, "test", 3)[:3])
SPANS, SHARE = 3, 0.8
CALIBRATION = Calibration(
    "local",
    "cloud",
    "excess:0.5",
    "nats",
    1.4,
    UninformedScore("excess:0.5"),
    tuple(CalibrationQuestion(30, 40, 40, 0.9, True, e, e, 0, round(40 * SHARE)) for e in (0.02, 0.05, 0.1, 0.4)),
)


async def same(report, _sampling, _answered):
    """Nothing is compared here."""


def test_what_is_foretold_of_each_question_is_its_text_and_its_requests() -> None:
    """Kept whole, written whole, checked in short spans: under every tariff and at every dial."""

    async def run() -> set[str]:
        grid = routed_grid("s", "bundled", QUESTIONS, spans=SPANS)  # type: ignore[arg-type]
        seen: set[str] = set()
        async with open_world(BUNDLED_LOCAL, BUNDLED_CLOUD) as world:
            records = [await grid.answer(world, number, 0, same) for number in range(len(QUESTIONS))]
            tables = [RoutedTable(records, CALIBRATION, setting) for setting in (SETTINGS[0], SETTINGS[-1])]
            for table, amount in product(tables, (4.0, 40.0, 400.0)):
                for question, record, action in zip(QUESTIONS, records, table.actions(amount), strict=True):
                    seen.add(action)
                    if action == "other":
                        continue
                    tokens = record["prompt_tokens"]
                    planner = replace(table.planner, worth=Worth(amount=amount), prompt_tokens=tokens)
                    heard = RecordingPlanner.over(planner)
                    arm = Arm("auto", "auto", planner=heard)
                    answered = await world.answer(question.text, arm, Sampling(seed=0), question.max_tokens)
                    told = record["arms"][{"keep": "local", "write": "cloud", "spans": "spans"}[action]]
                    assert (answered.ids, spent_record(answered)["requests"]) == (told["ids"], told["requests"])
                    first = signals_to_json(heard.heard[0].args[0])
                    assert first["tokens"] == record["signals"]["tokens"], "with the token that ended the draft"
                    for name in ("entropy", "top", "second", "logprob"):  # decoded again: up to the engine's noise
                        assert first[name] == pytest.approx(record["signals"][name], abs=tolerance().nats)
        return seen

    assert {"keep", "write", "spans"} <= asyncio.run(run())
