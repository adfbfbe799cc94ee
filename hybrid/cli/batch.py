"""``hybrid batch``: a file of questions, answered line by line, whatever interrupts it.

The law: a line that cannot be answered costs its own answer and no other's; what ends the batch (a local model or an
endpoint that cannot be used, a full disk, Ctrl-C) leaves every answer that was finished, and says where it goes on
(``tests/cli/test_batch.py``). That no line is answered twice is the journal's law.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias, Unpack

import typer

from hybrid.cli.batch_output import BatchOutput
from hybrid.cli.exits import EXIT_PARTLY, exit_codes
from hybrid.cli.flags import Flags, takes_flags
from hybrid.cli.progress import progress
from hybrid.cli.questions import InputLine, id_of, lines, object_of, question_of
from hybrid.cli.tally import Tally
from hybrid.errors import CloudError, EngineError, MissingCapability, UsageError, escape_controls
from hybrid.run.answer import Answer
from hybrid.setting_info import SettingPlace

EPILOG = """
A line of IN is JSON: a text, or an object with a prompt or messages, perhaps an id, and perhaps choices of its own
(max_tokens, policy, seed: all that ask has a flag for but models, endpoint, price and cap). Lines of OpenAI's batch
files (custom_id, body) are read, too. Blank lines are passed over.

A line of OUT has the number of its line in IN, its id, and either what ask --json prints or an error in one sentence.
OUT has the order of IN and grows by whole lines. The same command, given again, keeps the lines that stand, the errors
among them, and goes on after them; only what was being answered when it ended is asked again. IN may have grown, and
flags may differ. Without --seed a line's seed comes from its number and its text, so that it does not matter when it
was answered. An OUT that was begun with another IN is refused, and so is one that another process is writing. --cap
counts for OUT: what all runs for that path spent, killed ones included. When it is reached the local model answers the
lines that are left, and each says so (degraded).

Examples:

  hybrid batch questions.jsonl answers.jsonl --price 1/0.1/4 --cap 0.50

  hybrid batch questions.jsonl answers.jsonl --policy doubt --json

  head -n 5 questions.jsonl | hybrid batch - answers.jsonl --offline

Exit codes: 0 every line answered, 1 output lost, 2 usage, 3 local model unusable, 4 endpoint unusable, 5 finished, but
some lines hold an error, 130 interrupted (143 terminated).
"""

# Choices by which a line can need something that the endpoint lacks and other lines do not need.
DECODING = frozenset(("policy", "gate", "judge"))
GenerateAnswer: TypeAlias = Callable[..., Answer]


@takes_flags(SettingPlace.FLAG)
def batch(
    source: Annotated[Path, typer.Argument(help="Questions, one a line; - reads standard input.", metavar="IN")],
    out: Annotated[Path, typer.Argument(help="Where the answers go, one a line.", metavar="OUT")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Answer a file of questions, line by line; given again, go on where it ended."""
    with exit_codes():
        tally = _batch(source, out, flags)
        if as_json:
            typer.echo(json.dumps(tally.to_json(), ensure_ascii=False))
        else:
            for said in tally.summary():
                typer.echo(f"hybrid: {escape_controls(said)}", err=True)
        if tally.failed:
            raise typer.Exit(EXIT_PARTLY)


batch.__doc__ = f"{batch.__doc__}\n{EPILOG}"


def _batch(source: Path, out: Path, flags: Flags) -> Tally:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    # What earlier runs for this output spent counts against --cap, whatever became of them.
    flags["spender"] = f"batch {out.resolve()}"
    opening, tally = hybrid.open(**flags), Tally()
    with _opened(source) as (file, size), closing(BatchOutput(out)) as journal, _goes_on(journal):
        remaining = journal.remaining(lines(file), tally.keep)
        for first in remaining:  # where nothing is left, no model is loaded
            with progress("the local model is loaded", only_on_a_terminal=True) as tell, opening as client:
                for line in chain([first], remaining):
                    tally.add(journal.add(line, answered(line, client.generate, client.settings.seed)))
                    tell(tally.so_far() + (f", {100 * file.tell() / size:.0f} % of the input" if size else ""))
    return tally


def answered(line: InputLine, generate: GenerateAnswer, seed: int | None = None) -> dict[str, Any]:
    """Return what a line comes to: its id, and the answer or what is wrong with the line.

    ``seed``: that of every line that names none; None: the line's own, so that starting again draws the same.
    What is wrong with the models, the endpoint or the machine is raised: it is no line's fault.
    """
    found: dict[str, Any] = {"id": None}
    try:
        fields = object_of(line)
        found["id"] = id_of(fields)
        prompt, choices = question_of(fields)
        seeded = {"seed": line.seed if seed is None else seed} | choices
        return found | _generated(generate, prompt, seeded).to_json()
    except UsageError as error:
        return found | {"error": str(error)}


def _generated(generate: GenerateAnswer, prompt: object, choices: dict[str, Any]) -> Answer:
    try:
        return generate(prompt, **choices)
    except MissingCapability as error:
        if choices.keys() & DECODING:  # the line's own wish, not the command's
            raise UsageError(str(error)) from error
        raise


@contextmanager
def _opened(source: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open the input and say its length in bytes, 0 where it tells none. Raises UsageError where it cannot be."""
    if str(source) == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        yield sys.stdin.buffer, 0
        return
    try:
        file = source.open("rb")
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise UsageError(msg) from None
    with file:
        yield file, source.stat().st_size


@contextmanager
def _goes_on(journal: BatchOutput) -> Iterator[None]:
    """Say, where the batch ends before its last line, what is kept and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, OSError, EngineError, CloudError):
        kept = "nothing is answered yet" if journal.last is None else f"all up to line {journal.last} is answered"
        typer.echo(f"hybrid: {kept}; the same command goes on from there", err=True)
        raise


__all__ = ["answered", "batch"]
