"""How a pool makes a connection, by look-ups and attempts of our own, and what a fault of one is called. No HTTP.

Which HTTP library there is, httpx or httpx2, is known here and nowhere else (``tests/cloud/test_httpx2.py``).

A pool keeps nothing of a reply: behind one wire are many callers, and a cookie would tell one of them by another's.

The law of floods (``tests/cloud/test_floods.py``), where others wait beside a wire (a relay's): whatever servers
send, all streams of a network that have the loop for more than ``FREE_SHARE`` of the time have it together for one
part in ``1 + REST``, and none for long at a time. A stream of a hundred events a second takes 1 % of a loop and waits
for nothing.
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


# What a stream may have of the loop before it rests, and how many times as long as its work a rest takes. A flood that
# had the loop left a small question 7 times its time (``tests/oracles/small_question.py``).
FREE_SHARE, FREE_S, REST = 1 / 32, 0.005, 4
# What one read brings is parsed in one go, 64 KiB of the shortest comments or interim replies for 20 to 130 ms: a read
# brings half of the last one's where that took more than this, and else twice as much.
AT_ONCE_S, LEAST_READ, FIRST_READ = 0.001, 1024, 4096


class Floods:
    """The turns in which the streams of one network rest for the work that they made."""

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        worked_s: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the clocks, in seconds: of the thread's work so far, and of the wall."""
        self.worked_s, self.now = worked_s, now
        self._sleep, self._turn = sleep, anyio.Lock()

    async def rest(self, worked_s: float) -> None:
        """Rest for some work, one stream at a time: a dozen at a quarter of the loop each would fill it."""
        async with self._turn:
            await self._sleep(REST * worked_s)


class PacedStream:
    """A stream whose next read waits where what it brought made too much work."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, floods: Floods) -> None:
        """Take an open stream."""
        self._stream, self._floods = stream, floods
        self._owed_s, self._most = 0.0, FIRST_READ
        self._read_at, self._worked_s = floods.now(), floods.worked_s()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  (httpcore's port)
        """Return what has come, once this stream may have the loop again."""
        floods = self._floods
        # What others did while the stream's reader waited for them counts, too: no more than a flood of its own.
        worked_s = min(floods.worked_s() - self._worked_s, 2 * FREE_S)
        self._owed_s = max(0.0, self._owed_s + worked_s - FREE_SHARE * (floods.now() - self._read_at))
        self._most = max(LEAST_READ, self._most // 2) if worked_s > AT_ONCE_S else min(max_bytes, self._most * 2)
        if self._owed_s > FREE_S:
            await floods.rest(self._owed_s)
            self._owed_s = 0.0
        self._read_at = floods.now()
        try:
            return await self._stream.read(min(max_bytes, self._most), timeout)
        finally:
            self._worked_s = floods.worked_s()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  (httpcore's port)
        """Send; what passed since the last reply was read is no work of this one."""
        await self._stream.write(buffer, timeout)
        self._worked_s = self._floods.worked_s()

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
