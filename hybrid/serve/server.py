"""Start, run and stop the endpoint: a port, a client that is opened meanwhile, and an end that loses nothing.

The routes answer while the weights are still being read. A first signal to end takes no new requests, gives answers
``GRACE_S``, then cancels and settles them; a second one does so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hybrid.ending_signals import ending_signals, handled
from hybrid.errors import UsageError
from hybrid.run import AsyncClient
from hybrid.serve.app import make_app
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.monitor import Monitor
from hybrid.settings.config import Settings
from hybrid.store.files import WINDOWS

GRACE_S = 5
# How long a request's line and headers may take: who sends them by drops holds a connection, and nothing else.
HEADER_WITHIN_S = 10.0
# Who takes less than this of what waits for it, in so long, is cut off: a relay or a context is held for it. A reader
# this slow would take half an hour for a long page.
SEND_WITHIN_S, SLOWEST_BYTES = 30.0, 16 * 1024
# What is asked for while all this many are busy is refused at once by the operating system.
BACKLOG = 256


class OpeningBackend:
    """The client, opened in a task of its own, and closed there: what it opens belongs to that task."""

    def __init__(self, opener: AbstractAsyncContextManager[AsyncClient], settings: Settings) -> None:
        """Take what opens it."""
        self._opener = opener
        self._settings = settings
        self._client: asyncio.Future[AsyncClient] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()

    @property
    def settings(self) -> Settings:
        """What the client is opened with."""
        return self._settings

    @property
    def opened(self) -> AsyncClient | None:
        """The client, if it is open by now."""
        done = self._client.done() and not self._client.cancelled() and self._client.exception() is None
        return self._client.result() if done else None

    async def client(self) -> AsyncClient:
        """Return the client once it is open. Raises why it cannot be."""
        return await asyncio.shield(self._client)

    async def hold(self) -> None:
        """Open the client, keep it open until ``close``, and close it. Raises what opening raises."""
        try:
            async with self._opener as client:
                self._client.set_result(client)
                await self._end.wait()
        except BaseException as error:
            if not self._client.done():
                self._client.set_exception(error if isinstance(error, Exception) else RuntimeError("closed"))
                self._client.exception()  # seen: whoever asks hears it, and nobody has to
            raise

    def close(self) -> None:
        """Have ``hold`` end."""
        self._end.set()


class BoundedHttp(H11Protocol):
    """uvicorn's HTTP, with deadlines that it has not: for a request's line and headers, and for who reads nothing.

    The law (``tests/serve/test_silent_readers.py``): a connection whose caller takes nothing for ``SEND_WITHIN_S`` is
    cut off, whatever is being sent and also once all was; to the answer its caller has left. Who reads slowly is not.
    """

    _late: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request; be told of every byte that the system does not take at once."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._wait()

    def pause_writing(self) -> None:
        """Begin to wait for the caller to read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Wait no more: all is sent."""
        self._stop_waiting_for_reader()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Read on; half a head, or a body after its answer, is waited for, but not longer for each drop."""
        super().data_received(data)
        unread = self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete
        if self.conn.their_state is h11.IDLE or unread:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        self._stop_waiting_for_reader()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End where nothing is under way; a request is under way once its body has come."""
        if self.cycle is not None and self.cycle.more_body and not self.cycle.response_started:
            self.transport.close()
        else:
            super().shutdown()

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEADER_WITHIN_S, self.transport.close)

    def _wait_for_reader(self) -> None:
        self._stop_waiting_for_reader()
        unread = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(SEND_WITHIN_S, self._cut_off_unless_read, unread)

    def _cut_off_unless_read(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() > unread - SLOWEST_BYTES:
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class Server(uvicorn.Server):
    """uvicorn's server, which is stopped from here and not by signals of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave signals alone."""
        yield

    async def settled(self) -> None:
        """Return once every request that was under way has ended."""
        tasks = set(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UsageError where the address is taken or not this machine's."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
    except OSError as error:
        msg = f"--host {host}: {error.strerror or error}"
        raise UsageError(msg) from None
    try:
        if not WINDOWS:  # there it lets two servers have one port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError as error:
        found.close()
        msg = f"cannot listen on {host}:{port}: {error.strerror or error}; another --port may be free"
        raise UsageError(msg) from None
    return found


Told = Callable[[AsyncClient], Awaitable[None]]


async def serve(
    opener: AbstractAsyncContextManager[AsyncClient],
    settings: Settings,
    options: ServeOptions,
    listening: socket.socket,
    monitor: Monitor,
    told: Told,
) -> None:
    """Serve until a signal comes. ``told``: called with the client once it is open. Raises why it cannot be opened."""
    for name in ("uvicorn.error", "asyncio"):  # their words are for their own users: a caller that left is no news
        logging.getLogger(name).setLevel(logging.CRITICAL)
    backend = OpeningBackend(opener, settings)
    app = make_app(AppState(backend, options, monitor))
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = Server(config)
    async with _signals(server, monitor):
        held, serving = asyncio.create_task(backend.hold()), asyncio.create_task(server.serve([listening]))
        opened = asyncio.create_task(_tell(backend, told))
        try:
            await asyncio.wait({held, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
            monitor.close()
            server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            await server.settled()
            backend.close()
            if backend.opened is None:
                held.cancel()
        await _passed_on(held)


async def _passed_on(held: asyncio.Task[None]) -> None:
    """Wait for the client's end; raise what it ended with, but not that it was given up while it was opened."""
    with contextlib.suppress(asyncio.CancelledError):
        await held


async def _tell(backend: OpeningBackend, told: Told) -> None:
    with contextlib.suppress(Exception):  # ``hold`` raises it where it is waited for
        await told(await backend.client())


@asynccontextmanager
async def _signals(server: Server, monitor: Monitor) -> AsyncGenerator[None, None]:
    """Have the first signal end the server gently, and the second at once.

    A terminal that is closed hangs up twice, once by its shell: the second time says nothing new. Where hanging up is
    ignored (``nohup``), it stays so.
    """
    loop = asyncio.get_running_loop()
    ours = {signal.SIGINT, signal.SIGTERM}
    ours |= {each for each in ending_signals() if signal.getsignal(each) is not signal.SIG_IGN}

    def end(number: int) -> None:
        monitor.close()
        if server.should_exit and signal.Signals(number).name != "SIGHUP":
            server.force_exit = True
            for task in server.server_state.tasks:
                task.cancel()
        server.should_exit = True

    def told(number: int, _: FrameType | None) -> None:
        loop.call_soon_threadsafe(end, number)

    with handled(ours, told):
        yield
