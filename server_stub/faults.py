"""Faults on request: which one strikes which request, how often, and what it does to numbers.

The law: a fault is asked for by name, in the ``x-fault`` header or as a share of the requests on the command line;
whether it strikes depends on the seed and on how many requests came before, and on nothing else. What strikes is
counted where it does. No fault changes what ``/v1/charges`` says of the work that was done. Tested in
``tests/server_stub/test_faults.py``. What a fault does to bytes stands in ``breakage``.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from server_stub.completion import Charge, Step
from server_stub.rows import Row
from server_stub.wire import WireError

# Each fault by its name, with the amount it takes where a request gives none, and of what.
NAMES = {
    "slow": (1.0, "seconds before the first byte"),
    "stalled": (None, "headers, then nothing"),
    "stalled-midway": (None, "one event, or half of the body, then nothing"),
    "429": (None, "too many requests"),
    "429-retry-after": (1.0, "the same, with a Retry-After of so many seconds"),
    "500": (None, "internal error"),
    "503": (None, "service unavailable"),
    "cut": (None, "the connection closes in the middle of the body"),
    "malformed": (None, "JSON that breaks off: the body, or the second event"),
    "duplicated": (None, "the second event comes twice"),
    "missing-done": (None, "a stream ends without saying so"),
    "wrong-usage": (None, "a tenth of the tokens is told"),
    "overcharge": (None, "ten times the tokens are told, and charged"),
    "nan-rows": (None, "rows of numbers that are none"),
    "null-rows": (None, "rows that are missing"),
    "short-top-k": (None, "top lists of one entry"),
    "page": (None, "a web page, with status 200"),
    "after-headers": (None, "the connection closes after the headers"),
    "redirect-loop": (None, "a redirect to where one is"),
    "huge": (1024.0, "a body of so many MiB"),
    "header-bomb": (400.0, "headers of so many KiB"),
}
OVERCHARGE = 10
ONLY_STREAMS = frozenset({"duplicated", "missing-done"})


@dataclass
class Strike:
    """The fault of one request; that of most has no name, and does nothing."""

    name: str = ""
    amount: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    _counted: bool = False

    def strikes(self, *names: str) -> bool:
        """Whether this is one of these faults; if so, it strikes now."""
        if self.name not in names:
            return False
        if not self._counted:
            self._counted = True
            self.counts[self.name] += 1
        return True

    async def delay(self) -> None:
        """Wait as long as the fault wants."""
        if self.strikes("slow"):
            await asyncio.sleep(self.amount)

    @property
    def times(self) -> int:
        """What is charged for every token."""
        return OVERCHARGE if self.strikes("overcharge") else 1

    def told(self, charge: Charge) -> Charge:
        """Return what the client is told of its charge."""
        return charge // OVERCHARGE if self.strikes("wrong-usage") else charge * self.times

    def prompt_rows(self, rows: list[Row | None], ids: Sequence[int]) -> list[Row | None]:
        """Return the rows of a prompt, the last of them spoilt: a client that reads the first only must not pass."""
        return [*rows[:-1], self._row(rows[-1], ids[-1])] if rows else rows

    def step(self, step: Step) -> Step:
        """Return a written token, its row spoilt."""
        return replace(step, row=self._row(step.row, step.token))

    def _row(self, row: Row | None, token: int) -> Row | None:
        if row is None or self.strikes("null-rows"):
            return None
        if self.strikes("nan-rows"):
            _, rank = row.actual(token)
            told = [tuple((i, math.nan) for i, _ in pairs) for pairs in (row.top, row.watched)]
            return Row(told[0], (token, math.nan, rank), told[1])
        return Row(row.top[:1], (token, *row.actual(token)), row.watched) if self.strikes("short-top-k") else row


class Faults:
    """Decides which request a fault strikes, and counts."""

    def __init__(self, shares: Sequence[tuple[str, float]] = (), seed: int = 0) -> None:
        """Take faults with their share of the requests, and a seed."""
        self._shares = tuple(shares)
        self._coin = random.Random(seed)
        self.counts: Counter[str] = Counter()

    def pick(self, asked: str | None, *, generates: bool) -> Strike:
        """Return the fault of the next request. Raises WireError for a name there is not."""
        if asked is not None:
            name, _, amount = asked.partition(":")
            return self._strike(name, amount)
        if generates:
            for name, share in self._shares:
                if self._coin.random() < share:
                    return self._strike(name, "")
        return Strike()

    def _strike(self, name: str, amount: str) -> Strike:
        try:
            usual, _ = NAMES[name]
            return Strike(name, float(amount or usual or 0), self.counts)
        except (KeyError, ValueError):
            raise WireError(400, f"x-fault is one of {', '.join(NAMES)}, some with :AMOUNT", param="x-fault") from None


def share(text: str) -> tuple[str, float]:
    """Read ``NAME[:P]``. Raises ValueError where it is none."""
    name, _, told = text.partition(":")
    try:
        part = float(told or 1)
    except ValueError:
        part = math.nan
    if name in NAMES and 0 <= part <= 1:
        return name, part
    msg = f"not a fault with its share: {text}"
    raise ValueError(msg)
