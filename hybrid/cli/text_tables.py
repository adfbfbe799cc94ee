"""How reports of ``hybrid bench`` are asked for and look on a terminal; ``hybrid.lab.experiments`` decides the rest.

What several of its commands share comes first, the report of ``hybrid bench text`` after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

SETTINGS = ("U", "C", "S", "SU", "new")
PRICE = "1/0.1/4"
# The widest table: numbers that were cut off would say nothing, and a narrow terminal wraps lines.
WIDTH = 170
SHARES = ("excess per_token", "nll per_token", "excess per_answer")


class BenchSplit(StrEnum):
    """Which half of the questions or problems."""

    calibration = "calibration"
    test = "test"


Processes = Annotated[int, typer.Option(help="Processes, one thread each.", metavar="P", min=1, max=64)]
Out = Annotated[
    Path | None, typer.Option("--out", help="Keep what was found here (default: in your cache).", metavar="DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def out_folder(out: Path | None, name: str) -> Path:
    """Return where what was found is kept: ``--out``, or a folder of the user's cache."""
    from platformdirs import user_cache_path  # noqa: PLC0415  (help needs neither)

    from hybrid.store.files import home_folder  # noqa: PLC0415

    return out or home_folder(user_cache_path) / name


def show(report: dict[str, Any], print_tables: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Print a report as one JSON object, or as its tables."""
    if as_json:
        typer.echo(json.dumps(report))
    else:
        print_tables(report)


def wide_console(least: int = WIDTH) -> Console:
    """Return a terminal that is wide enough for a table."""
    return Console(highlight=False, width=max(Console(highlight=False).width, least))


def print_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    console = wide_console()
    compared = [section for section in report["sections"] if section["positions"]]
    if compared:
        console.print("\nThe two models along the reference's greedy text (95 % intervals over questions):")
        console.print(_position_table(compared), _interval_table(compared), sep="\n")
    for section in report["sections"]:
        title = f"\n{section['section']}, {section['questions']} questions"
        if len(section["rules"]) > 2:
            console.print(f"{title}: what each rule recovers, and its bill as a multiple of the reference's:")
            console.print(_rule_table(section["rules"]), _bill_table(section["rules"]), sep="\n")
        console.print(f"{title}: whole questions sent to the reference, at half its bill (random: 0.50 at 0.50):")
        console.print(_routing_table(section["routing"]))
        if section["right"]["questions"]:
            console.print(f"{title}: right answers of {section['right']['questions']} graded:", _right_table(section))
    console.print(agreement_line(report["against_the_client"]))


def aligned_table(*columns: str) -> Table:
    """Return an empty table: the first column names its rows, the others hold numbers."""
    table = Table(box=SIMPLE, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def estimate(told: dict[str, Any] | None, digits: int = 2) -> str:
    """Write a value with its interval; a dash where it is undefined."""
    if told is None or told["value"] is None:
        return "-"
    low, high = ("?" if told[end] is None else f"{told[end]:.{digits}f}" for end in ("low", "high"))
    return f"{told['value']:.{digits}f} ({low} to {high})"


def _position_table(sections: Sequence[dict[str, Any]]) -> Table:
    table = aligned_table("", *(f"{each['section']} ({each['positions']['positions']})" for each in sections))
    found = [each["positions"] for each in sections]
    table.add_row("greedy agreement", *(estimate(each["agreement"]) for each in found))
    table.add_row("KL mean, nats", *(estimate(each["kl_mean"]) for each in found))
    table.add_row("KL median", *(estimate(each["kl_median"]) for each in found))
    for limit in found[0]["kl_above"]:
        table.add_row(f"share of KL > {limit}", *(estimate(each["kl_above"][limit]) for each in found))
    table.add_row("AUROC of entropy for disagreement", *(estimate(each["entropy_auroc"]) for each in found))
    table.add_row("mass beyond the top 20, median", *(estimate(each["beyond_top_20"]["median"], 3) for each in found))
    table.add_row("mass beyond the top 20, p90", *(estimate(each["beyond_top_20"]["p90"], 3) for each in found))
    table.add_row("a sampled draft accepted", *(estimate(each["acceptance"]["sampled"]) for each in found))
    for offset in (0, 1, 3, 7):
        kept = (each["acceptance"]["span"][offset]["kept"] for each in found)
        table.add_row(f"greedy draft stands at token {offset + 1}", *("-" if k is None else f"{k:.2f}" for k in kept))
    for name in found[0]["certificates"]:
        told = (each["certificates"][name] for each in found)
        table.add_row(f"certificate {name}: median; proves", *(_certificate(each) for each in told))
    return table


def _certificate(told: dict[str, Any]) -> str:
    middle, proved = told["quantiles"].get("0.5"), told["certified_by_the_top_20"]
    return "-" if middle is None else f"{middle:.3f}; {proved:.2f}"


def _interval_table(sections: Sequence[dict[str, Any]]) -> Table:
    table = aligned_table(
        "KL interval", "width, median", "p90", "holds the value", "open at 0.5", "lower end right", "upper end"
    )
    for section in sections:
        for k, told in section["positions"]["intervals"].items():
            names = ("covered", "undecided_at_0.5", "lower_end_right_at_0.5", "upper_end_right_at_0.5")
            widths = (
                "inf" if told[name]["value"] is None else f"{told[name]['value']:.3f}"
                for name in ("width_median", "width_p90")
            )
            table.add_row(f"{section['section']}, k = {k}", *widths, *(f"{told[name]['value']:.3f}" for name in names))
    return table


def _rule_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = aligned_table(
        "recovered share of the loss", "excess", "NLL", "excess per answer", "cloud", "rep.", "tokens", "best"
    )
    for row in rows:
        table.add_row(
            row["rule"],
            *(estimate(row["recovered"][name]) for name in SHARES),
            f"{row['cloud_tokens']:.0%}",
            f"{row['repetition']:.2f}",
            f"{row['tokens']:.0f}",
            f"{row['best_tokens']:.2f}",
        )
    return table


def _bill_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = aligned_table(f"bill at {PRICE}", *SETTINGS, "requests", "advantage in U", "in C", "in new")
    for row in rows:
        bills = (row["bill"][f"{PRICE} {name}"]["value"] for name in SETTINGS)
        gains = (row["advantage"][f"{PRICE} {name}"]["excess"] for name in ("U", "C", "new"))
        table.add_row(
            row["rule"],
            *("-" if bill is None else f"{bill:.2f}" for bill in bills),
            f"{row['requests']:.1f}",
            *(estimate(gain) for gain in gains),
        )
    return table


def _routing_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = aligned_table("by", "excess", "NLL", "advantage, U", "S", "bill at 0.5", "0.8", "0.95")
    for row in rows:
        gains = (row["advantage"][f"{PRICE} {name}"]["excess"] for name in ("U", "S"))
        bills = row["bill_at"]["excess"].values()
        table.add_row(
            row["rule"],
            *(estimate(row["recovered"][name]) for name in SHARES[:2]),
            *(estimate(gain) for gain in gains),
            *("-" if bill is None else f"{bill:.2f}" for bill in bills),
        )
    return table


def _right_table(section: dict[str, Any]) -> Table:
    table = aligned_table("", "right", "RPI", "bill")
    for name, told in section["right"].items():
        if isinstance(told, dict):
            bill = told.get("bill", {"local": 0.0, "cloud": 1.0}.get(name, 0.0))
            table.add_row(name, estimate(told), estimate(told.get("rpi")), f"{bill:.2f}")
    return table


def agreement_line(told: dict[str, Any]) -> str:
    """Say how many answers of the client over the bundled server are those of the world."""
    if not told["answers"]:
        return "No answer was written again by the client."
    same, greedy = f"{told['same']} of {told['answers']}", told["other_text_greedy"]
    return (
        f"{same} answers that the client over the bundled server wrote again are the same, with their requests and "
        f"bills; {told['other_requests']} have other requests. {told['other_text']} have another text, {greedy} of "
        f"them greedy ({told['other_text_greedy_at_a_near_tie']} at a near tie); a draw turns round more easily."
    )
