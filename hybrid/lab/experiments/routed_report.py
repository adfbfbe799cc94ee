"""The report of ``hybrid bench auto --real`` as plain data: each section under the tariffs its records can tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.defer import Calibration
from hybrid.lab.experiments.routed_section import RoutedSection
from hybrid.lab.experiments.routed_table import RoutedTable
from hybrid.lab.experiments.suite import PAIRS, REFERENCE, SAMPLED_TOP_K, draw_questions
from hybrid.lab.experiments.tariffs import SETTINGS
from hybrid.lab.experiments.text_report import agreement, routing_rows
from hybrid.tasks.assistant import QuestionSplit

# What ``hybrid bench auto --real`` runs: open text of the real pairs, for a planner to decide about.

# A section's questions: as many as the calibrations have, half as many where answers are drawn or checks are run.
NUM_GREEDY, NUM_SAMPLED, NUM_CHECKED = 150, 100, 60
TEMPERATURE = 0.7
# A check's tokens where only new tokens are paid: the best ones for the share that was kept on calibration questions.
SPANS = {"q3": 3, "d2": 2}
GRADED_PAIR = "d2"


def routed_sections(num: int | None = None, split: QuestionSplit = "test", seed: int = 0) -> tuple[RoutedSection, ...]:
    """Return the sections: both pairs greedy, drawn, and with checks in short spans; the graded questions of one."""

    def section(name: str, pair: str, temperature: float, wanted: int, spans: int | None = None) -> RoutedSection:
        drawn = tuple(draw_questions(split, min(num or wanted, wanted), seed))
        top_k = SAMPLED_TOP_K if temperature else 0
        return RoutedSection(name, pair, temperature, drawn, spans, top_k)

    graded = tuple(draw_questions(split, num or 1000, seed, graded=True))
    return (
        *(section(f"{pair}, greedy", pair, 0.0, NUM_GREEDY) for pair in SPANS),
        *(section(f"{pair}, drawn at {TEMPERATURE:g}", pair, TEMPERATURE, NUM_SAMPLED) for pair in SPANS),
        *(section(f"{pair}, greedy, short checks", pair, 0.0, NUM_CHECKED, spans) for pair, spans in SPANS.items()),
        RoutedSection(f"{GRADED_PAIR}, graded questions", GRADED_PAIR, 0.0, graded),
    )


def pair_models() -> dict[str, tuple[str, str]]:
    """Return the names of the models of every pair: the local one, the reference."""
    return {pair: (PAIRS[pair], REFERENCE) for pair in SPANS}


def routed_report(
    sections: Sequence[RoutedSection],
    found: Mapping[tuple[int, int], dict[str, Any]],
    calibrations: Mapping[str, Calibration],
) -> dict[str, Any]:
    """Return the report, from the records of every question by section and number, and what is known of each pair."""
    told, every = [], []
    for number, section in enumerate(sections):
        records = [found[number, i] for i in range(len(section.questions))]
        every += records
        told.append(_section(section, records, calibrations[section.pair]))
    return {"sections": told, "against_the_client": agreement([each for record in every for each in record["checked"]])}


def _section(section: RoutedSection, records: Sequence[dict[str, Any]], calibration: Calibration) -> dict[str, Any]:
    """Return a section's tables: under the tariff of new tokens where short checks were run, else under the others."""
    short = section.spans is not None
    settings = [each for each in SETTINGS if (each.scoring == "new") is short]
    tables = {each.name: RoutedTable(records, calibration, each) for each in settings}
    return {
        "section": section.name,
        "pair": section.pair,
        "temperature": section.temperature,
        "questions": len(records),
        "calibrated_on": len(calibration.questions),
        "kept_share": calibration.kept_share,
        "tariffs": [
            {"tariff": name, "dials": table.rows(), "bill_at": table.swept(), "right": table.right_answers()}
            for name, table in tables.items()
        ],
        "orders": routing_rows(records),
    }
