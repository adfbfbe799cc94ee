"""A chat service over HTTP that counts what it charges, and tells whatever its kind says.

Written from the chat route's documents, by another hand than the client's; it must never import ``hybrid``. Its account
(``CountingChat.served``) is the truth: what was computed is charged, told or not, waited for or not.

    with CountingChat("honest", Tariff()) as cloud:
        ...  # ask cloud.url
        sum(each.nanousd for each in cloud.served)
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Self

from chat_kinds import KINDS, MISSING, Kind, Served, Tariff

MODEL = "counting-1"
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests"}


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


class CountingChat:
    """The service, on a port of its own, in a thread of its own."""

    def __init__(self, kind: Kind | str = "honest", tariff: Tariff | None = None, wait_s: float = 0.0):
        self.kind = KINDS[kind] if isinstance(kind, str) else kind
        self.tariff, self.wait_s = tariff or Tariff(), wait_s
        self.served: list[Served] = []  # what was computed
        self.turned_away: list[Served] = []  # what was not
        self.raw: list[tuple[str, Mapping[str, str], bytes]] = []
        self._cache: set[str] = set()
        self._lock, self._ready = threading.Lock(), threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def become(self, kind: Kind | str) -> None:
        """Answer otherwise from now on."""
        self.kind = KINDS[kind] if isinstance(kind, str) else kind

    @property
    def nanousd(self) -> int:
        """The truth: all that was charged."""
        return sum(each.nanousd for each in self.served)

    # ---- the thread ----

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30), "the service did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**24)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(incoming, outgoing):
                    pass
        finally:
            self._tasks.discard(task)
            outgoing.close()

    async def _exchange(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> bool:
        """Serve one request; return whether another may follow on this connection."""
        head = (await incoming.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, route, _ = head[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await incoming.readexactly(int(headers.get("content-length", 0)))
        self.raw.append((f"{method} {route}", headers, body))
        if (method, route) == ("GET", "/v1/models"):
            card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "counting"}
            return await self._whole(outgoing, 200, {"object": "list", "data": [card]})
        if (method, route) != ("POST", "/v1/chat/completions"):
            return await self._whole(outgoing, 404, {"error": {"message": f"no route {route}", "code": 404}})
        said = json.loads(body)
        if not said.get("messages"):
            return await self._whole(outgoing, 400, {"error": {"message": "messages must not be empty", "code": 400}})
        return await self._answer(said, headers, outgoing)

    # ---- one question ----

    async def _answer(self, said: dict[str, Any], headers: Mapping[str, str], outgoing: asyncio.StreamWriter) -> bool:
        kind, tried = self.kind, len(self.turned_away) + len(self.served)
        if tried < kind.resets:
            self.turned_away.append(Served(tried, said, headers))
            outgoing.transport.abort()
            return False
        if tried < len(kind.refuses):
            self.turned_away.append(Served(tried, said, headers))
            return await self._whole(outgoing, kind.refuses[tried], {"error": {"message": "slow down", "code": 429}})
        served = self._compute(kind, said, headers)
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        try:
            if said.get("stream"):
                return await self._stream(kind, served, outgoing)
            return await self._at_once(kind, served, outgoing)
        except ConnectionError:
            served.left = True
            raise

    def _compute(self, kind: Kind, said: dict[str, Any], headers: Mapping[str, str]) -> Served:
        """Charge a request in full: whoever hangs up pays for what was written by then, and for what runs ahead."""
        with self._lock:
            served = Served(len(self.served), said, headers)
            served.prompt = kind.prompt(said) * (served.choices if kind.prompt_per_choice else 1)
            self._look_up(kind, served)
            limit = served.limit // served.choices
            served.thoughts = min(kind.thoughts, limit) * served.choices
            served.completion = min(limit, kind.thoughts + kind.answer) * served.choices
            served.nanousd = self.tariff.nanousd(served.prompt, served.cached, served.written, served.completion)
            self.served.append(served)
        return served

    def _look_up(self, kind: Kind, served: Served) -> None:
        """The longest conversation that was read before is cached; what is read now is written, from a length on."""
        if kind.cache_from is None:
            return
        served.caches = True
        turns = served.body["messages"]
        keys = [json.dumps(turns[: end + 1]) for end in range(len(turns))]
        known = max((end + 1 for end, key in enumerate(keys) if key in self._cache), default=0)
        cached = kind.prompt(served.body, known) if known else 0
        served.cached = cached if cached >= kind.cache_from else 0
        if served.prompt >= kind.cache_from:
            served.written = served.prompt - served.cached
            self._cache.add(keys[-1])

    # ---- replies ----

    async def _whole(self, outgoing: asyncio.StreamWriter, status: int, body: Any) -> bool:
        sent = json.dumps(body).encode()
        more = "retry-after: 0\r\n" if status == 429 else ""
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'X')}\r\ncontent-type: application/json\r\n{more}"
        outgoing.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        await outgoing.drain()
        return True

    async def _at_once(self, kind: Kind, served: Served, outgoing: asyncio.StreamWriter) -> bool:
        each = (served.completion - served.thoughts) // served.choices
        texts = [kind.word * each] * served.choices
        choices = [
            {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for i, text in enumerate(texts)
        ]
        usage = kind.tell(served)
        body = {"id": f"chat-{served.number}", "object": "chat.completion", "created": 1, "model": MODEL}
        sent = json.dumps({**body, "choices": choices} | ({} if usage is MISSING else {"usage": usage})).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        if kind.ending == "reset":
            outgoing.transport.abort()
            return False
        if kind.ending == "error-event":
            return await self._whole(
                outgoing, 200, {"error": {"message": "failed", "type": "server_error", "code": 500}}
            )
        if kind.ending == "cut-json":
            sent = sent[: len(sent) // 2]
        outgoing.write(head + f"content-length: {len(sent)}\r\n\r\n".encode())
        if kind.ending == "no-body":
            await outgoing.drain()
            outgoing.transport.abort()
            return False
        if kind.ending == "cut":
            outgoing.write(sent[: len(sent) // 2])
            await outgoing.drain()
            outgoing.transport.abort()
            return False
        outgoing.write(sent)
        await outgoing.drain()
        served.deltas, served.told, served.whole = texts, usage, kind.ending == "whole"
        return True

    async def _stream(self, kind: Kind, served: Served, outgoing: asyncio.StreamWriter) -> bool:
        if kind.ending == "reset":
            outgoing.transport.abort()
            return False
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        outgoing.write(head.encode())
        await outgoing.drain()
        if kind.ending == "no-body":
            outgoing.transport.abort()
            return False
        async for part in self._events(kind, served):
            outgoing.write(part)
            await outgoing.drain()
        if kind.ending == "cut":
            outgoing.transport.abort()
            return False
        served.whole = kind.ending == "whole"
        return False  # the connection's end is the stream's

    async def _events(self, kind: Kind, served: Served) -> AsyncIterator[bytes]:
        body = {"id": f"chat-{served.number}", "object": "chat.completion.chunk", "created": 1, "model": MODEL}

        def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            return event({**body, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})

        each, half = (served.completion - served.thoughts) // served.choices, kind.ending != "whole"
        for index in range(served.choices):
            yield chunk(index, {"role": "assistant", "content": ""})
            left = each // 2 if half else each
            while left:
                taken = min(left, kind.per_delta)
                served.deltas.append(kind.word * taken)
                yield chunk(index, {"content": kind.word * taken})
                left -= taken
                await asyncio.sleep(0)
            if half:
                break
            yield chunk(index, {}, "length" if served.completion >= served.limit else "stop")
        if kind.ending == "error-event":
            yield event({"error": {"message": "failed", "type": "server_error", "code": 500}})
        elif kind.ending == "cut-json":
            yield b'data: {"id": "chat", "choices": [{"ind\n\n'
        elif not half:
            usage = kind.tell(served)
            if usage is not MISSING and (served.body.get("stream_options") or {}).get("include_usage"):
                served.told = usage
                yield event({**body, "choices": [], "usage": usage})
        if kind.ending != "cut":
            yield event(b"[DONE]")
