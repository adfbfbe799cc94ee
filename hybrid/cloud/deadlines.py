"""How long a request may be waited for: to connect, to the first byte, between chunks, in total.

The law: only waiting counts. What whoever reads a stream does between two chunks takes nothing from its total, and a
question that takes several requests has one total for all of them (``tests/cloud/test_wire.py``). Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hybrid.errors import Trouble, Unreachable


@dataclass(frozen=True)
class Deadlines:
    """Seconds. ``first_byte`` counts from when a request leaves to its answer's body, ``read`` between its parts.

    A prompt is read before the first byte comes, tokens after it come one by one: the one may take longer.
    """

    connect: float = 5.0
    first_byte: float = 20.0
    read: float = 10.0
    total: float = 120.0


class Waits:
    """The waits of one question, in one request or several."""

    def __init__(self, deadlines: Deadlines, url: str) -> None:
        """Take the deadlines, and what messages call the endpoint."""
        self._deadlines = deadlines
        self._url = url
        self._total = deadlines.total
        self.leaves()

    def leaves(self) -> None:
        """Begin to wait for another first byte: a request leaves."""
        self._first = self._deadlines.first_byte
        self._begun = False

    def came(self) -> None:
        """Note that the first byte is there."""
        self._begun = True

    @asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Bound what is awaited inside. Raises Unreachable at the deadline that comes first."""
        now = asyncio.get_running_loop().time
        began, step = now(), self._deadlines.read if self._begun else self._first
        if self._total <= 0:  # an endpoint that always has more to give would never make us wait
            raise self._late(in_all=True)
        try:
            async with asyncio.timeout(min(step, self._total)):
                yield
        except TimeoutError:
            raise self._late(in_all=self._total <= step) from None
        finally:
            self._first -= now() - began
            self._total -= now() - began

    def _late(self, *, in_all: bool) -> Unreachable:
        if in_all:
            what = f"it was not whole after {self._deadlines.total:g} s"
        elif self._begun:
            what = f"nothing more came for {self._deadlines.read:g} s"
        else:
            what = f"nothing came for {self._deadlines.first_byte:g} s"
        trouble: Trouble | None = None if in_all or self._begun else "silent"
        return Unreachable(f"no answer from {self._url} in time: {what}", trouble=trouble)
