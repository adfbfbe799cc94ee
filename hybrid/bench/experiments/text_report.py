"""The whole report of ``hybrid bench text``: every section's tables, and how the world compares with the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.bench.experiments.driver_check import NEAR_TIE_NATS
from hybrid.bench.experiments.position_table import position_table
from hybrid.bench.experiments.routing import right_answers, routing_rows
from hybrid.bench.experiments.rule_table import rule_rows
from hybrid.bench.experiments.trial import TextSection


def text_report(sections: Sequence[TextSection], found: Mapping[tuple[int, int], dict[str, Any]]) -> dict[str, Any]:
    """Return the report as plain data, from the records of every question by section and number."""
    told, every = [], []
    for number, section in enumerate(sections):
        records = [found[number, i] for i in range(len(section.questions))]
        every += records
        told.append(_section(section, records))
    return {"sections": told, "against_the_client": agreement([each for record in every for each in record["checked"]])}


def _section(section: TextSection, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    arms = [arm.name for arm in section.arms]
    return {
        "section": section.name,
        "pair": section.pair,
        "temperature": section.temperature,
        "top_k": section.top_k,
        "questions": len(records),
        "positions": position_table(records) if section.positions and records else None,
        "rules": rule_rows(records, arms),
        "routing": routing_rows(records),
        "right": right_answers(records),
    }


def agreement(checked: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the answers that the client over the bundled server wrote again, and how they differ."""
    same = [each for each in checked if each["text"] and each["requests"] and each["bill"]]
    other_text = [each for each in checked if not each["text"]]
    near = [each for each in other_text if each["greedy"] and each["gap"] < NEAR_TIE_NATS]
    return {
        "answers": len(checked),
        "same": len(same),
        "other_requests": len(checked) - len(same) - len(other_text),
        "other_text": len(other_text),
        "other_text_greedy": sum(each["greedy"] for each in other_text),
        "other_text_greedy_at_a_near_tie": len(near),
        "differences": [each for each in checked if each not in same],
    }
