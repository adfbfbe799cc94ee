"""``hybrid models``: the bundled reference models measured, their card, and whether the files are what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybrid.cli.exits import EXIT_ENGINE, exit_codes
from hybrid.cli.progress import progress
from hybrid.cli.tasks import SplitName
from hybrid.cli.whole_file import check_writable, write_whole
from hybrid.errors import UsageError

models = typer.Typer(
    name="models",
    help="Measure the bundled reference models, write their card, or check the files against it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

EVAL_EPILOG = """
The model answers alone and greedily; an answer is right if its final answer is, whatever its wording. Intervals are
Wilson's, 95 %. The overall share weighs families alike.

Examples:

  hybrid models eval small

  hybrid models eval large --split test --n 150 --json

  hybrid models eval my/model.gguf --n 20

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""
CARD_EPILOG = """
Every model of the folder answers the same problems of the test split; the smaller ones are compared with the large one
token by token. The card is written as card.json (for programs, and for hybrid models verify) and README.md beside the
models. It takes about ten minutes on one core.

Examples:

  hybrid models card

  hybrid models card --dir my/models --n 100

  hybrid models card --json > card.json

Exit codes: 0 done, 1 output lost, 2 usage, 3 model unusable, 130 interrupted (143 terminated).
"""
VERIFY_EPILOG = """
Examples:

  hybrid models verify

  hybrid models verify --dir my/models --json

Exit codes: 0 all files are what the card says, 1 output lost, 2 no card, 3 a file is missing or another one.
"""

Folder = Annotated[
    Path | None, typer.Option("--dir", help="Folder of small.gguf, mid.gguf, large.gguf, alien.gguf.", metavar="DIR")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@models.command("eval")
def eval_(
    model: Annotated[str, typer.Argument(help="small, mid, large, alien, or a GGUF file.", metavar="NAME")],
    split: Annotated[SplitName, typer.Option(help="Of which split.")] = SplitName.test,
    num: Annotated[int, typer.Option("--n", help="How many problems of each family.", metavar="N", min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Count what a model gets right alone, family by family."""
    with exit_codes():
        from hybrid.models import answering, evaluation  # noqa: PLC0415  (help needs no llama.cpp)

        path = _path(model)
        problems = evaluation.problems_of(split.value, num)
        with answering.open_model(path) as answerer, progress("the model is loaded") as report_progress:
            graded = evaluation.evaluate(answerer, problems, report_progress)
        found = evaluation.to_json(model, graded)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            Console(highlight=False).print(_scores(found))


eval_.__doc__ = f"{eval_.__doc__}\n{EVAL_EPILOG}"


@models.command("card")
def card(
    folder: Folder = None,
    num: Annotated[int, typer.Option("--n", help="How many problems of each family.", metavar="N", min=1)] = 150,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON and write no file.")] = False,
) -> None:
    """Measure the models of a folder and write their card there."""
    with exit_codes():
        from hybrid.models import card as room  # noqa: PLC0415
        from hybrid.models.card_page import page  # noqa: PLC0415

        where = folder or _bundled()
        if not as_json:
            for name in (room.CARD, room.PAGE):
                check_writable("--dir", where / name)
        with progress("the model is loaded") as report_progress:
            measured = room.measure_models(where, report_progress, num)
        if as_json:
            typer.echo(measured.model_dump_json())
            return
        write_whole(where / room.CARD, f"{measured.model_dump_json(indent=1)}\n")
        write_whole(where / room.PAGE, page(measured))
        typer.echo(f"{where / room.CARD}\n{where / room.PAGE}")


card.__doc__ = f"{card.__doc__}\n{CARD_EPILOG}"


@models.command("verify")
def verify(folder: Folder = None, as_json: AsJson = False) -> None:
    """Check that the files are, byte for byte, the ones of the card."""
    with exit_codes():
        from hybrid.models import card as room  # noqa: PLC0415

        where = folder or _bundled()
        found = room.differences(where, room.load(where))
        if as_json:
            typer.echo(json.dumps({"models": {name: {"ok": not said, "why": said} for name, said in found.items()}}))
        else:
            for name, said in found.items():
                typer.echo(f"{name}.gguf: {said or 'as the card says'}")
        if any(found.values()):
            raise typer.Exit(EXIT_ENGINE)


verify.__doc__ = f"{verify.__doc__}\n{VERIFY_EPILOG}"


def _bundled() -> Path:
    from hybrid.assemble import MODELS  # noqa: PLC0415

    return MODELS


def _path(model: str) -> Path:
    """Return the file of a bundled name, or the path that was given."""
    from hybrid.models.card import NAMES  # noqa: PLC0415

    if model in NAMES:
        return _bundled() / f"{model}.gguf"
    if model.endswith(".gguf") or "/" in model:
        return Path(model)
    msg = f"no model {model}: {', '.join(NAMES)}, or the path of a GGUF file"
    raise UsageError(msg)


def _scores(found: dict[str, Any]) -> Table:
    table = Table(header_style="bold", box=SIMPLE, pad_edge=False)
    table.add_column(Text(found["model"]))
    for column in ("right", "of", "share", "95 %"):
        table.add_column(column, justify="right")
    for name, said in found["families"].items():
        interval = f"{said['low']:.0%} to {said['high']:.0%}"
        table.add_row(name, str(said["correct"]), str(said["n"]), f"{said['correct'] / said['n']:.0%}", interval)
    table.add_row("all", "", "", f"{found['overall']:.1%}", "")
    return table
