"""The command line: argv in, exit code out."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from hybrid.cli.ask import ask
from hybrid.cli.batch import batch
from hybrid.cli.bench import bench
from hybrid.cli.budget import budget
from hybrid.cli.calibrate import calibrate
from hybrid.cli.chat import chat
from hybrid.cli.command import GroupedCommand
from hybrid.cli.concepts import concepts
from hybrid.cli.demo import demo
from hybrid.cli.experiment import experiment
from hybrid.cli.models import models
from hybrid.cli.policies import policies
from hybrid.cli.price import price
from hybrid.cli.probe import probe
from hybrid.cli.serve import serve
from hybrid.cli.tasks import tasks
from hybrid.cli.trace import replay, trace

app = typer.Typer(
    name="hybrid",
    help="A small model writes on this machine; a large one in the cloud is asked only where it would disagree.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(cls=GroupedCommand)(ask)
app.command(cls=GroupedCommand)(chat)
app.command(cls=GroupedCommand)(batch)
app.command(cls=GroupedCommand)(calibrate)
app.command()(demo)
app.command()(policies)
app.command(cls=GroupedCommand)(price)
app.command(cls=GroupedCommand)(probe)
app.command(cls=GroupedCommand)(replay)
app.command(cls=GroupedCommand)(serve)
app.add_typer(bench)
app.add_typer(budget)
app.add_typer(concepts)
app.add_typer(experiment)
app.add_typer(tasks)
app.add_typer(models)
app.add_typer(trace)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hybrid {version('hybrid-llm')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the options that belong to no command."""
