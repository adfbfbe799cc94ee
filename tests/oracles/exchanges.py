"""What a client and a real server said to each other: kept as a file, and said again to a test.

A recording stands before the server and passes everything on; a replay stands in its place. Both listen on a port of
the loopback, so that a test goes through the client's own wire. A request that was never recorded is answered with 418
and kept in ``unknown``: the client has changed what it asks, and ``tests/end_to_end/record_servers.py`` must be run
again.

Only what a clock, a counter or a machine says is left out (``settled``).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

RECORDED = Path(__file__).parent.parent / "cloud" / "recorded" / "servers"
# What differs each time, by its key; and in the middle of a sentence, the address of whoever answered.
VOLATILE = {"created": 0, "id": "id", "request_id": "id", "system_fingerprint": "", "e2e_latency": 0.0}
VOLATILE |= {"response_sent_to_client_ts": 0.0, "model_path": "large", "tokenizer_path": "large", "root": "large"}
HOST = re.compile(r"(127\.0\.0\.1|localhost):\d+")


def settled(told: Any) -> Any:
    """Return what was told, without what differs each time."""
    if isinstance(told, dict):
        # A model's own id is its name.
        named = told.get("object") == "model"
        return {
            key: value if key not in VOLATILE or (named and key == "id") else VOLATILE[key]
            for key, value in ((key, settled(value)) for key, value in told.items())
        }
    if isinstance(told, list):
        return [settled(value) for value in told]
    return HOST.sub("host", told) if isinstance(told, str) else told


class Exchanges:
    """Requests with their replies, in the order in which they were asked. ``source`` names the server."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.unknown: list[str] = []
        self.asked: list[dict[str, Any]] = []  # what a replay was asked, in order
        self._replies: dict[str, list[dict[str, Any]]] = {}
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, name: str) -> Exchanges:
        """Read a file of ``recorded/servers``."""
        kept = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        found = cls(kept["source"])
        for exchange in kept["exchanges"]:
            found.add(exchange)
        return found

    def add(self, exchange: dict[str, Any]) -> None:
        """Keep an exchange, unless the same question got the same answer just before."""
        with self._lock:
            replies = self._replies.setdefault(_key(exchange["path"], exchange["body"]), [])
            if exchange not in replies[-1:]:
                replies.append(exchange)

    def save(self, name: str) -> None:
        """Write the file, an exchange a line."""
        lines = [json.dumps(one, separators=(",", ":")) for replies in self._replies.values() for one in replies]
        kept = f'{{"source":{json.dumps(self.source)},"exchanges":[\n' + ",\n".join(sorted(lines)) + "\n]}\n"
        RECORDED.mkdir(parents=True, exist_ok=True)
        (RECORDED / f"{name}.json").write_text(kept, encoding="utf-8")

    def answer(self, path: str, body: Any) -> dict[str, Any]:
        """Return the reply to a request: the next one where it was asked more than once, the last one for ever."""
        key = _key(path, body)
        with self._lock:
            replies, turn = self._replies.get(key), self._turns.get(key, 0)
            if replies is None:
                self.unknown.append(key)
                return {"path": path, "body": body, "status": 418, "type": "application/json", "reply": {}}
            self._turns[key] = turn + 1
            found = replies[min(turn, len(replies) - 1)]
            self.asked.append(found)
            return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every exchange."""
        return (one for replies in self._replies.values() for one in replies)


def _key(path: str, body: Any) -> str:
    return f"{path} {json.dumps(body, sort_keys=True)}"


def bytes_of(exchange: dict[str, Any]) -> bytes:
    """Return a reply as it goes over the wire."""
    if "events" not in exchange:
        return json.dumps(exchange["reply"]).encode()
    return "".join(f"data: {e if e == '[DONE]' else json.dumps(e)}\n\n" for e in exchange["events"]).encode()


def _read(path: str, body: Any, reply: httpx.Response) -> dict[str, Any]:
    """Take apart what a server sent."""
    kind = reply.headers.get("content-type", "").partition(";")[0]
    known = {"path": path, "body": body, "status": reply.status_code, "type": kind}
    if kind != "text/event-stream":
        return known | {"reply": settled(reply.json())}
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return known | {"events": [e if e == "[DONE]" else settled(json.loads(e)) for e in events]}


@contextmanager
def recording(exchanges: Exchanges, upstream: str) -> Iterator[str]:
    """Pass on what is asked, keep what is answered; the address."""

    def forward(path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        reply = httpx.request(method, upstream + path, json=body, headers=headers, timeout=120, trust_env=False)
        exchange = _read(path, body, reply)
        exchanges.add(exchange)
        return exchange

    with _listening(forward) as url:
        yield url


@contextmanager
def replaying(exchanges: Exchanges) -> Iterator[str]:
    """Answer as was recorded; the address."""
    with _listening(lambda path, body, _: exchanges.answer(path, body)) as url:
        yield url


@contextmanager
def _listening(answer: Any) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def serve(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
            kept = {k: v for k, v in self.headers.items() if k.lower() in {"authorization", "x-request-id"}}
            exchange = answer(self.path, json.loads(sent) if self.command == "POST" else None, kept)
            told = bytes_of(exchange)
            self.send_response(exchange["status"])
            self.send_header("content-type", exchange["type"])
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = serve  # noqa: N815  (http.server looks these names up)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
