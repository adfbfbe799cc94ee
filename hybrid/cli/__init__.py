"""The command line: argv in, exit code out. A command is imported when more of it is asked for than its line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hybrid.ending_signals import exit_of

# Every command, in the order of the help, and the first paragraph of its own (``tests/cli/test_start.py`` holds both).
COMMANDS = {
    "ask": "Answer one question.",
    "chat": "Hold a conversation.",
    "batch": "Answer a file of questions, several lines at once; given again, go on where it ended.",
    "calibrate": "Buy labels for a pair of models once, fit a score, propose a threshold and a worth, "
    "and tell what the pair is.",
    "demo": "Show what the hybrids are worth on this machine.",
    "policies": "List the decoding policies: what each does, where it comes from, what it guarantees "
    "and what it needs.",
    "price": "Tell what a question would cost, and whether checking drafts pays here. Sends nothing.",
    "probe": "Find out what an endpoint can do, and which policies work there.",
    "replay": "Decode a recorded answer under another policy, without a model call.",
    "serve": "Serve OpenAI's API to clients on this machine, and a monitor page.",
    "bench": "Measure what the mechanisms cost on this machine, and what the rules do on problems and on real text.",
    "budget": "Caps on what is spent, and the ledger they are kept in.",
    "concepts": "Build, show and compare concepts: which tokens of a model's vocabulary are wordings of each other.",
    "experiment": "Try any policies on any pair and questions, and write a report: new, run, report.",
    "tasks": "List the families of problems and the questions to an assistant, or show some.",
    "models": "List the models that have names and those on this disk, build the real ones, measure any, "
    "check the bundled.",
    "trace": "Look at a recorded answer.",
}


class LazyCommand:
    """A command that is loaded once anything is wanted of it but its line in a list."""

    hidden = deprecated = False

    def __init__(self, name: str) -> None:
        """Load nothing."""
        self.name = name

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return its line, cut to ``limit`` characters as every command's is."""
        return TyperCommand(self.name, help=COMMANDS[self.name]).get_short_help_str(limit)

    def __getattr__(self, name: str) -> Any:
        """Return what the command itself has."""
        if name.startswith("__"):  # copying asks for them before there is a name
            raise AttributeError(name)
        return getattr(_loaded(self.name), name)


@cache
def _loaded(name: str) -> Any:
    alone = typer.Typer(rich_markup_mode=None)
    try:
        from hybrid.cli.command import GroupedCommand  # noqa: PLC0415  (it knows the settings)

        found = getattr(import_module(f"hybrid.cli.{'trace' if name == 'replay' else name}"), name)
    except KeyboardInterrupt as error:  # typer would make an exit code of its own of it
        raise exit_of(error) from None
    if isinstance(found, typer.Typer):
        alone.add_typer(found)
    else:
        alone.command(cls=GroupedCommand)(found)
    return typer.main.get_group(alone).commands[name]


class LazyGroup(TyperGroup):
    """The group of all commands, none of which is loaded with it."""

    def __init__(self, **attributes: Any) -> None:
        """Name them."""
        super().__init__(**attributes | {"commands": {name: LazyCommand(name) for name in COMMANDS}})


app = typer.Typer(
    name="hybrid",
    cls=LazyGroup,
    help="A small model writes on this machine; a large one in the cloud is asked only where it would disagree.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (no command needs it)

        typer.echo(f"hybrid {version('hybrid-llm')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the options that belong to no command."""
