"""Lines that are answered in any order and written in theirs: a reorder buffer, without files, tasks or clocks.

The law: whatever order lines are finished in, they come out in the order in which they were begun, each once and as
soon as every earlier one is finished; so many are open at most, from the first that is not out to the last that was
begun, however long the first takes (``tests/cli/test_batch_order.py`` goes through all orders).
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Generic, TypeVar

Finished = TypeVar("Finished")


class ReorderBuffer(Generic[Finished]):
    """Numbers of lines, ascending, that were begun and are not out yet; what finished ones came to waits here."""

    def __init__(self, most_open: int) -> None:
        """Hold at most so many open lines: ``is_full`` says when no other may be begun."""
        self._most_open = most_open
        self._open: deque[int] = deque()
        self._finished: dict[int, Finished] = {}
        self._last = 0

    @property
    def is_full(self) -> bool:
        """Whether no further line may be begun before the first is out."""
        return len(self._open) >= self._most_open

    def begin(self, number: int) -> None:
        """Put a line behind all others. One that was put there before keeps its place."""
        if number > self._last:
            self._open.append(number)
            self._last = number

    def is_first(self, number: int) -> bool:
        """Whether all lines before an open one are out."""
        return self._open[0] == number

    def finish(self, number: int, result: Finished) -> None:
        """Keep what an open line came to. Raises ValueError for one that is not open, or is finished already."""
        if number in self._finished or number not in self._open:
            msg = f"line {number} is not being answered"
            raise ValueError(msg)
        self._finished[number] = result

    def ready(self) -> list[tuple[int, Finished]]:
        """Return the lines that may go out now, in their order; ``release`` takes them out."""
        finished = self._finished
        return [(number, finished[number]) for number in takewhile(finished.__contains__, self._open)]

    def finished(self) -> list[tuple[int, Finished]]:
        """Return all finished lines that are not out, in their order."""
        return sorted(self._finished.items(), key=lambda each: each[0])

    def release(self) -> None:
        """Take out the lines of ``ready``."""
        while self._open and self._open[0] in self._finished:
            del self._finished[self._open.popleft()]
