"""The whole report of ``hybrid bench auto`` as plain data, from the records of every problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.bench.comparison import estimate_to_json
from hybrid.bench.experiments.problem_table import ArmAnswers, ProblemTable, preset_answers
from hybrid.bench.experiments.problem_trial import ProblemSection
from hybrid.bench.experiments.section import CLOUD, LOCAL
from hybrid.bench.experiments.text_report import agreement

# A family's RPI is told where so many right answers lie between the models, over all seeds.
LEAST_GAP = 30


def problem_report(
    sections: Sequence[ProblemSection], found: Mapping[tuple[int, int], dict[str, Any]]
) -> dict[str, Any]:
    """Return the report, from the records of every problem by section and number."""
    records = [[found[number, i] for i in range(len(each.questions))] for number, each in enumerate(sections)]
    every = [record for section in records for record in section]
    return {
        "sections": [_section(section, own) for section, own in zip(sections, records, strict=True)],
        "families": family_rows(every),
        "against_the_client": agreement([each for record in every for each in record["checked"]]),
    }


def _section(section: ProblemSection, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table = ProblemTable.of(records)
    return {
        "section": section.name,
        "problems": len(records),
        "arms": [table.row(arm.name, preset_answers(records, arm.name)) for arm in section.arms],
    }


def family_rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every family's right answers and RPI by arm; a problem that two seeds drew counts once."""
    distinct = list({record["text"]: record for record in records}.values())
    arms = list(distinct[0]["arms"]) if distinct else []
    rows = []
    for family in dict.fromkeys(record["kind"] for record in distinct):
        own = [record for record in distinct if record["kind"] == family]
        table = ProblemTable.of(own)
        rows.append({"family": family} | family_row(table, {arm: preset_answers(own, arm) for arm in arms}))
    return rows


def family_row(table: ProblemTable, answers: Mapping[str, ArmAnswers]) -> dict[str, Any]:
    """Return how many problems of a family lie between the models, and each arm's RPI where they are enough."""
    right = {name: int(each.right.sum()) for name, each in answers.items()}
    gap = int(np.sum(table.cloud.right) - np.sum(table.local.right))
    told = {name: estimate_to_json(table.rpi(each) if gap >= LEAST_GAP else None) for name, each in answers.items()}
    return {
        "problems": len(table.local.records),
        "gap": gap,
        "right": right,
        "rpi": {name: each for name, each in told.items() if name not in {LOCAL.name, CLOUD.name}},
    }
