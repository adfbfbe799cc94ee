"""A JSON body, read field by field: each is taken with its type, and what nobody took is known at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import isfinite
from typing import Any

from hybrid.errors import to_one_line
from hybrid.serve.api_error import ApiError

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

    def whole(self, name: str, least: int, most: int | None = None) -> int | None:
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
