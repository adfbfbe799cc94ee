"""The pace of a thread that works long in Python: it rests so often that others have the interpreter.

A thread that is interrupted gives the interpreter up after 5 ms, and a small question wants it a hundred times: beside
one long body it took 0.5 s instead of 15 ms. A thread that sleeps is in nobody's way. The law
(``tests/serve/test_pace.py``): while a long body is read, few functions are called between two rests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
# How the items of a long list are gone through.
Steps: TypeAlias = Callable[[Sequence[Any]], Iterable[Any]]
# Objects between two rests (0.3 to 2 ms), and how many times as long as its work a rest takes. Beside twelve callers
# with 25,000 turns each a small question takes 1.1 times its time (``tests/oracles/small_question.py``).
STEPS, REST = 100, 3


class Pace:
    """One thread's work and rests. Used in the thread that makes it."""

    def __init__(
        self, sleep: Callable[[float], object] = time.sleep, worked_s: Callable[[], float] = time.thread_time
    ) -> None:
        """Begin to work. ``worked_s``: seconds of work so far."""
        self._sleep, self._worked_s = sleep, worked_s
        self._steps, self._rested_at = 0, worked_s()

    def step(self, value: T) -> T:
        """Return a value; rest, where enough of them have passed since the last rest."""
        self._steps += 1
        if self._steps >= STEPS:
            self.rest()
        return value

    def through(self, values: Sequence[T]) -> Iterator[T]:
        """Yield values, a step each."""
        return map(self.step, values)

    def rest(self) -> None:
        """Rest for what was done since the last rest."""
        self._sleep(REST * (self._worked_s() - self._rested_at))
        self._steps, self._rested_at = 0, self._worked_s()
