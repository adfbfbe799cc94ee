"""How a pool makes a connection, by look-ups and attempts of our own, and what a fault of one is called.

Which HTTP library there is, httpx or httpx2, is known here and nowhere else (``tests/cloud/test_httpx2.py``).

The law of floods (``tests/cloud/test_floods.py``), where others wait beside a wire (a relay's): whatever servers
send, all streams of a network together have the loop for at most ``SHARE`` of the time, ``BURST_S``, and what each has
just read: at most ``MOST_READ`` bytes, which a connection that ends then does not pay for. Those that want more have
equal parts. A relayed event takes 0.5 to 1 ms on a slow machine: up to 400 a second of all streams together wait for
nothing. One gap is known: a connection that lies idle counts as busy until ``BYTE_S`` for each byte of its last read is
laid to it, so a flood has more beside many short replies (0.62 of the loop beside two a second in a simulation).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from hybrid.errors import BadReply, CloudError, TlsFailure, Unreachable, to_one_line

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

__all__ = ["HEAD_START_S", "Network", "connect_first", "httpcore", "httpx", "resolve", "transport_error"]

# From a host's name to the first of its addresses that accepts a connection.
#
# The law: a look-up that is given up keeps nobody waiting, not even the process at its end
# (``tests/cloud/test_names.py``). asyncio looks names up in its executor, whose threads are joined at exit, and a
# resolver may hang for half a minute. This section knows no HTTP: its caller connects to an address.

T = TypeVar("T")
# How long one address has before the next is tried beside it (RFC 8305).
HEAD_START_S = 0.25


async def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses, one family after the other by turns. Raises OSError where there are none.

    A host that is an address is its own.
    """
    with suppress(ValueError):
        ip_address(host)
        return [host]
    rank: Counter[int] = Counter()
    ranked = []
    for family, *_, address in await _look_up(host, port):
        ranked.append((rank[family], str(address[0])))
        rank[family] += 1
    return [address for _, address in sorted(ranked, key=lambda pair: pair[0])]


async def _look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def tell(put: Callable[[Any], None], value: object) -> None:
        with suppress(RuntimeError):  # nobody is there any more: the loop is closed
            loop.call_soon_threadsafe(lambda: None if answer.done() else put(value))

    def look_up() -> None:
        try:
            tell(answer.set_result, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            tell(answer.set_exception, error)
        except UnicodeError:  # a label that no name can hold
            tell(answer.set_exception, OSError(f"{host} is no host name"))

    threading.Thread(target=look_up, name="hybrid-resolver", daemon=True).start()
    return await answer


async def connect_first(
    connect: Callable[[str], Awaitable[T]], addresses: Sequence[str], close: Callable[[T], Awaitable[None]]
) -> T:
    """Return the first connection that comes about; an address gets a head start, no more, over the next.

    ``close`` ends a connection that came second. Raises what the first address raised where none lets us in.
    """
    opened: list[T] = []
    errors: list[Exception] = []

    async def attempt(address: str, over: anyio.Event) -> None:
        try:
            connection = await connect(address)
        except Exception as error:  # noqa: BLE001  (whatever it is, another address may do)
            errors.append(error)
        else:
            opened.append(connection)
            attempts.cancel_scope.cancel()
        finally:
            over.set()

    try:
        async with anyio.create_task_group() as attempts:
            for address in addresses:
                attempts.start_soon(attempt, address, over := anyio.Event())
                with anyio.move_on_after(HEAD_START_S):
                    await over.wait()
    except BaseException:
        for connection in opened:
            await close(connection)
        raise
    for connection in opened[1:]:
        await close(connection)
    if not opened:
        # The group can take a cancellation from outside for its own, if both come at once: then nothing has failed.
        raise errors[0] if errors else asyncio.CancelledError
    return opened[0]


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


class EventLoopShare:
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

    def __init__(self, stream: httpcore.AsyncNetworkStream, floods: EventLoopShare) -> None:
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

    def __init__(self, floods: EventLoopShare | None = None) -> None:
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


# What h11 says of headers beyond its bound, which is 100 KiB; and OpenSSL of a server that speaks HTTP, or older words.
TOO_LONG = "Receive buffer too long"
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL", "HTTP_REQUEST", "NO_PROTOCOLS_AVAILABLE"})


def transport_error(error: httpx.RequestError, url: str) -> CloudError:
    """Return what a fault of the transport is to the user: its root tells."""
    root = _root_cause(error)
    said = to_one_line(_in_words(root)) or type(error).__name__
    if isinstance(root, ssl.SSLCertVerificationError):
        return TlsFailure(f"the certificate of {url} could not be verified: {root.verify_message}")
    if isinstance(root, ssl.SSLError) and root.reason in NO_TLS:
        return TlsFailure(f"{url} does not speak TLS as we do ({root.reason.replace('_', ' ').lower()})")
    if isinstance(error, httpx.ConnectError | httpx.ProxyError):
        return Unreachable(f"cannot reach {url}: {said}", sent=False, trouble="connect")
    if said == TOO_LONG:
        return BadReply(f"{url} answered with more than 100 KiB of headers")
    broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
    return Unreachable(f"the connection to {url} broke off: {said}", trouble="cut" if broken else None)


def _in_words(root: BaseException) -> object:
    """Return a fault in the system's words, without its number; asyncio's own name the address a second time."""
    if isinstance(root, ssl.SSLError) or not isinstance(root, OSError) or not root.errno:
        return root
    return root.strerror if isinstance(root, socket.gaierror) else os.strerror(root.errno)


def _root_cause(error: BaseException) -> BaseException:
    """Return the fault that an error comes from."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error
