"""How a pool makes a connection, by look-ups and attempts of our own, and what a fault of one is called. No HTTP.

Which HTTP library there is, httpx or httpx2, is known here and nowhere else (``tests/cloud/test_httpx2.py``).

A pool keeps nothing of a reply: behind one wire are many callers, and a cookie would tell one of them by another's.

The law of floods (``tests/cloud/test_floods.py``), where others wait beside a wire (a relay's): whatever servers
send, all streams of a network together have the loop for at most ``SHARE`` of the time and ``BURST_S``, and none has
it for long at a time. A relayed event takes 0.5 to 1 ms on a slow machine: 400 of them a second wait for nothing.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any

import anyio

from hybrid.cloud.names import connect_first, resolve

if TYPE_CHECKING:
    import httpcore
    import httpx
else:
    try:
        import httpcore
        import httpx
    except ImportError:  # its successor, of the same surface
        import httpcore2 as httpcore
        import httpx2 as httpx


# What relayed streams have of the loop together, in seconds after a pause at once, and what one read of one can count
# for. Floods that had the loop left a small question 7 times its time (``tests/oracles/small_question.py``).
SHARE, BURST_S, MOST_S = 0.35, 0.25, 0.05
# What one read brings is parsed in one go, 64 KiB of the shortest comments or interim replies for 20 to 130 ms: a read
# brings half of the last one's where that took more than this, and else twice as much.
AT_ONCE_S, LEAST_READ, FIRST_READ = 0.001, 1024, 4096


class Floods:
    """What the streams of one network have of the loop, and the turns in which they rest."""

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        worked_s: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the clocks, in seconds: of the thread's work so far, and of the wall."""
        self._now, self._thread_s = now, worked_s
        self._sleep, self._turn = sleep, anyio.Lock()
        self._left_s, self._counted_at = BURST_S, now()
        self._since_s = 0.0
        self._reader: PacedStream | None = None

    def lay_work_to(self, reader: PacedStream | None) -> None:
        """Lay the work since the last call to whoever was named by it: so none counts twice. None: to nobody."""
        worked_s = self._thread_s()
        if self._reader is not None:
            self._reader.worked_s += worked_s - self._since_s
        self._reader, self._since_s = reader, worked_s

    async def rest(self, worked_s: float) -> None:
        """Rest where this work is more than all have left, one stream at a time."""
        async with self._turn:
            now = self._now()
            gained_s = SHARE * (now - self._counted_at)
            self._left_s, self._counted_at = min(BURST_S, self._left_s + gained_s) - worked_s, now
            if self._left_s < 0:
                await self._sleep(-self._left_s / SHARE)


class PacedStream:
    """A stream whose next read waits where what it brought made too much work."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, floods: Floods) -> None:
        """Take an open stream."""
        self._stream, self._floods = stream, floods
        self.worked_s = 0.0
        """What was worked since its last read, as far as no other stream was read meanwhile."""
        self._most = FIRST_READ

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  (httpcore's port)
        """Return what has come, once this stream may have the loop again."""
        floods = self._floods
        floods.lay_work_to(None)
        # What the loop did for others before this stream's reader came back counts, too: MOST_S bounds it.
        worked_s, self.worked_s = min(self.worked_s, MOST_S), 0.0
        self._most = max(LEAST_READ, self._most // 2) if worked_s > AT_ONCE_S else min(max_bytes, self._most * 2)
        await floods.rest(worked_s)
        try:
            return await self._stream.read(min(max_bytes, self._most), timeout)
        finally:
            floods.lay_work_to(self)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  (httpcore's port)
        """Send; what passed since the last reply was read is no work of this one."""
        await self._stream.write(buffer, timeout)
        self._floods.lay_work_to(None)
        self.worked_s = 0.0

    async def start_tls(self, *args: Any, **kwargs: Any) -> PacedStream:
        """Return the stream inside TLS."""
        return PacedStream(await self._stream.start_tls(*args, **kwargs), self._floods)

    async def aclose(self) -> None:
        """Close."""
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the stream."""
        return self._stream.get_extra_info(info)


class Network(httpcore.AnyIOBackend):
    """How connections are made: names are looked up by us, and of several addresses the first that answers is taken."""

    def __init__(self, floods: Floods | None = None) -> None:
        """Take the turns of its streams; None: none of them rests."""
        self._floods = floods

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (httpcore's port)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host, or raise httpcore.ConnectError."""
        connect = partial(
            super().connect_tcp,
            port=port,
            timeout=timeout,
            local_address=local_address,
            socket_options=socket_options,
        )
        try:
            addresses = await resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        stream = await connect_first(connect, addresses, lambda stream: stream.aclose())
        if self._floods is None:
            return stream
        return PacedStream(stream, self._floods)  # type: ignore[return-value]  # its base class has no more


class NoCookies(CookieJar):
    """A jar that takes nothing."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Leave what a reply wants kept."""


def in_words(root: BaseException) -> object:
    """Return a fault in the system's words, without its number; asyncio's own name the address a second time."""
    if isinstance(root, ssl.SSLError) or not isinstance(root, OSError) or not root.errno:
        return root
    return root.strerror if isinstance(root, socket.gaierror) else os.strerror(root.errno)


def root_cause(error: BaseException) -> BaseException:
    """Return the fault that an error comes from."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


__all__ = ["Network", "NoCookies", "httpcore", "httpx", "in_words", "root_cause"]
