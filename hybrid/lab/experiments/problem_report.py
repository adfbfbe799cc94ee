"""The whole report of ``hybrid bench auto`` as plain data, from the records of every problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.lab.arms import estimate_to_json
from hybrid.lab.experiments.auto_suite import AUTO
from hybrid.lab.experiments.auto_table import AutoTable, default_answers
from hybrid.lab.experiments.auto_trial import AutoSection
from hybrid.lab.experiments.problem_table import ArmAnswers, ProblemTable, preset_answers
from hybrid.lab.experiments.section import CLOUD, LOCAL
from hybrid.lab.experiments.text_report import agreement

# A family's RPI is told where so many right answers lie between the models, over all seeds.
LEAST_GAP = 30


def problem_report(
    sections: Sequence[AutoSection], found: Mapping[tuple[int, int], dict[str, Any]], default: float
) -> dict[str, Any]:
    """Return the report, from the records of every problem by section and number. ``default``: the dial of ``auto``."""
    records = [[found[number, i] for i in range(len(each.questions))] for number, each in enumerate(sections)]
    every = [record for section in records for record in section]
    again = [same for record in every for same in record["again"]]
    return {
        "default": default,
        "sections": [_section(section, own) for section, own in zip(sections, records, strict=True)],
        "families": family_rows(sections, records, default),
        "planned_again": {"answers": len(again), "same": sum(again)},
        "against_the_client": agreement([each for record in every for each in record["checked"]]),
    }


def _section(section: AutoSection, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table = AutoTable(section, records)
    return {
        "section": section.name,
        "problems": len(records),
        "arms": [table.problems.row(arm.name, preset_answers(records, arm.name)) for arm in section.arms],
        **table.to_json(),
    }


def family_rows(
    sections: Sequence[AutoSection], records: Sequence[Sequence[dict[str, Any]]], default: float
) -> list[dict[str, Any]]:
    """Return every family's RPI by arm, over all sections; a problem that two of them drew counts once.

    The arms are those that every section has, and ``auto`` at its default under each tariff.
    """
    distinct = {
        record["text"]: (section, record) for section, own in zip(sections, records, strict=True) for record in own
    }
    arms = [arm.name for arm in sections[0].arms if all(arm in section.arms for section in sections)]
    rows = []
    for family in dict.fromkeys(record["kind"] for _, record in distinct.values()):
        own = [(section, record) for section, record in distinct.values() if record["kind"] == family]
        told = [record for _, record in own]
        answers = {arm: preset_answers(told, arm) for arm in arms} | default_answers(own, AUTO, default)
        rows.append({"family": family} | _family_row(ProblemTable.of(told), answers))
    return rows


def _family_row(table: ProblemTable, answers: Mapping[str, ArmAnswers]) -> dict[str, Any]:
    """Return how many problems of a family lie between the models, and each arm's RPI where they are enough."""
    gap = int(np.sum(table.cloud.right) - np.sum(table.local.right))
    told = {name: estimate_to_json(table.rpi(each) if gap >= LEAST_GAP else None) for name, each in answers.items()}
    return {
        "problems": len(table.local.records),
        "gap": gap,
        "right": {name: int(each.right.sum()) for name, each in answers.items()},
        "rpi": {name: each for name, each in told.items() if name not in {LOCAL.name, CLOUD.name}},
    }
