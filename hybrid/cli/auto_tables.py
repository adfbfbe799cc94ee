"""How the report of ``hybrid bench auto`` looks on a terminal; ``hybrid.bench.experiments`` decides what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hybrid.cli.text_tables import SETTINGS, agreement_line, aligned_table, estimate

# The widest table has an interval under every tariff.
WIDTH = 200


def print_auto_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    terminal = Console(highlight=False)
    console = Console(highlight=False, width=max(terminal.width, WIDTH))
    for section in report["sections"]:
        console.print(f"\n{section['section']}, {section['problems']} problems (95 % intervals over problems):")
        console.print(_arm_table(section["arms"]))
    console.print("\nBy family, over all seeds:", _family_table(report["families"]))
    console.print(agreement_line(report["against_the_client"]))


def _arm_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("bill, of the cloud's alone", "right", "RPI", *SETTINGS, "cloud tokens", "requests")
    for row in rows:
        bills = (estimate(row["bill"][name]) for name in SETTINGS)
        shown.add_row(
            row["arm"],
            str(row["right"]),
            estimate(row["rpi"]),
            *bills,
            f"{row['cloud_tokens']:.0%}",
            f"{row['requests']:.2f}",
        )
    return shown


def _family_table(rows: Sequence[dict[str, Any]]) -> Table:
    arms = list(rows[0]["rpi"]) if rows else []
    shown = aligned_table("RPI", "problems", "gap", *arms)
    for row in rows:
        told = (row["rpi"][arm]["value"] for arm in arms)
        cells = ("-" if value is None else f"{value:.2f}" for value in told)
        shown.add_row(row["family"], str(row["problems"]), str(row["gap"]), *cells)
    return shown
