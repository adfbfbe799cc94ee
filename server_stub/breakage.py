"""What a fault does to bytes: answers that come instead, bodies and streams that break.

Nothing here computes or counts tokens. A connection is closed by returning before the answer is complete, which is how
an ASGI application can: uvicorn then closes it, and says so in its log unless ``hush`` was called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable

from starlette.datastructures import URL
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from server_stub.faults import Strike
from server_stub.wire import WireError

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
