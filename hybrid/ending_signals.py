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
