"""How reports of ``hybrid bench`` are asked for and look on a terminal; ``hybrid.lab.experiments`` decides the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid.report import Document, Text, terminal


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
