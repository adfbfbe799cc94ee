"""A caller of an ASGI application, written from the ASGI specification: it sends a request, hears, and may leave."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from hybrid.serve.app import make_app
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.monitor import Monitor

JSON = [(b"host", b"127.0.0.1:8088"), (b"content-type", b"application/json")]


class Opened:
    """A backend whose client is open."""

    def __init__(self, client):
        self.opened = client
        self.settings = client.settings

    async def client(self):
        return self.opened


@dataclass
class Heard:
    """What a caller heard by now."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    @property
    def data(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.data["error"]

    @property
    def events(self):
        """The server-sent events' data; "[DONE]" as it is, comments left out."""
        parts = [each for each in self.body.decode().split("\n\n") if each and not each.startswith(":")]
        assert all(part.startswith("data: ") for part in parts), parts
        told = [part.removeprefix("data: ") for part in parts]
        return [each if each == "[DONE]" else json.loads(each) for each in told]


class Endpoint:
    """An endpoint over a house of scripted models (``scripted_house.House``)."""

    def __init__(self, house, options: ServeOptions):
        self.house = house
        self.monitor = Monitor(options)
        self.app = make_app(AppState(Opened(house.client), options, self.monitor))

    async def ask(self, path, body=None, *, method="POST", headers=JSON, leave=None, parts=None, gone=None):
        """Ask and hear. ``leave``: of what was heard, whether to go. ``parts``: the body as it comes; None: no more."""
        heard, gone = Heard(), gone or asyncio.Event()
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        coming = list(parts if parts is not None else [raw])

        async def receive():
            if coming and coming[0] is not None:
                part = coming.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(coming)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                assert heard.status is None, "two starts"
                heard.status = message["status"]
                heard.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            else:
                assert heard.status is not None, "a body before its start"
                assert not heard.ended, "a part after the last"
                heard.body += message.get("body", b"")
                heard.ended = not message.get("more_body", False)
            if leave is not None and leave(heard):
                gone.set()

        if leave is not None and leave(heard):
            gone.set()
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
        scope |= {"scheme": "http", "headers": headers, "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8088)}
        await self.app(scope, receive, send)
        return heard

    async def chat(self, *, leave=None, gone=None, **fields):
        """Ask the chat route; what is not said is one user's message."""
        asked = {"model": "hybrid", "messages": [{"role": "user", "content": "a b c"}], "max_tokens": 12, **fields}
        return await self.ask("/v1/chat/completions", asked, leave=leave, gone=gone)
