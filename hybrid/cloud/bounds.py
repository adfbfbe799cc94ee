"""What bounds a reply: deadlines, and memory.

The laws of time (``tests/cloud/test_deadlines.py``). A question has one total for all its requests, its retries
included. Only waiting counts: time that the reader of a stream takes between two chunks is added to the total.

The laws of memory. Parsed JSON takes no more memory than ``parsed_bytes`` says, plus its texts
(``tests/cloud/test_body.py``). However the bytes are cut, the events are those of the whole text, read as the HTML
standard says (WHATWG, 9.2.6): lines end with CR, LF or CRLF, one byte order mark may come first, the ``data`` lines of
an event are joined, an event ends with an empty line, and an event without an end is none
(``tests/cloud/test_sse.py``). Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from hybrid.cloud.port import BeforeSend, unrecorded
from hybrid.errors import BadReply, NotAnApi, Unreachable

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# One event is a few tokens with their rows.
MAX_EVENT_BYTES = 8 * 1024 * 1024
# Between two events. A service that says each half second that it lives says 30 KB in the ten minutes that it may take;
# beside six streams of nothing but comments a small question took 38 times its time.
MAX_PASSED_OVER_BYTES = 256 * 1024
# What is read in full is an answer's own rows, or a prompt's by their texts: an echo of the server here has 566 bytes a
# token at k = 20, 4.5 MB at 8,000 tokens. Where a shape says what to leave unread, a prompt's rows are 12 MB there.
MAX_REPLY_BYTES, MAX_ROWS_BYTES = 32 * 1024 * 1024, 128 * 1024 * 1024
# A model list of thousands is a few MiB.
MAX_FACT_BYTES = 4 * 1024 * 1024
# What JSON becomes in CPython 3.11, but for its texts, measured: an object, a list, a value and its place in either.
OBJECT_BYTES, LIST_BYTES, VALUE_BYTES = 200, 88, 64
MAX_PARSED_BYTES, MAX_SHAPED_BYTES = 128 * 1024 * 1024, 512 * 1024 * 1024
# What is shorter cannot become more: no byte of JSON costs more than a brace.
SMALL_BYTES = MAX_PARSED_BYTES // OBJECT_BYTES
COUNTED_AT_ONCE = 1 << 18  # stays in a core's cache


# ---- deadlines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timeouts:
    """Seconds.

    ``connect``: until a request can leave, with the look-up of a name, proxies and TLS. ``first_byte``: from then to
    its answer's body; a prompt is read before, so it may take longer than ``read``, between two parts. ``total``: all
    of it, for all requests of a question.
    """

    connect: float = 5.0
    first_byte: float = 20.0
    read: float = 10.0
    total: float = 120.0


class QuestionDeadlines:
    """The deadlines of one question, in one request or several."""

    def __init__(
        self, deadlines: Timeouts, url: str, asked_at: float | None = None, before_send: BeforeSend = unrecorded
    ) -> None:
        """Take the deadlines, what messages call the endpoint, and when the question was first asked (None: now).

        ``asked_at`` is a time of ``time.monotonic``; ``before_send`` is awaited once a request can leave.
        """
        self._now = asyncio.get_running_loop().time
        waited = 0.0 if asked_at is None else time.monotonic() - asked_at
        self._deadlines = deadlines
        self.url = url
        self._before_send = before_send
        self.sent_in_epoch: int | None = None
        self._ends_at = self._now() + deadlines.total - waited
        self._stage: Literal["connect", "first byte", "read"] = "connect"
        self._until = self._ends_at
        self._timeout: asyncio.Timeout | None = None

    async def mark_sent(self, epoch: int | None, num_bytes: int = 0) -> None:
        """Await ``before_send`` and start the clock of the first byte; to be called just before the request leaves.

        ``num_bytes``: its body's. ``epoch``: the wire's at that time, kept as ``sent_in_epoch``. No deadline passes
        during ``before_send``: the endpoint is not waited for.
        """
        self.sent_in_epoch = epoch
        if self._timeout is not None:
            self._timeout.reschedule(None)
        began = self._now()
        try:
            await self._before_send(num_bytes)
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
        told = f"no answer from {self.url} in time: {what}"
        if self._stage == "connect":
            return Unreachable(told, sent=False, trouble=None if in_all else "connect")
        return Unreachable(told, trouble="silent" if self._stage == "first byte" and not in_all else None)


# ---- bodies ---------------------------------------------------------------------------------------------------------


def parsed_bytes(raw: bytes | bytearray) -> int:
    """Return what the JSON would take at most, but for its texts: three bytes of it can become seventy."""
    text, total = np.frombuffer(raw, dtype=np.uint8), 0
    for start in range(0, text.size, COUNTED_AT_ONCE):
        part = text[start : start + COUNTED_AT_ONCE]
        for mark, cost in ((b"{", OBJECT_BYTES), (b"[", LIST_BYTES), (b",", VALUE_BYTES)):
            total += cost * int(np.count_nonzero(part == ord(mark)))
    return total


def parse(raw: bytes | bytearray, url: str, shape: type | None = None) -> Any:
    """Read a body as an object or a list; ``shape`` names the fields that are wanted and what to leave unread.

    Raises NotAnApi for a page, BadReply for what is no JSON, neither, or too much.
    """
    parsed = 0 if len(raw) <= SMALL_BYTES else parsed_bytes(raw)
    if shape is not None and parsed <= MAX_SHAPED_BYTES:
        # What is of another shape, or no JSON, is read in full, and then named.
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            expected: Mapping[str, Any] = msgspec.json.decode(raw, type=shape)
            return expected
    if len(raw) > MAX_REPLY_BYTES or parsed > MAX_PARSED_BYTES:
        msg = f"{url} answered with more than a reply can hold"
        raise BadReply(msg)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if raw.lstrip()[:1] == b"<":
            msg = f"{url} answered with a web page: this is not the address of a model endpoint"
            raise NotAnApi(msg) from error
        msg = f"{url} answered with something that is not JSON"
        raise BadReply(msg, trouble="malformed") from error
    if not isinstance(value, dict | list):
        msg = f"{url} answered with JSON that is neither an object nor a list"
        raise BadReply(msg)
    return value


class LineReader:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        """Start before the first byte."""
        self._held = bytearray()
        self._is_first = True
        self._after_cr = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the lines that are whole by now, without their ends. Raises BadReply where one does not end."""
        if self._after_cr and part.startswith(b"\n"):
            part = part[1:]  # the other half of a CRLF
        self._after_cr = part.endswith(b"\r")
        for piece in part.splitlines(keepends=True):
            _grow(self._held, piece)
            if piece.endswith((b"\r", b"\n")):
                line = bytes(self._held).rstrip(b"\r\n")
                yield line.removeprefix(BYTE_ORDER_MARK) if self._is_first else line
                self._is_first = False
                self._held.clear()


class EventReader:
    """Reads the data of events; their types and ids, and comments, are passed over."""

    def __init__(self) -> None:
        """Start before the first byte."""
        self._lines = LineReader()
        self._data = bytearray()
        self._passed_over = 0

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the data of every event that is whole by now. Raises BadReply where one does not end, or none comes."""
        for line in self._lines.feed(part):
            name, _, value = line.partition(b":")
            if name == b"data":
                _grow(self._data, value.removeprefix(b" ") + b"\n")
            elif not line and self._data:
                yield bytes(self._data[:-1])
                self._data.clear()
                self._passed_over = 0
            else:
                self._pass_over(line)

    def _pass_over(self, line: bytes) -> None:
        self._passed_over += len(line) + 1
        if self._passed_over > MAX_PASSED_OVER_BYTES:
            msg = "the endpoint's stream has comments and no events"
            raise BadReply(msg)


def _grow(held: bytearray, part: bytes) -> None:
    held += part
    if len(held) > MAX_EVENT_BYTES:
        msg = "the endpoint's stream does not end its lines, or its events"
        raise BadReply(msg)
