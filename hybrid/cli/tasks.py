"""``hybrid tasks``: the families of problems, their levels, and drawn problems with worked answers."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybrid.cli.exits import exit_codes
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.tasks import Problem, TaskFamily

tasks = typer.Typer(
    name="tasks",
    help="List the generated families of problems, or show problems of one.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LIST_EPILOG = """
A family has two or three levels, each with its share of the test split. The smaller reference models are not given
every level; --json says which, a list for each model.

Examples:

  hybrid tasks list

  hybrid tasks list --json
"""
SHOW_EPILOG = """
No two problems shown are twins: other phrasings, names or orders of the same. The same seed shows the same problems.

Examples:

  hybrid tasks show gcd

  hybrid tasks show facts --level 3 --num 10

  hybrid tasks show command --split train --seed 1 --json

Exit codes: 0 done, 2 usage.
"""


class SplitName(StrEnum):
    """Which part of the problems."""

    train = "train"
    calibration = "calibration"
    test = "test"


@tasks.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the families and their levels."""
    from hybrid.tasks import FAMILIES  # noqa: PLC0415  (help and usage errors need no experiments)

    with exit_codes():
        if as_json:
            typer.echo(json.dumps({"families": [_family(family) for family in FAMILIES]}))
        else:
            Console(highlight=False).print(_table(FAMILIES))


list_.__doc__ = f"{list_.__doc__}\n{LIST_EPILOG}"


@tasks.command("show")
def show(
    family: Annotated[str, typer.Argument(help="Name of the family, as listed.", metavar="FAMILY")],
    level: Annotated[int | None, typer.Option(help="Only this level, from 1.", metavar="L", min=1)] = None,
    split: Annotated[SplitName, typer.Option(help="Of which split.")] = SplitName.test,
    num: Annotated[int, typer.Option(help="How many problems.", metavar="N", min=1, max=1000)] = 3,
    seed: Annotated[int, typer.Option(help="Which problems.", metavar="S", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show problems of a family with their worked answers."""
    with exit_codes():
        problems = _draw(family, level, split, num, seed)
        if as_json:
            typer.echo(json.dumps({"family": family, "problems": [asdict(problem) for problem in problems]}))
        else:
            typer.echo("\n\n".join(map(_describe, problems)))


show.__doc__ = f"{show.__doc__}\n{SHOW_EPILOG}"


def _draw(name: str, level: int | None, split: SplitName, num: int, seed: int) -> list[Problem]:
    from hybrid.tasks import BY_NAME, distinct  # noqa: PLC0415

    if name not in BY_NAME:
        msg = f"no family {name}: {', '.join(BY_NAME)}"
        raise UsageError(msg)
    family = BY_NAME[name]
    if level is not None and level not in family.numbers:
        msg = f"{name} has the levels 1 to {len(family.levels)}, not {level}"
        raise UsageError(msg)
    try:
        return distinct(family, split.value, num, seed, level)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _family(family: TaskFamily) -> dict[str, Any]:
    from hybrid.tasks.mix import MIXES, levels_given  # noqa: PLC0415

    return {
        "name": family.name,
        "group": family.group,
        "wordings": family.wordings,
        "levels": [{"level": number, **asdict(family.levels[number - 1])} for number in family.numbers],
        "given": {model: list(levels_given(model, family)) for model in MIXES},
    }


def _table(families: tuple[TaskFamily, ...]) -> Table:
    table = Table(header_style="bold", box=SIMPLE, pad_edge=False)
    for column in ("family", "group", "level", "share", "what it holds"):
        table.add_column(column, justify="right" if column in {"level", "share"} else "left")
    for family in families:
        for number in family.numbers:
            first = (family.name, family.group) if number == 1 else ("", "")
            level = family.levels[number - 1]
            table.add_row(*first, str(number), f"{level.share:.0%}", Text(level.holds))
    return table


def _describe(problem: Problem) -> str:
    return f"level {problem.level}: {problem.question}\n  {problem.worked}\n  final: {problem.final}"
