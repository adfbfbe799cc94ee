"""What is being done, on standard error: a line that changes on a terminal, a line each elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console


@contextmanager
def progress(at_first: str) -> Iterator[Callable[[str], None]]:
    """Give a function to say it with; a terminal shows ``at_first`` until it is called."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda said: typer.echo(f"hybrid: {said}", err=True)
        return
    with console.status(at_first) as status:
        yield status.update
