"""How reports of ``hybrid bench`` are asked for and look on a terminal; ``hybrid.lab.experiments`` decides the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from hybrid.errors import UsageError

SETTINGS = ("U", "C", "S", "SU", "new")
PRICE = "1/0.1/4"
# The widest tables: numbers that were cut off would say nothing, and a narrow terminal wraps lines.
WIDTH, AUTO_WIDTH = 170, 200
# Where the dials of ``auto`` stand, one under another; the other rules show what their dials reach.
SHOWN_DIALS = ("auto", "auto, one worth", "auto, critic", "auto, critic, one worth")


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


def write_drawing(path: Path, drawing: str) -> None:
    """Write a picture where ``--plot`` says. Raises UsageError."""
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        msg = f"--plot {path}: {error.strerror}"
        raise UsageError(msg) from None


def wide_console(least: int = WIDTH) -> Console:
    """Return a terminal that is wide enough for a table."""
    return Console(highlight=False, width=max(Console(highlight=False).width, least))


Cell = Callable[[Any], str]
"""Writes one cell of a row."""


def aligned_table(*columns: str) -> Table:
    """Return an empty table: the first column names its rows, the others hold numbers."""
    table = Table(box=SIMPLE, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def table_of(rows: Iterable[Any], columns: Mapping[str, Cell], titles: Iterable[str] = ()) -> Table:
    """Return a table of rows, a cell of each by its column's title. ``titles``: others, in the columns' order."""
    table = aligned_table(*(titles or columns))
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def at(*path: Any, form: str = "") -> Cell:
    """Write what stands at a path; a dash where it is undefined."""

    def cell(row: Any) -> str:
        for key in path:
            row = row[key]
        return "-" if row is None else format(row, form)

    return cell


def interval(*path: Any, digits: int = 2) -> Cell:
    """Write the estimate at a path."""

    def cell(row: Any) -> str:
        for key in path:
            row = row[key]
        return estimate(row, digits)

    return cell


def estimate(told: dict[str, Any] | None, digits: int = 2) -> str:
    """Write a value with its interval; a dash where it is undefined."""
    if told is None or told["value"] is None:
        return "-"
    low, high = ("?" if told[end] is None else f"{told[end]:.{digits}f}" for end in ("low", "high"))
    return f"{told['value']:.{digits}f} ({low} to {high})"


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


# ---- hybrid bench text ---------------------------------------------------------------------------------------------


def print_text_report(report: dict[str, Any]) -> None:
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
            console.print(table_of(section["rules"], RULE_COLUMNS), table_of(section["rules"], BILL_COLUMNS), sep="\n")
        console.print(f"{title}: whole questions sent to the reference, at half its bill (random: 0.50 at 0.50):")
        console.print(table_of(section["routing"], ROUTING_COLUMNS))
        if section["right"]["questions"]:
            console.print(f"{title}: right answers of {section['right']['questions']} graded:")
            told = [{"rpi": None, "bill": 1.0 if name == "cloud" else 0.0, "name": name} | each
                    for name, each in section["right"].items() if isinstance(each, dict)]  # fmt: skip
            columns = {"": at("name"), "right": estimate, "RPI": interval("rpi"), "bill": at("bill", form=".2f")}
            console.print(table_of(told, columns))
    console.print(agreement_line(report["against_the_client"]))


RULE_COLUMNS = {
    "recovered share of the loss": at("rule"),
    "excess": interval("recovered", "excess per_token"),
    "NLL": interval("recovered", "nll per_token"),
    "excess per answer": interval("recovered", "excess per_answer"),
    "cloud": at("cloud_tokens", form=".0%"),
    "rep.": at("repetition", form=".2f"),
    "tokens": at("tokens", form=".0f"),
    "best": at("best_tokens", form=".2f"),
}
BILL_COLUMNS = {
    f"bill at {PRICE}": at("rule"),
    **{name: at("bill", f"{PRICE} {name}", "value", form=".2f") for name in SETTINGS},
    "requests": at("requests", form=".1f"),
    "advantage in U": interval("advantage", f"{PRICE} U", "excess"),
    "in C": interval("advantage", f"{PRICE} C", "excess"),
    "in new": interval("advantage", f"{PRICE} new", "excess"),
}
ROUTING_COLUMNS = {
    "by": at("rule"),
    "excess": interval("recovered", "excess per_token"),
    "NLL": interval("recovered", "nll per_token"),
    "advantage, U": interval("advantage", f"{PRICE} U", "excess"),
    "S": interval("advantage", f"{PRICE} S", "excess"),
    "bill at 0.5": at("bill_at", "excess", "0.5", form=".2f"),
    "0.8": at("bill_at", "excess", "0.8", form=".2f"),
    "0.95": at("bill_at", "excess", "0.95", form=".2f"),
}


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


# ---- hybrid bench auto ---------------------------------------------------------------------------------------------


def print_auto_report(report: dict[str, Any]) -> None:
    """Print every section's tables."""
    console = wide_console(AUTO_WIDTH)
    for section in report["sections"]:
        console.print(f"\n{section['section']}, {section['problems']} problems (95 % intervals over problems):")
        console.print(table_of(section["arms"], ARM_COLUMNS))
        for setting, rules in section["rules"].items():
            title, oracle = f"{section['section']}, {setting}", section["oracle"][setting]
            console.print(f"{title}: the dials of auto (default {report['default']:g}):")
            shown = [{"rule": rule["rule"]} | dial for rule in rules for dial in rule["dials"]
                     if rule["rule"] in SHOWN_DIALS or len(rule["dials"]) == 1]  # fmt: skip
            console.print(table_of(shown, DIAL_COLUMNS))
            console.print(f"{title}: the bill at a wanted RPI, its dials mixed by a coin:")
            swept = [rule for rule in rules if len(rule["dials"]) > 1]
            swept = [*swept, {"rule": "oracle of whole answers", "bill_at": oracle}]
            wanted = {at_rpi: interval("bill_at", at_rpi, digits=3) for at_rpi in oracle}
            console.print(table_of(swept, {"bill at RPI": at("rule"), **wanted}))
            if compared := section["compared"][setting]:
                console.print(f"{title}: less the bill of a control, and of the gap so closed:")
                names = {"rule, against": lambda row: f"{row['rule']}, {row['against']}"}
                columns = {f"{what} at {at_rpi}": interval(at_rpi, what, digits=3)
                           for at_rpi in oracle for what in ("difference", "closed")}  # fmt: skip
                console.print(table_of(compared, names | columns))
        console.print("Which drafts are turned down:", table_of(section["verdicts"], VERDICT_COLUMNS))
    arms = report["families"][0]["rpi"] if report["families"] else ()
    own = {"RPI": at("family"), "problems": at("problems"), "gap": at("gap")}
    families = own | {arm: at("rpi", arm, "value", form=".2f") for arm in arms}
    console.print("\nBy family, over all seeds:", table_of(report["families"], families))
    planned = report["planned_again"]
    console.print(f"{planned['same']} of {planned['answers']} planned answers that were written again are the same.")
    console.print(agreement_line(report["against_the_client"]))


