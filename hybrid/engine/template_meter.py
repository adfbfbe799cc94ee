"""What a chat template may hold and how much it may do: the values it knows, their sizes, and a bound on its work.

A unit of work is what looking at one character costs, and ``UNITS`` of them are a step. The laws
(``tests/engine/test_template_bounds.py``): every value is text, a finite number of 64 bits, None, or a list, tuple, set
or mapping of such; none is longer than ``MOST_TEXT`` when it is written out; all that a rendering makes and looks at is
paid for, so that its time and its memory are bounded by ``MOST_STEPS`` and by a multiple of what it was given.
What each operation costs is not known here (``template_functions.py``, ``template_syntax.py``).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2.runtime import Undefined

# Some published templates look back over all turns at each turn: this is enough for 600 of them, in a second or two.
MOST_STEPS = 400_000
UNITS = 200
# Units for each value and each byte that is given: a choice, and not measured on published templates.
UNITS_A_PART, UNITS_A_BYTE = 60 * UNITS, 24
# Characters of one text that a template makes, and of what it writes: a context of a million tokens holds as many.
MOST_TEXT = 1 << 22
# A list within a list within a list: a schema of a tool has a dozen levels.
MOST_DEPTH = 64
# Of processor time, for the steps that every rendering has. Of 800 hostile programs the slowest took 3.5 s.
DEADLINE_S = 5.0
_LOOK = 2_000_000  # units between two looks at the clock
# Units for a value in a list: it is visited in Python.
VISIT = 80
_BITS = 64
# A number, None or a truth value when it is written, and what stands between two values of a list.
_SHORT, _BETWEEN = 24, 4


class TooMuchWork(Exception):
    """The template works for too long, or makes too much, or what it may not make."""


class Meter:
    """Counts one rendering's work. ``spent``: units; a value that was measured is kept, so that it is measured once."""

    def __init__(self) -> None:
        """Begin with nothing given."""
        self.spent = 0
        self._known: dict[int, tuple[Any, int, int]] = {}
        self.begin(())

    def begin(self, given: Iterable[Any]) -> None:
        """Count from nothing. ``given``: the values that the work may be in proportion to."""
        self._known.clear()
        least = MOST_STEPS * UNITS
        self.spent, self._most = 0, least + sum(map(_units_for, given))
        self._began, self._deadline_s = time.thread_time(), DEADLINE_S * self._most / least
        self._look_at = min(_LOOK, self._most)

    def end(self) -> None:
        """Keep nothing of what was measured."""
        self._known.clear()

    @property
    def share(self) -> float:
        """Which part of the work that is allowed was done."""
        return self.spent / self._most

    def spend(self, units: int) -> None:
        """Count work. Raises TooMuchWork."""
        self.spent += units
        if self.spent > self._look_at:
            self._look()

    def _look(self) -> None:
        if self.spent > self._most:
            msg = f"it is not done after {self._most // UNITS:,} steps"
            raise TooMuchWork(msg)
        if time.thread_time() - self._began > self._deadline_s:
            msg = f"it is not done after {self._deadline_s:.0f} s of processor time"
            raise TooMuchWork(msg)
        self._look_at = min(self.spent + _LOOK, self._most)

    def admit(self, value: Any) -> Any:
        """Pay for a value that an operation has made, and return it. Raises TooMuchWork for one that may not be."""
        if isinstance(value, str):
            check_length(len(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, Iterator):
            return self.drawn(value)
        else:
            self.written_size(value)
        return value

    def drawn(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield values one by one, each paid for."""
        for value in values:
            self.spend(VISIT)
            self.written_size(value)
            yield value

    def written_size(self, value: Any) -> int:
        """Return about how many characters a value has when it is written, however deep. Raises TooMuchWork."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, list | tuple | set | frozenset | Mapping):
            return self._measured(value)[0]
        check_plain(value)
        return _SHORT

    def depth(self, value: Any) -> int:
        """Return how many lists and mappings are around the deepest part of a value."""
        return self._measured(value)[1] if isinstance(value, list | tuple | set | frozenset | Mapping) else 0

    def _measured(self, value: Any, above: int = 0) -> tuple[int, int]:
        if (known := self._known.get(id(value))) is not None:
            return known[1:]
        if above > MOST_DEPTH:
            msg = f"it makes lists of more than {MOST_DEPTH} levels"
            raise TooMuchWork(msg)
        size, deepest = _BETWEEN, 0
        parts = value
        if isinstance(value, Mapping):
            parts = [*value.keys(), *value.values()]
        self.spend(VISIT * (1 + len(parts)))
        for part in parts:
            if isinstance(part, str):
                size += len(part) + _BETWEEN
            elif isinstance(part, list | tuple | set | frozenset | Mapping):
                inner, depth = self._measured(part, above + 1)
                size, deepest = size + inner + _BETWEEN, max(deepest, depth)
            else:
                check_plain(part)
                size += _SHORT
            check_length(size)
        if deepest >= MOST_DEPTH:
            msg = f"it makes lists of more than {MOST_DEPTH} levels"
            raise TooMuchWork(msg)
        self._known[id(value)] = (value, size, deepest + 1)  # it is kept, so its id is not given to another one
        return size, deepest + 1


def check_length(length: int) -> None:
    """Raise TooMuchWork for a text, or a value that is written as one, that is too long."""
    if length > MOST_TEXT:
        msg = f"it makes more than {MOST_TEXT:,} characters or parts"
        raise TooMuchWork(msg)


def check_plain(value: Any) -> None:
    """Raise TooMuchWork for what is no value of a template: a number that is too long, bytes, a function."""
    if value is None or isinstance(value, bool | Undefined):
        return
    if isinstance(value, int):
        if value.bit_length() > _BITS:
            msg = f"it computes with whole numbers of more than {_BITS} bits"
            raise TooMuchWork(msg)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TooMuchWork("it computes with a number that is not finite")
    elif not isinstance(value, str):
        msg = f"it makes a value that is no text, number or list: {type(value).__name__}"
        raise TooMuchWork(msg)


def _units_for(value: Any) -> int:
    """Return the work that a value which is given allows, however deep."""
    if isinstance(value, str):
        return UNITS_A_PART + UNITS_A_BYTE * sys.getsizeof(value)
    parts: Iterable[Any] = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return UNITS_A_PART + sum(map(_units_for, parts))
