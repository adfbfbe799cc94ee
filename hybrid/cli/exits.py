"""How a command ends: one sentence on standard error and an exit code for everything that can go wrong.

The law: no command ends in a traceback, whatever the user, the models, the endpoint, the disk or whoever reads us did
(``tests/cli/test_exits.py``, and with real processes in ``tests/end_to_end``). What a command does is not known here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

import typer

from hybrid.errors import CloudError, EngineError, HybridError, UsageError

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
