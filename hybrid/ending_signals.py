"""The signals that end a command as Ctrl-C does: a service that is stopped, a window that is closed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

# SIGBREAK is Windows' own: Ctrl-Break, and what a supervisor there can send (CTRL_BREAK_EVENT). It has no SIGHUP, and
# whoever sends SIGTERM ends a process at once.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


def ending_signals() -> list[signal.Signals]:
    """Return those that this system has."""
    return [signal.Signals[name] for name in NAMES if name in signal.Signals.__members__]


def exit_of(interruption: KeyboardInterrupt) -> SystemExit:
    """Return the end of a command that a signal has interrupted: 128 and the signal's number, SIGINT's if none is said.

    An interruption that has left code made of text, as dataclasses make theirs, would have Python end by SIGINT,
    whatever the exit code: it remembers that until other such code has run (CPython, ``run_eval_code_obj``).
    """
    exec("")  # noqa: S102  (it runs nothing)
    return SystemExit(128 + (interruption.args[0] if interruption.args else signal.SIGINT))


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have a function called for some signals; afterwards those who handled them before do so again.

    Not by the event loop: Windows' loop handles none.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
