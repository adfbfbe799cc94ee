"""How a command ends: one sentence on standard error and an exit code for everything that can go wrong.

The law: no command ends in a traceback, whatever the user, the models, the endpoint, the disk or whoever reads us did
(``tests/cli/test_exits.py``, and with real processes in ``tests/end_to_end``). What a command does is not known here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from hybrid.errors import CloudError, EngineError, HybridError, UsageError, escape_controls
from hybrid.report import Document, alarms, terminal
from hybrid.report.html import page
from hybrid.store.files import OWNERS, beside_of, replace_content

# What is being done, on standard error: a line that changes on a terminal, a line each or nothing elsewhere.


@contextmanager
def progress(at_first: str, *, only_on_a_terminal: bool = False) -> Iterator[Callable[[str], None]]:
    """Give a function to say it with; a terminal shows ``at_first`` until it is called."""
    console = _standard_error()
    if not console.is_terminal and only_on_a_terminal:
        yield lambda _: None
    elif not console.is_terminal:
        yield lambda said: typer.echo(f"hybrid: {said}", err=True)
    else:
        with console.status(at_first) as status:
            yield status.update


def is_shown_on_a_terminal() -> bool:
    """Whether a new line takes the last one's place."""
    return _standard_error().is_terminal


def _standard_error() -> Console:
    return Console(stderr=True, highlight=False)


# Files that are there whole or not at all, and files of one's own.
#
# The law: whether a file can be written is told before the work whose result it shall hold, and a failure while it is
# written leaves what stood there before. What hybrid makes holds prompts and answers, so that it is for its owner alone
# (mode 0600), whatever the umask; a file that is there keeps its mode (``tests/cli/test_whole_file.py``).


def check_writable(flag: str, path: Path) -> None:
    """Try to make a file beside ``path`` and leave nothing. Raises UsageError, naming the flag, where that fails."""
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            msg = f"{flag} {path}: not a file"
            raise UsageError(msg)
        if target.exists() and not os.access(target, os.W_OK):
            msg = f"{flag} {path}: write-protected"
            raise UsageError(msg)
        beside = beside_of(target)
        beside.touch(OWNERS, exist_ok=False)
        beside.unlink()
    except OSError as error:
        msg = f"{flag} {path}: {error.strerror}"
        raise UsageError(msg) from None
    except RuntimeError:  # links that lead to each other
        msg = f"{flag} {path}: a link that leads nowhere"
        raise UsageError(msg) from None


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text beside ``path`` and put it in its place in one step; links are followed, a file's mode is kept.

    Raises OSError, with nothing changed, where the text cannot be written.
    """
    replace_content(path.resolve(), text.encode(errors="replace"), keep_mode=True)


def print_report(
    title: str, document: Document, told: str | None, *, html: Path | None = None, svg: Path | None = None
) -> None:
    """Print a report, or ``told``, its JSON, with what nobody should overlook on standard error; write its pictures."""
    try:
        if told is None:
            terminal.show(document)
            return
        typer.echo(told)
        for alarm in alarms(document):
            typer.echo(f"hybrid: {escape_controls(alarm.text)}", err=True)
    finally:  # also where whoever read standard output has left
        if html:
            write_whole(html, page(title, document))
        if svg:
            write_whole(svg, terminal.picture(title, document))


EXIT_OUTPUT, EXIT_USAGE, EXIT_ENGINE, EXIT_CLOUD, EXIT_PARTLY, EXIT_DEGRADED, EXIT_INTERRUPTED = 1, 2, 3, 4, 5, 6, 130


@contextmanager
def exit_codes() -> Iterator[None]:
    """Run a command's body; turn what it raises on purpose, an interruption and a failing output into an exit."""
    if sys.stdout is None:  # closed by whoever started us; an answer is not paid for to be lost
        typer.echo("hybrid: standard output is closed", err=True)
        raise typer.Exit(EXIT_OUTPUT)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows another one
    try:
        yield
    except UsageError as error:
        _fail(EXIT_USAGE, error)
    except EngineError as error:
        _fail(EXIT_ENGINE, error)
    except CloudError as error:  # a refusal; or a failure where no local answer can stand in
        _fail(EXIT_CLOUD, error)
    except KeyboardInterrupt as error:  # with the signal's number, if it was another one than Ctrl-C's
        raise typer.Exit(128 + error.args[0] if error.args else EXIT_INTERRUPTED) from None
    except OSError as error:
        # Whoever read us has left, or the disk is full. What Python still holds for standard output goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"hybrid: {error.strerror}", err=True)
        raise typer.Exit(EXIT_OUTPUT) from None


def _fail(code: int, error: HybridError) -> NoReturn:
    typer.echo(f"hybrid: {error}", err=True)
    raise typer.Exit(code)
