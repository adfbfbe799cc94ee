"""``hybrid batch``: a file of questions, answered line by line, whatever interrupts it.

The law: a line that cannot be answered costs its own answer and no other's; what ends the batch (a local model or an
endpoint that cannot be used, a full disk, Ctrl-C) leaves every answer that was finished, and says where it goes on
(``tests/cli/test_batch.py``). That no line is answered twice is the output's law (``batch/output.py``), and what is
done at once that of ``batch/parallel.py``.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Unpack

import typer

from hybrid.batch.output import BatchOutput, outcomes_of
from hybrid.batch.questions import lines
from hybrid.cli.batch_work import BatchWork
from hybrid.cli.command import EXIT_DEGRADED, EXIT_PARTLY, Flags, exit_codes, takes_flags
from hybrid.cli.tally import LineTally
from hybrid.errors import CloudError, EngineError, UsageError, escape_controls
from hybrid.settings.setting_info import SettingScope

EPILOG = """
A line of IN is a question as it stands, or JSON: a text, or an object with a prompt or messages, perhaps an id, and
perhaps choices of its own (max_tokens, policy, seed: all that ask has a flag for but models, endpoint, price and cap).
Lines of OpenAI's batch files (custom_id, body) are read, too. Blank lines are passed over.

A line of OUT has the number of its line in IN, its id, and either what ask --json prints or an error in one sentence.
OUT grows by whole lines, each when it is finished: with --parallel N so many are answered at once, and a short answer
stands before a long one. Of several lines with one number the last counts. The same command, given again, keeps the
lines that are whole, the errors among them, and answers those that are missing. --sort then writes OUT anew, in one
step, in the order of IN with one line a question. IN may have grown, and flags may differ. Without --seed a
line's seed comes from its number and its text, so that it does not matter when it was answered. An OUT that was begun
with another IN is refused, and so is one that another process is writing. Over a named endpoint --cap counts for OUT:
what all runs for that path spent, killed ones included. When it is reached the local model answers the lines that are
left, and each says so (degraded). So does each line that the cloud was asked less for because a day's cap runs out
(degraded_kind paced). Where a cap, pacing or an outage decided any line, the exit code is 6, and the last line of what
is said names the command that repairs, with the flags that were given; with --allow-degraded the code is 0. In the
place of a --cap that was reached it has HIGHER: give a higher amount there.

An OUT of - is standard output: the same lines, of which no other run knows.

--again degraded, failed or degraded,failed answers those lines of OUT once more; those that failed may have been
corrected in IN. All other lines stay as they are, and an answer gives way only to a better one: never to an error, a
degraded one never to another such.

Examples:

  hybrid batch questions.jsonl answers.jsonl --price 1/0.1/4 --cap 0.50

  hybrid batch questions.jsonl answers.jsonl --parallel 4 --sort

  hybrid batch questions.jsonl answers.jsonl --again degraded --cap 1

  hybrid batch questions.jsonl answers.jsonl --policy doubt --json

  head -n 5 questions.jsonl | hybrid batch - answers.jsonl --offline

  hybrid batch questions.txt - | jq -r .text

