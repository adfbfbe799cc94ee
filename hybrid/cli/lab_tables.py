"""How reports of ``hybrid bench`` are asked for and look on a terminal; ``hybrid.lab.experiments`` decides the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid.report import Block, Document, Text, terminal
from hybrid.report.tables import Cell, at, table_of, with_interval

SETTINGS = ("U", "C", "S", "SU", "new")
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


def show(report: dict[str, Any], document_of: Callable[[dict[str, Any]], Document], *, as_json: bool) -> None:
    """Print a report as one JSON object, or as its tables."""
    if as_json:
        typer.echo(json.dumps(report))
    else:
        terminal.show(document_of(report))


def agreement_line(told: dict[str, Any]) -> Text:
    """Say how many answers of the client over the bundled server are those of the world."""
    if not told["answers"]:
        return Text("No answer was written again by the client.")
    same, greedy = f"{told['same']} of {told['answers']}", told["other_text_greedy"]
    return Text(
        f"{same} answers that the client over the bundled server wrote again are the same, with their requests and "
        f"bills; {told['other_requests']} have other requests. {told['other_text']} have another text, {greedy} of "
        f"them greedy ({told['other_text_greedy_at_a_near_tie']} at a near tie); a draw turns round more easily."
    )


# ---- hybrid bench auto ---------------------------------------------------------------------------------------------


def auto_document(report: dict[str, Any]) -> Document:
    """Return every section's tables."""
    blocks: list[Block] = []
    for section in report["sections"]:
        title = f"{section['section']}, {section['problems']} problems (95 % intervals over problems):"
        blocks.append(table_of(title, section["arms"], ARM_COLUMNS))
        for setting, rules in section["rules"].items():
            title, oracle = f"{section['section']}, {setting}", section["oracle"][setting]
            shown = [{"rule": rule["rule"]} | dial for rule in rules for dial in rule["dials"]
                     if rule["rule"] in SHOWN_DIALS or len(rule["dials"]) == 1]  # fmt: skip
            dials = table_of(f"{title}: the dials of auto (default {report['default']:g}):", shown, DIAL_COLUMNS)
            swept = [rule for rule in rules if len(rule["dials"]) > 1]
            swept = [*swept, {"rule": "oracle of whole answers", "bill_at": oracle}]
            wanted = {"bill at RPI": at("rule")} | {rpi: with_interval("bill_at", rpi, digits=3) for rpi in oracle}
            blocks += [dials, table_of(f"{title}: the bill at a wanted RPI, its dials mixed by a coin:", swept, wanted)]
            if compared := section["compared"][setting]:
                columns: dict[str, Cell] = {"rule, against": lambda row: f"{row['rule']}, {row['against']}"}
                columns |= {f"{what} at {rpi}": with_interval(rpi, what, digits=3)
                            for rpi in oracle for what in ("difference", "closed")}  # fmt: skip
                what = f"{title}: less the bill of a control, and of the gap so closed:"
                blocks.append(table_of(what, compared, columns))
        blocks.append(table_of("Which drafts are turned down:", section["verdicts"], VERDICT_COLUMNS))
    arms = report["families"][0]["rpi"] if report["families"] else ()
    families = {"RPI": at("family"), "problems": at("problems"), "gap": at("gap")}
    families |= {arm: at("rpi", arm, "value", form=".2f") for arm in arms}
    planned = report["planned_again"]
    again = f"{planned['same']} of {planned['answers']} planned answers that were written again are the same."
    blocks += [table_of("By family, over all seeds:", report["families"], families), Text(again)]
    return [*blocks, agreement_line(report["against_the_client"])]


ARM_COLUMNS = {
    "bill, of the cloud's alone": at("arm"),
    "right": at("right"),
    "RPI": with_interval("rpi"),
    **{name: with_interval("bill", name) for name in SETTINGS},
    "cloud tokens": at("cloud_tokens", form=".0%"),
    "requests": at("requests", form=".2f"),
}
DIAL_COLUMNS: dict[str, Cell] = {
    "rule": at("rule"),
    "dial": at("dial", form="g"),
    "RPI": with_interval("rpi"),
    "bill": with_interval("bill"),
    "over the presets'": with_interval("over_presets"),
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
