"""How the report of ``hybrid bench auto`` looks on a terminal; ``hybrid.bench.experiments`` decides what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from hybrid.cli.text_tables import SETTINGS, agreement_line, aligned_table, estimate

# The widest table has an interval under every tariff.
WIDTH = 200
# Where the dials stand, one under another; the other rules show what their dials reach.
SHOWN_DIALS = ("auto", "auto, one worth", "auto, critic", "auto, critic, one worth")


def print_auto_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    terminal = Console(highlight=False)
    console = Console(highlight=False, width=max(terminal.width, WIDTH))
    for section in report["sections"]:
        console.print(f"\n{section['section']}, {section['problems']} problems (95 % intervals over problems):")
        console.print(_arm_table(section["arms"]))
        for setting, rules in section["rules"].items():
            console.print(f"{section['section']}, {setting}: the dials of auto (default {report['default']:g}):")
            console.print(_dial_table(rules))
            console.print(f"{section['section']}, {setting}: the bill at a wanted RPI, its dials mixed by a coin:")
            console.print(_wanted_table(rules, section["oracle"][setting]))
            if section["compared"][setting]:
                console.print(f"{section['section']}, {setting}: less the bill of a control, and of the gap so closed:")
                console.print(_compared_table(section["compared"][setting]))
        console.print("Which drafts are turned down:", _verdict_table(section["verdicts"]))
    console.print("\nBy family, over all seeds:", _family_table(report["families"]))
    planned = report["planned_again"]
    console.print(f"{planned['same']} of {planned['answers']} planned answers that were written again are the same.")
    console.print(agreement_line(report["against_the_client"]))


def _arm_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("bill, of the cloud's alone", "right", "RPI", *SETTINGS, "cloud tokens", "requests")
    for row in rows:
        shown.add_row(
            row["arm"],
            str(row["right"]),
            estimate(row["rpi"]),
            *(estimate(row["bill"][name]) for name in SETTINGS),
            f"{row['cloud_tokens']:.0%}",
            f"{row['requests']:.2f}",
        )
    return shown


def _dial_table(rules: Sequence[dict[str, Any]]) -> Table:
    actions = ("keep", "check", "write", "write on")
    shown = aligned_table("rule", "dial", "RPI", "bill", "over the presets'", "cloud tokens", *actions)
    for rule in rules:
        if rule["rule"] not in SHOWN_DIALS and len(rule["dials"]) > 1:
            continue
        for dial in rule["dials"]:
            shown.add_row(
                rule["rule"],
                f"{dial['dial']:g}",
                estimate(dial["rpi"]),
                estimate(dial["bill"]),
                estimate(dial["over_presets"]),
                f"{dial['cloud_tokens']:.0%}",
                *(f"{dial['actions'].get(action, 0.0):.0%}" for action in actions),
            )
    return shown


def _wanted_table(rules: Sequence[dict[str, Any]], oracle: Mapping[str, Any]) -> Table:
    shown = aligned_table("bill at RPI", *oracle)
    for rule in rules:
        if len(rule["dials"]) > 1:
            shown.add_row(rule["rule"], *(estimate(each, 3) for each in rule["bill_at"].values()))
    shown.add_row("oracle of whole answers", *(estimate(each, 3) for each in oracle.values()))
    return shown


def _compared_table(rows: Sequence[dict[str, Any]]) -> Table:
    wanted = [name for name in rows[0] if name not in {"rule", "against"}]
    columns = [f"{what} at {at}" for at in wanted for what in ("difference", "closed")]
    shown = aligned_table("rule, against", *columns)
    for row in rows:
        cells = (row[at][what] for at in wanted for what in ("difference", "closed"))
        shown.add_row(f"{row['rule']}, {row['against']}", *(estimate(each, 3) for each in cells))
    return shown


def _verdict_table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = aligned_table("score", "AUROC", "ECE", "told", "turned down")
    for row in rows:
        numbers = (row[name] for name in ("auroc", "ece", "told", "turned_down"))
        shown.add_row(row["score"], *("-" if number is None else f"{number:.3f}" for number in numbers))
    return shown


def _family_table(rows: Sequence[dict[str, Any]]) -> Table:
    arms = list(rows[0]["rpi"]) if rows else []
    shown = aligned_table("RPI", "problems", "gap", *arms)
    for row in rows:
        told = (row["rpi"][arm]["value"] for arm in arms)
        cells = ("-" if value is None else f"{value:.2f}" for value in told)
        shown.add_row(row["family"], str(row["problems"]), str(row["gap"]), *cells)
    return shown
