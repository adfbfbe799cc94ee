"""Answers that notice when nobody listens any more: before the first byte and after it, while they wait and write.

A server tells a disconnect once, as a message to whoever receives; uvicorn raises nothing where one sends on. So the
work of an answer and the wait for that message run side by side, and whichever ends first ends the other. The law
(``tests/serve/test_response.py``): when the call returns, the work has ended, its ``finally`` included, whether it had
begun or not; nothing is left to a garbage collector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from hybrid.errors import HybridError
from hybrid.serve.errors import ApiError, api_error, internal_error

# A caller that hears nothing for so long is told that the connection lives.
PING_S = 10.0
PING = b": ping\n\n"
Work = Callable[["ResponseWriter"], Awaitable[None]]


class ResponseWriter:
    """What a caller is sent: a start, once, and parts of a body."""

    def __init__(self, send: Send) -> None:
        """Take the way to the caller."""
        self._send = send
        self._one_at_a_time = asyncio.Lock()
        self.begun = False
        """Whether a status has been sent: from then on an error is part of the body."""
        self.last_at = time.monotonic()
        """When something was sent last, or this was made."""

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and the headers."""
        self.begun = True
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._say({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, part: bytes) -> None:
        """Send a part of the body."""
        await self._say({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"") -> None:
        """Send the last part of the body."""
        await self._say({"type": "http.response.body", "body": part, "more_body": False})

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send an answer at once."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.end(body)

    async def _say(self, message: Message) -> None:
        async with self._one_at_a_time:
            self.last_at = time.monotonic()
            await self._send(message)


class DisconnectAwareResponse:
    """An ASGI response whose work is cancelled when the caller leaves."""

    def __init__(self, work: Work) -> None:
        """Take what sends the answer."""
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work until the answer is sent, or nobody waits for it."""
        writer = ResponseWriter(send)
        work = asyncio.ensure_future(self._answer(writer, scope, receive))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, leaving):
                task.cancel()
            await ended(work, leaving)
        if not work.cancelled():
            work.result()

    async def _answer(self, writer: ResponseWriter, scope: Scope, receive: Receive) -> None:
        """Send what the work makes of it, or why there is nothing."""
        try:
            await self._work(writer)
        except ApiError as error:
            if writer.begun:
                raise
            await error.response()(scope, receive, writer._send)
        except HybridError as error:
            if writer.begun:
                raise
            await api_error(error).response()(scope, receive, writer._send)
        except Exception as error:  # noqa: BLE001  (a caller is told of any fault, and it is reported)
            told = internal_error(error)
            if not writer.begun:
                await told.response()(scope, receive, writer._send)


async def _left(receive: Receive) -> None:
    """Return once the caller has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Return once tasks have ended, however; being cancelled meanwhile is passed on, but not before."""
    again: asyncio.CancelledError | None = None
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            again = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen, so that nobody reports it as lost
    if again is not None:
        raise again


@asynccontextmanager
async def pinged(writer: ResponseWriter, headers: Mapping[str, str]) -> AsyncGenerator[None, None]:
    """Tell a caller, while the body runs, that the connection lives, wherever it hears nothing for ``PING_S``.

    A reply that has not begun by then begins with it, under ``headers``. Beside the body, not around each of its parts:
    a wait of its own for every chunk took longer than all else that is done for one.
    """

    async def ping() -> None:
        while True:
            silent_s = time.monotonic() - writer.last_at
            await asyncio.sleep(PING_S - silent_s)
            if time.monotonic() - writer.last_at >= PING_S:
                if not writer.begun:
                    await writer.begin(200, headers)
                await writer.write(PING)

    pinging = asyncio.create_task(ping())
    try:
        yield
    finally:
        pinging.cancel()
        await asyncio.gather(pinging, return_exceptions=True)
