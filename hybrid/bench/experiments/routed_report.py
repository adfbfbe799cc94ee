"""The report of ``hybrid bench auto --real`` as plain data: each section under the tariffs its records can tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.bench.experiments.routed_section import RoutedSection
from hybrid.bench.experiments.routed_table import RoutedTable
from hybrid.bench.experiments.routing import routing_rows
from hybrid.bench.experiments.tariffs import SETTINGS
from hybrid.bench.experiments.text_report import agreement
from hybrid.defer import Calibration


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
