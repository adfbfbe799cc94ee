"""A chat route that answers by a script, over real sockets, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
WHOLE = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}}], "usage": USAGE}
CUT = "cut"
STAY = "stay"


def event(data):
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(text, **more):
    return event({"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more})


STREAM = [delta("a", usage=None), b": ping\n\n", delta("b"), event({"id": "x", "choices": [], "usage": USAGE})]
DONE = event(b"[DONE]")


@dataclass
class Script:
    """One reply: its status, headers and parts. ``CUT`` ends the connection, ``STAY`` waits until the caller leaves."""

    status: int = 200
    parts: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    wait_s: float = 0.0

    @classmethod
    def whole(cls, body=WHOLE, status=200, **headers):
        return cls(status, [json.dumps(body).encode()], {"content-type": "application/json", **headers})

    @classmethod
    def stream(cls, parts=(*STREAM, DONE), **headers):
        return cls(200, [*parts], {"content-type": "text/event-stream", "x-request-id": "up-1", **headers})


@dataclass
class Upstream:
    """What stands behind the address. ``scripts`` are taken in order, the last one again and again."""

    scripts: list
    url: str = ""
    requests: list = field(default_factory=list)
    left: list = field(default_factory=list)
    serving: set = field(default_factory=set)

    @property
    def bodies(self):
        return [json.loads(body) for _, _, body in self.requests]

    async def serve(self, incoming, outgoing):
        self.serving.add(asyncio.current_task())
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(incoming, outgoing)
        finally:
            outgoing.close()
            with suppress(ConnectionError):
                await outgoing.wait_closed()

    async def _answer(self, incoming, outgoing):
        head = (await incoming.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await incoming.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((head[0].split()[1], headers, body))
        found = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
        script = found(json.loads(body)) if callable(found) else found
        await asyncio.sleep(script.wait_s)
        told = "".join(f"{name}: {value}\r\n" for name, value in script.headers.items())
        outgoing.write(f"HTTP/1.1 {script.status} X\r\n{told}connection: close\r\n\r\n".encode())
        for part in script.parts:
            if part == CUT:
                outgoing.transport.abort()
                return
            if part == STAY:
                await incoming.read()  # returns once the caller has closed
                self.left.append(len(self.requests))
                return
            if isinstance(part, float):
                await asyncio.sleep(part)
                continue
            outgoing.write(part)
            await outgoing.drain()


@asynccontextmanager
async def upstream(*scripts):
    """Serve these on a port of its own."""
    found = Upstream([*scripts])
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0, limit=2**20)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in found.serving:
            task.cancel()
        await asyncio.gather(*found.serving, return_exceptions=True)
