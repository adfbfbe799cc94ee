"""The deadlines of one question: to connect, to the first byte, between chunks, in total.

The laws (``tests/cloud/test_deadlines.py``). A question has one total for all its requests, its retries included. Only
waiting counts: time that the reader of a stream takes between two chunks is added to the total. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Literal

from hybrid.cloud.port import BeforeSend, unrecorded
from hybrid.errors import Unreachable


@dataclass(frozen=True)
class Deadlines:
    """Seconds.

    ``connect``: until a request can leave, with the look-up of a name, proxies and TLS. ``first_byte``: from then to
    its answer's body; a prompt is read before, so it may take longer than ``read``, between two parts. ``total``: all
    of it, for all requests of a question.
    """

    connect: float = 5.0
    first_byte: float = 20.0
    read: float = 10.0
    total: float = 120.0


class RequestTimeouts:
    """The deadlines of one question, in one request or several."""

    def __init__(
        self, deadlines: Deadlines, url: str, asked_at: float | None = None, before_send: BeforeSend = unrecorded
    ) -> None:
        """Take the deadlines, what messages call the endpoint, and when the question was first asked (None: now).

        ``asked_at`` is a time of ``time.monotonic``; ``before_send`` is awaited once a request can leave.
        """
        self._now = asyncio.get_running_loop().time
        waited = 0.0 if asked_at is None else time.monotonic() - asked_at
        self._deadlines = deadlines
        self._url = url
        self._before_send = before_send
        self.sent_in_epoch: int | None = None
        self._ends_at = self._now() + deadlines.total - waited
        self._stage: Literal["connect", "first byte", "read"] = "connect"
        self._until = self._ends_at
        self._timeout: asyncio.Timeout | None = None

    async def mark_sent(self, epoch: int | None) -> None:
        """Await ``before_send`` and start the clock of the first byte; to be called just before the request leaves.

        ``epoch``: the wire's at that time, kept as ``sent_in_epoch``. No deadline passes during ``before_send``: the
        endpoint is not waited for.
        """
        self.sent_in_epoch = epoch
        if self._timeout is not None:
            self._timeout.reschedule(None)
        began = self._now()
        try:
            await self._before_send()
        finally:
            self._ends_at += self._now() - began
        self._stage = "first byte"
        self._until = self._now() + self._deadlines.first_byte
        if self._timeout is not None:
            self._timeout.reschedule(min(self._until, self._ends_at))

    @asynccontextmanager
    async def bound(self, what: Literal["request", "body"]) -> AsyncIterator[None]:
        """Bound what is awaited inside. Raises Unreachable at the deadline that comes first.

        A "request" is awaited until its headers are there, and begins with the clock until it can leave; a "body" part
        by part.
        """
        now = self._now()
        if what == "request":
            self._stage, self._until = "connect", now + self._deadlines.connect
        elif self._stage == "read":
            self._until = now + self._deadlines.read
        if now >= self._ends_at:  # an endpoint that always has more to give would never make us wait
            raise self._late(in_all=True)
        try:
            async with asyncio.timeout_at(min(self._until, self._ends_at)) as self._timeout:
                yield
        except TimeoutError:
            raise self._late(in_all=self._ends_at <= self._until) from None
        finally:
            self._timeout = None
        if what == "body":
            self._stage = "read"

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Add the time spent inside to the total."""
        began = self._now()
        try:
            yield
        finally:
            self._ends_at += self._now() - began

    @asynccontextmanager
    async def bound_total(self) -> AsyncIterator[None]:
        """Bound requests that have deadlines of their own by the total of these. Raises Unreachable."""
        try:
            async with asyncio.timeout_at(self._ends_at):
                yield
        except TimeoutError:
            raise self._late(in_all=True) from None

    def _late(self, *, in_all: bool) -> Unreachable:
        if in_all:
            what = f"it was not whole after {self._deadlines.total:g} s"
        elif self._stage == "connect":
            what = f"no connection within {self._deadlines.connect:g} s"
        elif self._stage == "first byte":
            what = f"nothing came for {self._deadlines.first_byte:g} s"
        else:
            what = f"nothing more came for {self._deadlines.read:g} s"
        told = f"no answer from {self._url} in time: {what}"
        if self._stage == "connect":
            return Unreachable(told, sent=False, trouble=None if in_all else "connect")
        return Unreachable(told, trouble="silent" if self._stage == "first byte" and not in_all else None)