ARM_COLUMNS = {
    "bill, of the cloud's alone": at("arm"),
    "right": at("right"),
    "RPI": interval("rpi"),
    **{name: interval("bill", name) for name in SETTINGS},
    "cloud tokens": at("cloud_tokens", form=".0%"),
    "requests": at("requests", form=".2f"),
}
DIAL_COLUMNS: dict[str, Cell] = {
    "rule": at("rule"),
    "dial": at("dial", form="g"),
    "RPI": interval("rpi"),
    "bill": interval("bill"),
    "over the presets'": interval("over_presets"),
    "cloud tokens": at("cloud_tokens", form=".0%"),
    **{action: (lambda row, action=action: f"{row['actions'].get(action, 0.0):.0%}")  # type: ignore[misc]
       for action in ("keep", "check", "write", "write on")},
}  # fmt: skip
VERDICT_COLUMNS = {
    "score": at("score"),
    "AUROC": at("auroc", form=".3f"),
    "ECE": at("ece", form=".3f"),
    "told": at("told", form=".3f"),
    "turned down": at("turned_down", form=".3f"),
}


def print_routed_report(report: dict[str, Any]) -> None:
    """Print every section's tables of ``--real``."""
    console = wide_console()
    for section in report["sections"]:
        console.print(
            f"\n{section['section']}: {section['questions']} questions, dials from {section['calibrated_on']} others "
            "(95 % intervals over questions; bills as multiples of the reference's):"
        )
        dials = [{"title": f"{each['tariff']}, {row['dial']}"} | row
                 for each in section["tariffs"] for row in each["dials"]]  # fmt: skip
        console.print(table_of(dials, ROUTED_COLUMNS))
        console.print("The bill at a recovered share, the dial swept over these questions, excess / NLL:")
        swept = [{"title": each["tariff"]} | each for each in section["tariffs"]]
        swept += [{"title": f"U, {each['rule']}"} | each for each in section["orders"]]
        console.print(table_of(swept, SWEPT_COLUMNS))
        if any(each["right"] for each in section["tariffs"]):
            first = section["tariffs"][0]
            told = {name: interval(key) for name, key in RIGHT_COLUMNS.items()}
            right = table_of(first["right"], {"dial": at("dial"), "questions": at("questions"), **told})
            console.print(f"Right answers on the graded ones, tariff {first['tariff']}:", right)
    console.print(agreement_line(report["against_the_client"]))


