"""Faults on request: which one strikes which request, how often, and what it does to numbers and bytes.

The law: a fault is asked for by name, in the ``x-fault`` header or as a share of the requests on the command line;
whether it strikes depends on the seed and on how many requests came before, and on nothing else. What strikes is
counted where it does. No fault changes what ``/v1/charges`` says of the work that was done. Tested in
``tests/server_stub/test_faults.py``.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace

from starlette.datastructures import URL
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from server_stub.ask import Row
from server_stub.completion import Charge, Step
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


# What a fault does to bytes: answers that come instead, bodies and streams that break.
#
# Nothing here computes or counts tokens. A connection is closed by returning before the answer is complete, which is
# how an ASGI application can: uvicorn then closes it, and says so in its log unless ``hush`` was called.

MIB, KIB = 2**20, 2**10
PAGE = "<!doctype html><html><head><title>Sign in</title></head><body>Please sign in to this network.</body></html>"
ERRORS = {
    "429": (429, "Rate limit reached", "RateLimitError"),
    "429-retry-after": (429, "Rate limit reached", "RateLimitError"),
    "500": (500, "The server had an error", "InternalServerError"),
    "503": (503, "The server is overloaded", "ServiceUnavailableError"),
}


class _Cut(Exception):
    """The connection is to be closed here."""


class _Broken(Response):
    """Headers, some bytes, and then the connection closes, or nothing comes any more."""

    def __init__(self, sent: bytes = b"", length: int = 1000, *, stalls: bool, unread: bool = False) -> None:
        """Take what is sent and how much is promised. ``unread``: nobody has read the request yet."""
        super().__init__(media_type="application/json", headers={"content-length": str(length)})
        self._sent, self._stalls, self._unread = sent, stalls, unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        while self._unread:  # a connection that closes on unread bytes is reset, and its headers may be lost
            self._unread = (await receive()).get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._sent:
            await send({"type": "http.response.body", "body": self._sent, "more_body": True})
        while self._stalls and (await receive())["type"] != "http.disconnect":
            pass


class Stream(StreamingResponse):
    """A stream that is closed however its client leaves, so that its slot is free at once, not once it is collected."""

    def __init__(self, pieces: AsyncGenerator[str, None], media_type: str) -> None:
        """Take the pieces, framed."""
        super().__init__(pieces, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces."""
        try:
            await super().__call__(scope, receive, send)
        except _Cut:
            pass
        finally:
            await self._pieces.aclose()


def instead(strike: Strike, url: URL, refuse: Callable[[WireError], Response]) -> Response | None:
    """Return what is answered before anything is computed; None: nothing is."""
    if strike.strikes(*ERRORS):
        response = refuse(WireError(*ERRORS[strike.name]))
        if strike.name == "429-retry-after":
            response.headers["retry-after"] = f"{strike.amount:g}"
        return response
    if strike.strikes("stalled", "after-headers"):
        return _Broken(stalls=strike.name == "stalled", unread=True)
    if strike.strikes("page"):
        return HTMLResponse(PAGE)
    if strike.strikes("redirect-loop"):
        return RedirectResponse(url, 307)
    if strike.strikes("header-bomb"):
        filler = {f"x-filler-{n}": "x" * KIB for n in range(int(strike.amount))}
        return Response(b"{}", media_type="application/json", headers=filler)
    return (
        StreamingResponse(_spaces(int(strike.amount)), media_type="application/json")
        if strike.strikes("huge")
        else None
    )


async def _spaces(num_mib: int) -> AsyncGenerator[bytes, None]:
    """White space may precede JSON, however much of it."""
    for _ in range(num_mib):
        yield b" " * MIB
    yield b"{}"


def spoilt(strike: Strike, response: Response) -> Response:
    """Return an answer in one piece, broken."""
    if isinstance(response, StreamingResponse):
        return response
    body = bytes(response.body)
    if strike.strikes("cut", "stalled-midway"):
        return _Broken(body[: len(body) // 2], len(body), stalls=strike.name == "stalled-midway")
    if strike.strikes("malformed"):
        return Response(body[:-1], response.status_code, media_type=response.media_type)
    return response


async def through(strike: Strike, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the pieces of a stream, broken at the second one, or robbed of their last."""
    held, number = "", 0
    try:
        async for piece in pieces:
            number += 1
            if strike.name == "missing-done":
                if held:
                    yield held
                held = piece
                continue
            if number == 2 and strike.strikes("stalled-midway"):
                await pieces.aclose()  # a stalled answer must not keep others waiting for its slot
                await asyncio.Event().wait()
            if number == 2 and strike.strikes("cut"):
                yield piece[: len(piece) // 2]
                raise _Cut
            for sent in _struck(strike, piece) if number == 2 else (piece,):
                yield sent
        strike.strikes("missing-done")
    finally:
        await pieces.aclose()


def _struck(strike: Strike, piece: str) -> tuple[str, ...]:
    if strike.strikes("duplicated"):
        return piece, piece
    if strike.strikes("malformed"):
        text = piece.rstrip("\n")
        return (text[: len(text) // 2] + piece[len(text) :],)
    return (piece,)


def hush() -> None:
    """Keep uvicorn from reporting every connection that is closed on purpose."""
    closed = "ASGI callable returned without completing response."
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != closed)
