"""A server of raw bytes: sockets and no HTTP library, so that it can say what no library would.

    with RawServer("gzip-bomb-twice") as server:
        ...  # ask server.url
        server.visits[-1].sent, server.visits[-1].seconds

Discovery (every GET, ``/tokenize``) is answered sanely, unless ``everywhere``; any other POST gets the named body of
``BODIES``. The sane replies are ``counting_cloud``'s, over its table. By another hand than the client: this file must
never import ``hybrid`` or ``server_stub``. As a program: ``python raw_server.py BODY [PORT]`` prints its address first.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from counted_account import Account, Manner
from counted_model import TableModel
from counting_cloud import App
from raw_bodies import READABLE, End, Sane, Step
from raw_framing import BODIES

__all__ = ["BODIES", "READABLE", "RawServer", "Visit"]

# Nothing goes on for longer, whoever listens: a test that fails must end.
LIMIT_S, LIMIT_BYTES = 100.0, 4 << 30
SEND_BUFFER = 1 << 16  # small, so that what was sent is nearly what was taken


@dataclass
class Visit:
    """One request as it was answered. ``sent``: bytes the kernel took. ``ended_by``: "client", "server" or "limit"."""

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    sent: int = 0
    seconds: float = 0.0
    ended_by: str | None = None


class Gone(Exception):
    """The client has closed."""


@dataclass
class Connection:
    """One connection: requests are read, scripts are played, what the client does meanwhile is noticed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    started: float = field(default_factory=time.monotonic)

    async def request(self) -> tuple[str, str, dict[str, str], bytes]:
        """Method, path, headers (names in lower case) and body of the next request."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = [line.partition(":") for line in lines if line]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return method, path, headers, await self.reader.readexactly(int(headers.get("content-length", "0")))

    @property
    def gone(self) -> bool:
        """Whether the client has closed; nothing is read for it, since the next request may be coming."""
        return self.reader.at_eof() or self.reader.exception() is not None or self.writer.transport.is_closing()

    async def play(self, steps: Iterator[Step], visit: Visit) -> End | None:
        """Send a script; return how it ends. Raise Gone as soon as the client closes."""
        for step in steps:
            if time.monotonic() - self.started > LIMIT_S or visit.sent > LIMIT_BYTES:
                visit.ended_by = "limit"
                return None
            if isinstance(step, bytes):
                await self._send(step, visit)
            elif isinstance(step, float):
                await self._wait(step)
            elif step is End.HANG:
                await self._wait(LIMIT_S)
            else:
                return step
            if self.gone:
                raise Gone
        return None

    async def _send(self, step: bytes, visit: Visit) -> None:
        for at in range(0, len(step), SEND_BUFFER):
            part = step[at : at + SEND_BUFFER]
            self.writer.write(part)
            try:
                await self.writer.drain()
            finally:
                visit.sent += len(part) - self.writer.transport.get_write_buffer_size()
            await asyncio.sleep(0)  # others, and the news that the client has closed, get their turn
            if self.gone:
                return

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.gone and time.monotonic() < until:  # noqa: ASYNC110  (an end is told to readers only)
            await asyncio.sleep(min(0.01, seconds))

    def reset(self) -> None:
        raw = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class RawServer:
    """A running one, in a thread of its own. ``body`` may be changed at any time."""

    def __init__(self, body: str = "sane", *, everywhere: bool = False, port: int = 0):
        assert body in BODIES, f"no body {body!r}"
        self.body, self.everywhere = body, everywhere
        self.visits: list[Visit] = []
        self._app = App(TableModel(), Account("0/0/0"), Manner())
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)
        self._loop.close()
        self._app.model.close()

    @property
    def attacks(self) -> list[Visit]:
        """The visits that were answered with a named body, not sanely."""
        return [visit for visit in self.visits if visit.name]

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._converse, sock=self._socket)
        await self._stopping.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        writer.transport.set_write_buffer_limits(0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        try:
            while await self._visit(connection):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _visit(self, connection: Connection) -> bool:
        """Answer one request; return whether the connection waits for another."""
        method, path, headers, body = await connection.request()
        attacked = self.everywhere or (method == "POST" and "tokenize" not in path)
        name = self.body if attacked else ""
        visit = Visit(name, method, path, headers, body)
        self.visits.append(visit)
        started = time.monotonic()
        try:
            sane = await self._sane(method, path, body)
            end = await connection.play(BODIES[name or "sane"](sane), visit)
            visit.ended_by = visit.ended_by or "server"
        except (Gone, OSError):
            visit.ended_by, end = "client", None
        finally:
            visit.seconds = time.monotonic() - started
        if end is End.RESET:
            connection.reset()
        return end is End.KEEP

    async def _sane(self, method: str, path: str, body: bytes) -> Sane:
        """What the cloud that counts would answer."""
        sent: list[dict] = []
        asked = [{"type": "http.request", "body": body}]

        async def receive() -> dict:
            if asked:
                return asked.pop()
            return await asyncio.get_running_loop().create_future()  # never: the client stays

        async def send(message: dict) -> None:
            sent.append(message)

        await self._app({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
        kind = dict(sent[0]["headers"])[b"content-type"].decode()
        return Sane(sent[0]["status"], kind, b"".join(each["body"] for each in sent[1:]), self.url + path)


if __name__ == "__main__":
    with RawServer(sys.argv[1], port=int((sys.argv[2:] or ["0"])[0])) as running, suppress(KeyboardInterrupt):
        print(running.url, flush=True)
        threading.Event().wait()