ROUTED_COLUMNS = {
    "tariff, dial": at("title"),
    "worth": at("worth", form=".2f"),
    "recovered, excess": interval("recovered", "excess per_token"),
    "recovered, NLL": interval("recovered", "nll per_token"),
    "bill": interval("bill"),
    "advantage, excess": interval("advantage", "excess"),
    "advantage, NLL": interval("advantage", "nll"),
    **{action: at("actions", action, form=".0%") for action in ("write", "spans", "other")},
}
SWEPT_COLUMNS = {
    "tariff": at("title"),
    **{f"at {share}": (lambda row, share=share:  # type: ignore[misc]
                       " / ".join(at("bill_at", loss, share, form=".2f")(row) for loss in ("excess", "nll")))
       for share in ("0.5", "0.8", "0.95")},
}  # fmt: skip
RIGHT_COLUMNS = {"local": "local", "cloud": "cloud", "so": "right", "RPI": "rpi", "bill": "bill"}


# ---- hybrid bench wordings -----------------------------------------------------------------------------------------


def print_wordings(report: dict[str, Any]) -> None:
    """Print both splits, and what concepts are worth at equal bills."""
    console = wide_console()
    pairs = report["pairs"]
    console.print(
        f"Pairs of words that are held for one: {pairs['found']}, true {pairs['true']}; precision "
        f"{estimate(pairs['precision'])}, recall {estimate(pairs['recall'])}."
    )
    compared = report["compared"]
    console.print(
        f"Along the large model's answers, {compared['tokens']} tokens: mean KL {estimate(compared['kl'])} nats, over "
        f"concepts {estimate(compared['concept_kl'])}; beyond 0.5 {estimate(compared['beyond'])}, of these wording "
        f"{estimate(compared['of_these_wording'])}."
    )
    for split in ("calibration", "test"):
        paid = {f"{what} {tariff}": interval(what.replace(" ", "_"), tariff)
                for tariff in ("U", "C") for what in ("bill", "over a coin")}  # fmt: skip
        last = {"hand-overs": at("handoffs"), "wording": interval("wording"), "kept": at("kept")}
        arms = [{"arm": name} | arm for name, arm in report[split].items()]
        console.print(table_of(arms, {split: at("arm"), "right": interval("right")} | paid | last))
    for each in report["concepts_over_kl"]:
        console.print(
            f"{each['tariff']}, within {each['budget']:g} of the large model's bill: {each['arm']} is right more often "
            f"than {each['other']} by {estimate(each)}."
        )
