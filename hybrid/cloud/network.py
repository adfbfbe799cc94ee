"""How a pool makes a connection, by look-ups and attempts of our own, and what a fault of one is called. No HTTP.

Which HTTP library there is, httpx or httpx2, is known here and nowhere else (``tests/cloud/test_httpx2.py``).

A pool keeps nothing of a reply: behind one wire are many callers, and a cookie would tell one of them by another's.

The law of floods (``tests/cloud/test_floods.py``), where others wait beside a wire (a relay's): whatever servers
send, all streams of a network together have the loop for at most ``SHARE`` of the time, ``BURST_S``, and what each has
just read: at most ``MOST_READ`` bytes, which a connection that ends then does not pay for. Those that want more have
equal parts. A relayed event takes 0.5 to 1 ms on a slow machine: up to 400 a second of all streams together wait for
nothing. One gap is known: a connection that lies idle counts as busy until ``BYTE_S`` for each byte of its last read is
laid to it, so a flood has more beside many short replies (0.62 of the loop beside two a second in a simulation).
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


# The part of the loop's time that relayed streams have together, and the seconds that they may have saved up. Floods
# that had the loop left a small question 7 times its time (``tests/oracles/small_question.py``).
SHARE, BURST_S = 0.4, 0.25
# At most so many seconds of work are laid to a byte, since a reader may wait for others and a connection lie idle: an
# empty event of six bytes was measured to take 0.4 ms.
BYTE_S = 1e-4
# What one read brings is parsed in one go, 64 KiB of the shortest comments or interim replies for 20 to 130 ms, and may
# make seconds of work: a read brings half of the last one's where that took more than this, and else twice as much.
AT_ONCE_S, LEAST_READ, FIRST_READ, MOST_READ = 0.004, 128, 1024, 4096
TINY_S = 1e-9
# After so long a rest looks whether others have ended theirs, which makes its own part larger.
LOOK_S = 0.05


class Floods:
    """Pays for the loop's work that the streams of one network make, at ``SHARE`` of the time; who is not paid rests.

    Theory of operation: processor sharing. While nobody rests, seconds are saved up. While streams rest, each is paid
    an equal part: ``_paid_s`` is what a stream that rested all the time would have been paid by now.
    """

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        worked_s: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the clocks, in seconds: of the thread's work so far, and of the wall."""
        self._sleep, self._thread_s, self._now = sleep, worked_s, now
        self._saved_s, self._paid_s, self._num_resting, self._paid_at = BURST_S, 0.0, 0, now()
        self._busy: set[PacedStream] = set()
        self._since_s = 0.0

    def charge(self, stream: PacedStream, *, busy: bool) -> None:
        """Charge the work since the last call to the streams that were busy, in equal parts; then this one is, or not.

        A stream is busy from when a read of it returned until its reader comes back, or until what came can have made
        no more.
        """
        worked_s = self._thread_s()
        part_s = (worked_s - self._since_s) / max(1, len(self._busy))
        self._since_s = worked_s
        for each in self._busy:
            each.worked_s = min(each.worked_s + part_s, each.most_s)
        self._busy = {each for each in self._busy if each.worked_s < each.most_s}
        (self._busy.add if busy else self._busy.discard)(stream)

    async def rest(self, worked_s: float) -> None:
        """Return once this work is paid for."""
        self._pay()
        saved_s = min(worked_s, self._saved_s)
        self._saved_s -= saved_s
        paid_by = self._paid_s + worked_s - saved_s
        self._num_resting += 1
        try:
            while (left_s := paid_by - self._paid_s) > TINY_S:
                await self._sleep(min(left_s * self._num_resting / SHARE, max(left_s / SHARE, LOOK_S)))
                self._pay()
        finally:
            self._pay()
            self._num_resting -= 1

    def _pay(self) -> None:
        now = self._now()
        gained_s, self._paid_at = SHARE * (now - self._paid_at), now
        if self._num_resting:
            self._paid_s += gained_s / self._num_resting
        else:
            self._saved_s = min(BURST_S, self._saved_s + gained_s)


class PacedStream:
    """A stream whose next read waits where what it brought made too much work."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, floods: Floods) -> None:
        """Take an open stream."""
        self._stream, self._floods = stream, floods
        self.worked_s = self.most_s = 0.0
        """The loop's work for what its last read brought, and the most that this can have made."""
        self._most = FIRST_READ

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  (httpcore's port)
        """Return what has come, once this stream may have the loop again."""
        self._floods.charge(self, busy=False)
        worked_s, self.worked_s = self.worked_s, 0.0
        if self.most_s:
            self._most = max(LEAST_READ, self._most // 2) if worked_s > AT_ONCE_S else min(MOST_READ, self._most * 2)
        await self._floods.rest(worked_s)
        data = await self._stream.read(min(max_bytes, self._most), timeout)
        self.most_s = len(data) * BYTE_S
        self._floods.charge(self, busy=True)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  (httpcore's port)
        """Send; the next read rests for what the last one brought."""
        self._floods.charge(self, busy=False)
        await self._stream.write(buffer, timeout)

    async def start_tls(self, *args: Any, **kwargs: Any) -> PacedStream:
        """Return the stream inside TLS."""
        return PacedStream(await self._stream.start_tls(*args, **kwargs), self._floods)

    async def aclose(self) -> None:
        """Close."""
        self._floods.charge(self, busy=False)
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
