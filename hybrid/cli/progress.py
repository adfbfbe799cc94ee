"""What is being done, on standard error: a line that changes on a terminal, a line each or nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console


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
