"""Callers of an HTTP endpoint that no client library would let one be: silent, slow, too large, contradictory.

Plain sockets to 127.0.0.1, each with a deadline of its own. Knows RFC 9112 and OpenAI's shapes, nothing of the product.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
WAIT_S = 40.0


def local(text: str = "What is 2 + 3?", **more: Any) -> dict[str, Any]:
    """A question that no cloud is asked about."""
    return {"model": "hybrid:local", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


def relayed(text: str = "honest", **more: Any) -> dict[str, Any]:
    """A question that only the cloud's own chat route can answer."""
    return {"model": "hybrid", "messages": [{"role": "user", "content": text}], "tools": TOOLS, "max_tokens": 8, **more}


def request(body: bytes | dict[str, Any], *lines: str, length: int | None = None) -> bytes:
    """A POST to the chat route; ``length`` contradicts the body's own."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    head += [f"Content-Length: {len(raw) if length is None else length}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + raw


def connect(port: int, *, buffer: int | None = None, wait_s: float = WAIT_S) -> socket.socket:
    """A connection; ``buffer``: the bytes that the kernel may take before somebody reads."""
    there = socket.socket()
    there.settimeout(wait_s)
    if buffer is not None:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    there.connect(("127.0.0.1", port))
    return there


@dataclass(frozen=True)
class Answer:
    """What came back: ``status`` 0 where the connection ended without a response."""

    status: int
    head: str
    body: bytes
    seconds: float

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


def ask(port: int, body: bytes | dict[str, Any], *lines: str, wait_s: float = WAIT_S) -> Answer:
    """Send one request on a connection of its own and read to the connection's end."""
    began = time.monotonic()
    with connect(port, wait_s=wait_s) as there:
        with suppress(ConnectionError):
            there.sendall(request(body, "Connection: close", *lines))
        return read(there, began, wait_s)


def read(there: socket.socket, began: float, wait_s: float = WAIT_S) -> Answer:
    """Read to the connection's end, or for ``wait_s`` seconds."""
    raw = b""
    with suppress(OSError):
        while time.monotonic() - began < wait_s and (part := there.recv(1 << 16)):
            raw += part
    head, _, rest = raw.partition(b"\r\n\r\n")
    first = head.split(b" ", 2)
    status = int(first[1]) if len(first) > 1 and first[1].isdigit() else 0
    return Answer(status, head.decode("latin-1"), rest, time.monotonic() - began)


@contextmanager
def silent_readers(port: int, bodies: Sequence[dict[str, Any]]) -> Iterator[list[socket.socket]]:
    """Connections that have sent a request each and read nothing of what comes."""
    with ExitStack() as clean_up:
        held = []
        for body in bodies:
            there = clean_up.enter_context(connect(port, buffer=1024))
            there.sendall(request(body))
            held.append(there)
        yield held


@contextmanager
def silent_pages(port: int, num: int) -> Iterator[list[socket.socket]]:
    """Pages of the monitor that are open and read nothing."""
    with ExitStack() as clean_up:
        held = [clean_up.enter_context(connect(port, buffer=1024)) for _ in range(num)]
        for there in held:
            there.sendall(b"GET /monitor/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        yield held


def ended(held: Sequence[socket.socket]) -> int:
    """How many connections the other side has given up (reset, or closed and drained); reads what is there."""
    count = 0
    for there in held:
        there.setblocking(False)
        try:
            while there.recv(1 << 16):
                pass
            count += 1
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


def turns(num: int, text: str = "a") -> dict[str, Any]:
    """A conversation of small turns."""
    roles = ("user", "assistant")
    said = [{"role": roles[number % 2], "content": text} for number in range(num - 1)]
    return {"model": "hybrid:local", "messages": [*said, {"role": "user", "content": text}], "max_tokens": 8}
