"""A JSON body, read field by field: each is taken with its type, and what nobody took is known at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from hybrid.errors import to_one_line
from hybrid.serve.errors import AGAIN_S, SERVER, ApiError

# The pace of a thread that works long in Python: it rests so often that others have the interpreter.
#
# A thread that is interrupted gives the interpreter up after 5 ms, and a small question wants it a hundred times:
# beside one long body it took 0.5 s instead of 15 ms. A thread that sleeps is in nobody's way. The law
# (``tests/serve/test_pace.py``): while a long body is read, few functions are called between two rests.

T = TypeVar("T")
# How the items of a long list are gone through.
Steps: TypeAlias = Callable[[Sequence[Any]], Iterable[Any]]
# Objects between two rests (0.3 to 2 ms), and how many times as long as its work a rest takes. Beside twelve callers
# with 25,000 turns each a small question takes 1.1 times its time (``tests/oracles/small_question.py``).
STEPS, REST = 100, 3


class ThreadPacer:
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


# Characters of names in one header: aiohttp's client takes 8,190 of a header in all.
LONGEST_LIST = 4000


class Body:
    """The fields of one object. A field that is null was not given."""

    def __init__(self, fields: Mapping[str, Any], within: str = "") -> None:
        """Take an object; ``within`` is where it stands in the body, for sentences."""
        self._fields = fields
        self._within = within
        self._taken: set[str] = set()

    @property
    def rest(self) -> tuple[str, ...]:
        """The names of fields that were given and that nobody took, as far as a header can hold them."""
        left = (name for name, value in self._fields.items() if name not in self._taken and value is not None)
        return tuple(to_one_line(f"{self._within}{name}")[:80] for name in left)

    def given(self, name: str) -> Any:
        """Take a field as it is; None where it was not given."""
        self._taken.add(name)
        return self._fields.get(name)

    def flag(self, name: str) -> bool:
        """Take true or false; false where nothing was given."""
        value = self.given(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(name, "true or false")

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        """Take a whole number between bounds; a float without a fraction is one."""
        value = self.given(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= (most or value):
            return value
        between = f"between {least} and {most}" if most is not None else f"of at least {least}"
        raise self.wrong(name, f"a whole number {between}")

    def number(self, name: str, least: float, most: float) -> float | None:
        """Take a number between bounds."""
        value = self.given(name)
        if value is None:
            return None
        ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if ok and isfinite(value) and least <= value <= most:
            return float(value)
        raise self.wrong(name, f"a number between {least:g} and {most:g}")

    def text(self, name: str) -> str | None:
        """Take a text."""
        value = self.given(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "a text")

    def texts(self, name: str, most: int) -> tuple[str, ...] | None:
        """Take a text, or a list of at most so many texts."""
        value = self.given(name)
        if value is None:
            return None
        found = [value] if isinstance(value, str) else value
        if isinstance(found, list) and len(found) <= most and all(isinstance(each, str) and each for each in found):
            return tuple(found)
        raise self.wrong(name, f"a text or a list of at most {most} texts, none of them empty")

    def within(self, name: str) -> Body | None:
        """Take an object."""
        value = self.given(name)
        if value is None:
            return None
        if isinstance(value, dict):
            return Body(value, f"{self._within}{name}.")
        raise self.wrong(name, "an object")

    def wrong(self, name: str, wanted: str) -> ApiError:
        """Return the error of a field that is not what it should be."""
        param = f"{self._within}{name}"
        return ApiError(400, f"{param} must be {wanted}", code="invalid_value", param=param)

    def refused(self, name: str, why: str) -> ApiError:
        """Return the error of a field that is well formed and cannot be honoured."""
        param = f"{self._within}{name}"
        return ApiError(400, f"{param}: {why}", code="unsupported_parameter", param=param)


def listed(names: Iterable[str]) -> str:
    """Return names for a sentence or a header, each once, in order; of very many how many more there are.

    >>> listed(["user", "store", "user"])
    'user, store'
    """
    every = tuple(dict.fromkeys(names))
    ends = accumulate(len(name) + 2 for name in every)
    shown = sum(end <= LONGEST_LIST for end in ends)
    more = (f"and {len(every) - shown} more",) if shown < len(every) else ()
    return ", ".join((*every[:shown], *more))


# How many bytes of request bodies the endpoint holds, over all connections.
#
# The law (``tests/serve/test_body_total.py``): whatever comes, ends and leaves in whatever order, never more than
# ``MOST_BYTES``, and none once every request has ended. A body counts by what came of it, not by what its header says:
# who says much and sends nothing holds nothing. The last ``FOR_SHORT`` bytes are for short bodies alone, so that small
# questions are answered while somebody sends long ones. No I/O.

MOST_BYTES, FOR_SHORT = 64 * 2**20, 8 * 2**20
# A short body: what a server reads of a connection before anybody asks for it (uvicorn's high-water mark).
SHORT = 2**16


class BodyTotal:
    """The bodies of all requests under way. ``num_bytes``: what came of them."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.num_bytes = 0

    def open_share(self) -> BodyShare:
        """Return the share of a request that begins; leaving it gives it back."""
        return BodyShare(self)


class BodyShare:
    """What one request's body has of the total. A context manager, which gives it back."""

    def __init__(self, total: BodyTotal) -> None:
        """Hold nothing yet."""
        self._total = total
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Hold what came. Raises ApiError, and holds nothing more, where it is too much for all bodies together.

        What is refused gives its room back at once: else of many that grow side by side none would come whole.
        """
        most = MOST_BYTES if self._num_bytes + num_bytes <= SHORT else MOST_BYTES - FOR_SHORT
        if self._total.num_bytes + num_bytes > most:
            self._give_back()
            said = "the bodies of other requests take all the room there is: ask again later"
            again = {"retry-after": str(AGAIN_S), "connection": "close"}
            raise ApiError(503, said, SERVER, "overloaded", headers=again)
        self._num_bytes += num_bytes
        self._total.num_bytes += num_bytes

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the share back."""
        self._give_back()

    def _give_back(self) -> None:
        self._total.num_bytes -= self._num_bytes
        self._num_bytes = 0