Exit codes: 0 every line answered, 1 output lost, 2 usage, 3 local model unusable, 4 endpoint unusable, 5 finished, but
some lines hold an error, 6 finished without an error, but a cap, pacing or an outage decided some lines, 130
interrupted (143 terminated).
"""


@takes_flags(SettingScope.FLAG)
def batch(
    source: Annotated[Path, typer.Argument(help="Questions, one a line; - reads standard input.", metavar="IN")],
    out: Annotated[Path, typer.Argument(help="Where the answers go, one a line; - prints them.", metavar="OUT")],
    *,
    again: Annotated[
        str | None,
        typer.Option(help="Ask lines of OUT anew: degraded, failed or degraded,failed.", metavar="WHICH"),
    ] = None,
    allow_degraded: Annotated[
        bool, typer.Option("--allow-degraded", help="End with exit code 0 where 6 says that lines are degraded.")
    ] = False,
    sort: Annotated[
        bool, typer.Option("--sort", help="At the end write OUT anew in the order of IN, one line a question.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
    **flags: Unpack[Flags],
) -> None:
    """Answer a file of questions, several lines at once; given again, go on where it ended."""
    with exit_codes():
        tally = _batch(source, out, flags, again, is_sorted=sort, is_quiet=as_json)
        repair = tally.needs.command(source, out, flags) if tally.repairable else None
        if as_json:
            typer.echo(json.dumps(tally.to_json() | {"repair": repair}, ensure_ascii=False))
        else:
            corrected = tally.needs.correction(source, out, flags) if tally.failed else None
            last = tally.needs.sentence(source, out, repair, flags)
            for said in (*tally.summary(), *(each for each in (corrected, last) if each is not None)):
                typer.echo(f"hybrid: {escape_controls(said)}", err=True)
        if tally.failed:
            raise typer.Exit(EXIT_PARTLY)
        if tally.repairable and not allow_degraded:
            raise typer.Exit(EXIT_DEGRADED)


batch.__doc__ = f"{batch.__doc__}\n{EPILOG}"


def _batch(source: Path, out: Path, flags: Flags, again: str | None, *, is_sorted: bool, is_quiet: bool) -> LineTally:
    import hybrid  # noqa: PLC0415  (help and usage errors need no llama.cpp)

    asked = frozenset() if again is None else outcomes_of(again)
    spending = flags.copy()
    if str(out) != "-":  # what earlier runs for this output spent counts against --cap, whatever became of them
        spending["spender"] = f"batch {os.path.realpath(out)}"
    elif asked or is_sorted or is_quiet:
        named = "--again asks lines of an output anew" if asked else "--sort writes an output anew"
        msg = f"OUT is standard output, and {'--json prints its summary there' if is_quiet else named}: give a file"
        raise UsageError(msg)
    opening = hybrid.open(**spending)
    with _opened(source) as file:
        if asked and not out.exists():
            msg = f"{out} is not there: --again asks lines of an output anew"
            raise UsageError(msg)
        with closing(BatchOutput(out)) as output:
            work = BatchWork(opening, output, None if is_quiet else _count(file), asked)
            with _goes_on(output):
                work.answer(lines(file), is_told=not is_quiet)
            if is_sorted:
                output.sort()
            return work.tally


def _count(file: BinaryIO) -> int | None:
    """Count the lines of an input that can be read again, from its start; None for any other."""
    if not _is_kept(file) or file.tell() != 0:
        return None
    num_lines = sum(1 for _ in lines(file))
    file.seek(0)
    return num_lines


def _is_kept(file: BinaryIO) -> bool:
    """Whether an input is a file on a disk: no pipe, no terminal."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except OSError:  # it is no file of the system's
        return False


@contextmanager
def _opened(source: Path) -> Iterator[BinaryIO]:
    """Open the input. Raises UsageError where it cannot be."""
    if str(source) == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        yield _standard_input()
        return
    try:
        file = source.open("rb")
    except OSError as error:
        msg = f"{source}: {error.strerror}"
        raise UsageError(msg) from None
    try:
        yield file
    finally:
        if _is_kept(file):
            file.close()  # of a pipe a thread may still wait for the next line, and closing would wait for it


def _standard_input() -> BinaryIO:
    """Return standard input, to be read in a thread: Python waits at its end for whoever reads its own object."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except OSError:  # it is no file of the system's
        return sys.stdin.buffer


@contextmanager
def _goes_on(output: BatchOutput) -> Iterator[None]:
    """Say, where the batch ends before its last line, what is kept and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, OSError, EngineError, CloudError):
        num = len(output.entries)
        told = f"{num} line{' is' if num == 1 else 's are'} answered" if num else "nothing is answered yet"
        way = "goes on from there"
        if str(output.path) == "-":
            way = "begins anew, and with a file as OUT it would go on"
        typer.echo(f"hybrid: {told}; the same command {way}", err=True)
        raise


__all__ = ["batch"]
