"""A chat service that lies: a server of raw bytes whose question names the lie, ``{"content": "status-700"}``.

    with LyingUpstream() as there:
        ...  # relay to there.url
        there.requests[-1].names

Written from RFC 9112 (HTTP/1.1), RFC 6265 (cookies) and OpenAI's published shapes. It never imports ``hybrid``. Nothing
it says goes on for longer than ``LIMIT_S`` or ``LIMIT_BYTES``.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

LIMIT_S, LIMIT_BYTES = 60.0, 400 << 20
Step = bytes | float

USAGE: dict[str, Any] = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


@dataclass(frozen=True)
class Question:
    """One request as it came."""

    names: tuple[str, ...]
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def lie(self) -> str:
        messages = self.body.get("messages") or [{}]
        return str(messages[-1].get("content"))

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


def whole(usage: Any = None, text: str = "ab") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage or USAGE}).encode()


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def delta(text: str) -> bytes:
    return event({"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def last(usage: Any = None) -> bytes:
    raw = usage if isinstance(usage, bytes) else json.dumps(usage or USAGE).encode()
    return event(b'{"id": "x", "choices": [], "usage": ' + raw + b"}")


DONE = event(b"[DONE]")


def head(status: str = "200 OK", *lines: str, streamed: bool = False, length: int | str | None = None) -> bytes:
    kind = "text/event-stream" if streamed else "application/json"
    sized = [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", *sized, *lines, "", ""]).encode("latin-1")


def sane(asked: Question, *lines: str, status: str = "200 OK", usage: Any = None) -> Iterator[Step]:
    """An honest answer, with what else is said in its head."""
    if asked.streamed:
        yield head(status, "Connection: close", *lines, streamed=True)
        yield delta("a") + delta("b") + last(usage) + DONE
    else:
        body = whole(usage) if not isinstance(usage, bytes) else whole().replace(json.dumps(USAGE).encode(), usage)
        yield head(status, "Connection: close", *lines, length=len(body)) + body


def endless(first: bytes, part: bytes) -> Callable[[Question], Iterator[Step]]:
    def lie(_: Question) -> Iterator[Step]:
        yield first
        sent = 0
        while sent < LIMIT_BYTES:
            yield part
            sent += len(part)

    return lie


def fixed(raw: bytes, *then: Step) -> Callable[[Question], Iterator[Step]]:
    return lambda _: iter((raw, *then))


def with_status(status: str) -> Callable[[Question], Iterator[Step]]:
    return lambda asked: sane(asked, status=status)


def with_usage(raw: bytes) -> Callable[[Question], Iterator[Step]]:
    return lambda asked: sane(asked, usage=raw)


def error(status: str, body: bytes, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


BIG = b"x" * (1 << 16)
STATUSES = (
    "700 Odd",
    "999 Odd",
    "600 Odd",
    "199 Odd",
    "099 Odd",
    "000 Odd",
    "101 Switching Protocols",
    "2000 Odd",
    "abc",
)
USAGES = (
    b'{"prompt_tokens": -5, "completion_tokens": -1, "total_tokens": -6}',
    b'{"prompt_tokens": 1e308, "completion_tokens": 1e400}',
    b'{"prompt_tokens": NaN, "completion_tokens": Infinity}',
    b'{"prompt_tokens": "many", "completion_tokens": null}',
    b'{"prompt_tokens": true, "completion_tokens": [3]}',
    b'{"prompt_tokens": 1180591620717411303424, "completion_tokens": 3}',
    b'{"prompt_tokens": ' + b"9" * 6000 + b', "completion_tokens": 3}',
    b'{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}',
    b'{"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 10000000}}',
    b'{"prompt_tokens": 12, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": {"a": []}}}',
    b'[["usage"]]',
    b'"usage"',
    b"[" * 100_000 + b"]" * 100_000,
    b'{"prompt_tokens": 12, "prompt_tokens": 99999999999, "completion_tokens": 3}',
)


def _chunked(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + body


LIES: dict[str, Callable[[Question], Iterator[Step]]] = {
    "honest": sane,
    **{f"status-{status.split()[0]}": with_status(status) for status in STATUSES},
    **{f"usage-{number}": with_usage(raw) for number, raw in enumerate(USAGES)},
    "204-with-a-body": fixed(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"),
    "205-with-a-body": fixed(b"HTTP/1.1 205 Reset Content\r\nContent-Length: 5\r\n\r\nhello"),
    "304-with-a-body": fixed(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\nhello"),
    "redirect": fixed(b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"),
    "length-too-short": fixed(head(length=10) + whole()),
    "length-too-long": fixed(head(length=10**6) + whole()),
    "length-too-long-and-open": fixed(head(length=10**6) + whole(), 30.0),
    "length-negative": fixed(head(length=-1) + whole()),
    "length-no-number": fixed(head(length="ten") + whole()),
    "length-huge": fixed(head(length=10**30) + whole()),
    "length-twice": fixed(head("200 OK", "Content-Length: 7", length=9) + whole()),
    "length-beside-chunks": fixed(head("200 OK", "Transfer-Encoding: chunked", length=9) + b"3\r\nabc\r\n0\r\n\r\n"),
    "chunk-no-number": fixed(_chunked(b"zz\r\nabc\r\n0\r\n\r\n")),
    "chunk-huge": fixed(_chunked(b"f" * 16 + b"\r\n" + whole())),
    "chunk-extension-endless": endless(_chunked(b"3;a="), BIG),
    "endless-events": endless(head(streamed=True), delta("word ") * 400),
    "endless-large-events": endless(head(streamed=True), delta("word " * 12_000)),
    "endless-event": endless(head(streamed=True) + b'data: {"a": "', BIG),
    "endless-comments": endless(head(streamed=True), b": ping\n\n" * 8000),
    "endless-body": endless(head() + b'{"a": "', BIG),
    "endless-header": endless(b"HTTP/1.1 200 OK\r\nX-A: ", BIG),
    "endless-headers": endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 4000),
    "endless-100-continue": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    "endless-status-line": endless(b"HTTP/1.1 200 ", BIG),
    "headers-1-MB": fixed(head("200 OK", *(f"X-{n}: {'v' * 1000}" for n in range(1000)), length=2) + b"{}"),
    "content-type-60-KB": fixed(
        b"HTTP/1.1 200 OK\r\nContent-Type: a/" + b"b" * 60_000 + b"\r\nContent-Length: 2\r\n\r\n{}"
    ),
    "content-type-odd": fixed(
        "HTTP/1.1 200 OK\r\nContent-Type: téxt/\x01\r\nContent-Length: 2\r\n\r\n{}".encode("latin-1")
    ),
    "request-id-60-KB": lambda asked: sane(asked, "X-Request-Id: " + "i" * 60_000),
    "cookie": lambda asked: sane(asked, f"Set-Cookie: c{time.monotonic_ns()}={'v' * 4000}; Path=/"),
    "cookies-32": lambda asked: sane(asked, *(f"Set-Cookie: d{time.monotonic_ns()}{n}=vv; Path=/" for n in range(32))),
    "no-route-json": fixed(error("404 Not Found", b'{"detail": "Not Found"}')),
    "no-route-page": fixed(error("404 Not Found", b"<html><h1>404</h1></html>", "text/html")),
    "no-method": fixed(error("405 Method Not Allowed", b"")),
    "error-deep": fixed(error("400 Bad Request", b"[" * 200_000)),
    "error-surrogate": fixed(
        error("400 Bad Request", b'{"error": {"message": "\\ud800", "code": "\\udfff", "type": 7}}')
    ),
    "error-8-MB": fixed(error("400 Bad Request", json.dumps({"error": {"message": "m" * (8 << 20)}}).encode())),
    "error-not-utf-8": fixed(error("400 Bad Request", b'{"error": {"message": "\xff\xfe"}}')),
    "error-in-success": fixed(error("200 OK", b'{"error": {"message": "no", "code": 429}}')),
    "deep": fixed(error("200 OK", b"[" * 2_000_000)),
    "deep-objects": fixed(error("200 OK", b'{"a":' * 1_000_000)),
    "no-json": fixed(error("200 OK", b"hello")),
    "nothing": fixed(b""),
    "empty": fixed(error("200 OK", b"")),
    "silent-2-s": fixed(b"", 2.0),
    "gzip": fixed(head("200 OK", "Content-Encoding: gzip", length=4) + b"\x1f\x8b\x08\x00"),
    "surrogates": fixed(error("200 OK", whole().replace(b"ab", b"\\ud800"))),
    "not-utf-8": fixed(error("200 OK", whole().replace(b"ab", b"\xff\xfe"))),
    "event-9-MB": fixed(head(streamed=True) + delta("x" * (9 << 20)) + last() + DONE),
    "after-done": fixed(head(streamed=True) + delta("a") + last() + DONE + delta("late") + last(USAGE)),
    "event-no-json": fixed(head(streamed=True) + event(b"{nope") + event(b"[" * 100_000) + last() + DONE),
    "cut-stream": fixed(head(streamed=True, length=10**6) + delta("a")),
    "garbage": fixed(bytes(range(256)) * 100),
    "http-0.9": fixed(whole()),
    "http-2": fixed(b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
}


class LyingUpstream:
    """One server on a port of 127.0.0.1. ``requests``: all that came, discovery too. ``open``: those under way."""

    def __init__(self, slowly: float = 0.0) -> None:
        self.requests: list[Question] = []
        self.open, self._slowly = 0, slowly
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0, limit=16 << 20)
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        def stop() -> None:
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.05, self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(5)
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            names = tuple(line.partition(":")[0].lower() for line in lines[1:] if line)
            sizes = [line for line in lines if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(sizes[0].split(":")[1])) if sizes else b""
            self.requests.append(asked := Question(names, json.loads(body) if body else {}))
            self.open += 1
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._answer(asked, lines[0], writer)
            finally:
                self.open -= 1
        writer.close()

    async def _answer(self, asked: Question, first: str, writer: asyncio.StreamWriter) -> None:
        if first.startswith("GET"):
            models = json.dumps({"object": "list", "data": [{"id": "large-1", "object": "model"}]}).encode()
            steps: Iterator[Step] = fixed(
                head("200 OK", "Set-Cookie: seen=1", "Connection: close", length=len(models)) + models
            )(asked)
        else:
            steps = LIES.get(asked.lie, sane)(asked)
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                writer.write(step)
                await writer.drain()
                await asyncio.sleep(self._slowly)
