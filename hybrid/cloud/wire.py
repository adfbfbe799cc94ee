"""HTTP: a method and a path in, JSON or server-sent events out, errors named. The only file that speaks it.

Which exception a fault becomes decides what the user sees: ``CloudRefusal`` stops before any text, ``CloudFailure``
lets the local model answer. No message holds a key, a password or a control character. A connection pool to one
endpoint is a ``Wire``; ``tests/cloud/test_wire.py`` and ``test_epochs.py`` hold it against servers that misbehave.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache
from http.cookiejar import CookieJar
from typing import Any

import msgspec
from pydantic import SecretStr

from hybrid.cloud.bounds import (
    MAX_FACT_BYTES,
    MAX_REPLY_BYTES,
    MAX_ROWS_BYTES,
    EventReader,
    LineReader,
    QuestionDeadlines,
    Timeouts,
    parse,
)
from hybrid.cloud.network import EventLoopShare, Network, httpcore, httpx, transport_error
from hybrid.cloud.port import BeforeSend, unrecorded
from hybrid.cloud.statuses import read_retry_after, status_error
from hybrid.errors import BadReply, CloudError, NotAnApi, Unreachable, to_one_line

# What says why a request was turned away is a sentence; a longer one is a page, and its status says enough.
MAX_REASON_BYTES = 1024 * 1024
# How long the end of a body is waited for whose last event has come: a server sends it in the same breath.
END_WITHIN_S = 0.25
PLAIN = frozenset({"", "identity"})  # encodings of a body that are none
KEY_HINT = "--api-key-env names the variable that holds the key"
# Whoever asks bounds what is under way: a full pool would look like an endpoint that is away.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
# What servers are verified with: read once for the same values of its variables, since that takes 30 ms.
_tls = lru_cache(maxsize=1)(lambda *_values: httpx.create_ssl_context())


class ServerChanged(Exception):
    """The server may be another one than in the epoch a request was meant for; nothing of the request has left."""


class NoCookies(CookieJar):
    """A jar that takes nothing: behind one wire are many callers, and a cookie would tell one of them by another's."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Leave what a reply wants kept."""


class Wire:
    """A connection pool to one endpoint."""

    def __init__(
        self,
        url: str,
        api_key: SecretStr | None,
        deadlines: Timeouts,
        *,
        through_proxies: bool = True,
        key_hint: str = KEY_HINT,
        paced: bool = False,
    ) -> None:
        """Take the endpoint's base URL (with or without ``/v1``); ``through_proxies``: those of the environment.

        ``key_hint`` is what is said of the key where access is denied. ``paced``: a flood rests, since others wait.
        """
        base = url.rstrip("/").removesuffix("/v1")
        self._deadlines = deadlines
        self._key = api_key.get_secret_value() if api_key else None
        self._key_hint = key_hint
        self._client = httpx.AsyncClient(
            base_url=base,
            # Nothing is decoded: a few kilobytes of gzip may stand for gigabytes.
            headers={"accept-encoding": "identity"} | ({"authorization": f"Bearer {self._key}"} if self._key else {}),
            cookies=NoCookies(),
            limits=LIMITS,
            # ``QuestionDeadlines`` bounds all: httpx knows no first byte and no total, and connecting only in parts.
            timeout=None,
            verify=(tls := _tls(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))),
            # With a transport of our own, httpx leaves the environment's proxies alone.
            transport=None if through_proxies else httpx.AsyncHTTPTransport(verify=tls, limits=LIMITS),
        )
        every = (self._client._transport, *self._client._mounts.values())
        self._pools = [transport._pool for transport in every if isinstance(transport, httpx.AsyncHTTPTransport)]
        network = Network(EventLoopShare() if paced else None)
        for pool in self._pools:
            pool._network_backend = network
        self._changes = 0
        # What messages call the endpoint: without the user name and password a URL may hold.
        self.url = str(httpx.URL(base).copy_with(userinfo=b"", query=None, fragment=None))

    def __repr__(self) -> str:
        """Name the endpoint, never the key."""
        return f"Wire({self.url})"

    @property
    def epoch(self) -> int | None:
        """Name the time since the server may last have become another one; None where it may be another by now.

        It changes with every new connection, every 5xx and every 403. It has a name while one connection is open: with
        several, nobody knows which of them a request takes, and two may lead to two servers.
        """
        return self._changes if self.num_open == 1 else None

    @property
    def num_open(self) -> int:
        """Count the connections that are open, or about to be."""
        held = [each for pool in self._pools for each in pool.connections]
        return len([each for each in held if not (each.is_closed() or each.has_expired())])

    async def get(self, path: str) -> Any:
        """GET JSON."""
        return await self.post(path, None, most=MAX_FACT_BYTES)

    def question_deadlines(
        self, asked_at: float | None = None, before_send: BeforeSend = unrecorded
    ) -> QuestionDeadlines:
        """Return the deadlines of one question, for all its requests; see ``QuestionDeadlines``."""
        return QuestionDeadlines(self._deadlines, self.url, asked_at, before_send)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        request_id: str | None = None,
        shape: type | None = None,
        deadlines: QuestionDeadlines | None = None,
        most: int | None = None,
        only_in: int | None = None,
    ) -> Any:
        """POST a JSON object (None: GET) and read JSON; ``shape`` names the fields that are wanted and unread ones.

        ``most`` bytes are read (None: as many as rows take). With ``only_in`` it leaves in that epoch alone: raises
        ServerChanged where it would be another one.
        """
        if only_in is not None and self.epoch != only_in:
            raise ServerChanged
        deadlines = deadlines or self.question_deadlines()
        # Not httpx's own encoder: it takes 0.8 ms for 8,000 ids, and this one 0.04.
        sent = None if body is None else msgspec.json.encode(body)
        async with aclosing(await self._send(path, sent, request_id, deadlines, only_in)) as response:
            raw = await _read(response, deadlines, most or (MAX_ROWS_BYTES if shape else MAX_REPLY_BYTES))
        return parse(raw, self.url, shape)

    async def _send(
        self,
        path: str,
        body: bytes | None,
        request_id: str | None,
        deadlines: QuestionDeadlines,
        only_in: int | None = None,
    ) -> httpx.Response:
        """Send a POST, or a GET without a body; return its success, unread. Raises what any other answer means."""
        headers = {} if body is None else {"content-type": "application/json"}
        headers |= {"x-request-id": request_id} if request_id else {}
        request = self._client.build_request("GET" if body is None else "POST", path, content=body, headers=headers)
        connection: httpcore.AsyncNetworkStream | None = None

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            nonlocal connection
            if event.endswith(".connect_tcp.complete"):
                connection = info["return_value"]
                self._changes += 1
            # A proxy is asked for a tunnel before the request itself leaves.
            if event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT":
                connection = None
                epoch = self.epoch
                # The connection that was open has closed meanwhile, and this is another one.
                if only_in is not None and epoch != only_in:
                    raise ServerChanged
                await deadlines.mark_sent(epoch, len(request.content))

        request.extensions["trace"] = trace
        try:
            async with deadlines.bound("request"):
                response = await self._client.send(request, stream=True)
        except BaseException as error:
            if connection is not None:  # httpcore closes none whose TLS was given up
                await connection.aclose()
            if isinstance(error, httpx.TransportError):
                raise transport_error(error, self.url) from error
            raise
        coding = response.headers.get("content-encoding", "").strip().lower()
        if response.is_success and coding in PLAIN:
            return response
        async with aclosing(response):
            raise await self._refusal(response, coding, deadlines)

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        request_id: str,
        deadlines: QuestionDeadlines | None = None,
        *,
        lines: bool = False,
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """POST and yield the JSON of every server-sent event, or of every line.

        Raises Unreachable if the stream ends before [DONE]. Where there is none, the reader stops at the event that
        says it is the last.
        """
        deadlines, sent = deadlines or self.question_deadlines(), msgspec.json.encode(body)
        async with aclosing(await self._send(path, sent, request_id, deadlines)) as response:
            if ("json" if lines else "text/event-stream") not in response.headers.get("content-type", "").lower():
                # A page, a bad day, or a server that does not stream? What it sends tells.
                parse(await _read(response, deadlines, MAX_REPLY_BYTES), self.url)
                told = to_one_line(response.headers.get("content-type"))
                msg = f"{self.url} answered a stream request with {told}"
                raise NotAnApi(msg)
            reader = LineReader() if lines else EventReader()
            async with aclosing(_events(response, deadlines, reader, "its end")) as found:
                async for data in found:
                    if data.strip():  # what is empty keeps the connection alive
                        yield parse(data, self.url)

    async def open_raw(self, path: str, body: bytes, request_id: str, deadlines: QuestionDeadlines) -> RawReply:
        """POST a JSON body as it is; return its success, whose body is read by the caller, who closes it."""
        return RawReply(await self._send(path, body, request_id, deadlines), deadlines, self._key)

    def hide_key(self, error: CloudError) -> None:
        """Blot the key out of an error: some servers repeat it."""
        if self._key:
            error.args = (str(error).replace(self._key, "[the key]"),)

    async def _refusal(self, response: httpx.Response, coding: str, deadlines: QuestionDeadlines) -> CloudError:
        """Return what another status than a success means to the user, or a body in an encoding."""
        raw = bytearray()
        if response.is_success:
            msg = f"{self.url} answered in the encoding {to_one_line(coding)}: it was asked for none, and none is read"
            return NotAnApi(msg)
        if coding in PLAIN:
            with suppress(BadReply):  # too long for a reason
                raw = await _read(response, deadlines, MAX_REASON_BYTES)
        status = response.status_code
        try:
            error = json.loads(raw)["error"]
            detail = to_one_line(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError, RecursionError):
            detail = "a web page" if raw.lstrip()[:1] == b"<" else ""
        if self._key:
            detail = detail.replace(self._key, "[the key]")
        request = response.request
        why = f": {detail}" if detail else f" to {request.method} {request.url.path}"  # where no reason is given
        said = f"{self.url} answered {status}{why}"
        if status == 403 or status >= 500:
            self._changes += 1
        refusal = status_error(status, said, detail, self._key_hint, read_retry_after(response.headers))
        refusal.status = status
        return refusal

    async def aclose(self) -> None:
        """Close the pool."""
        await self._client.aclose()


class RawReply:
    """A success whose body is handed on as it came: nothing is taken out of it but our key, which some servers repeat.

    ``content_type`` and ``request_id`` are all that is told of its headers.
    """

    def __init__(self, response: httpx.Response, deadlines: QuestionDeadlines, key: str | None) -> None:
        """Take a reply whose body is unread."""
        self._response, self._deadlines = response, deadlines
        self._key = (key or "").encode()
        self.content_type = self._header("content-type")
        self.request_id = self._header("x-request-id") or None

    @property
    def streams(self) -> bool:
        """Whether the body is server-sent events."""
        return "text/event-stream" in self.content_type.lower()

    async def whole(self) -> bytes:
        """Return the body. Raises CloudError."""
        return self._without_key(bytes(await _read(self._response, self._deadlines, MAX_REPLY_BYTES)))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the data of every event up to [DONE], which is not told. Raises Unreachable if none comes."""
        async with aclosing(_events(self._response, self._deadlines, EventReader(), "its last event")) as told:
            async for data in told:
                with self._deadlines.pause():
                    yield self._without_key(data)

    async def aclose(self) -> None:
        """Close the request; where its body was not read to the end, the connection too."""
        await self._response.aclose()

    def _header(self, name: str) -> str:
        told = to_one_line(self._response.headers.get(name, ""))
        return told.replace(self._key.decode(), "[the key]") if self._key else told

    def _without_key(self, body: bytes) -> bytes:
        return body.replace(self._key, b"[the key]") if self._key else body


async def _parts(response: httpx.Response, deadlines: QuestionDeadlines) -> AsyncGenerator[bytes, None]:
    """Yield a body as it comes. No deadline is held across a yield: it would cancel whoever reads."""
    parts = response.aiter_raw()
    while True:
        try:
            async with deadlines.bound("body"):
                part = await anext(parts, None)
        except httpx.TransportError as error:
            raise transport_error(error, deadlines.url) from error
        if part is None:
            return
        yield part


async def _read(response: httpx.Response, deadlines: QuestionDeadlines, most: int) -> bytearray:
    body = bytearray()
    async with aclosing(_parts(response, deadlines)) as parts:
        async for part in parts:
            body += part
            if len(body) > most:
                msg = f"the reply is larger than {most >> 20} MiB"
                raise BadReply(msg)
    return body


async def _events(
    response: httpx.Response, deadlines: QuestionDeadlines, reader: LineReader | EventReader, end: str
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream up to [DONE]. Raises Unreachable, cut before its ``end``, where there is none.

    Behind [DONE] it is read to its end, so that its connection can be used again; one that goes on is left.
    """
    async with aclosing(_all_events(response, deadlines, reader)) as events:
        async for data in events:
            if data.strip() == b"[DONE]":
                with suppress(TimeoutError, CloudError):
                    async with asyncio.timeout(END_WITHIN_S):
                        await anext(events, None)
                return
            yield data
    msg = f"the stream was cut before {end}"
    raise Unreachable(msg, trouble="cut")


async def _all_events(
    response: httpx.Response, deadlines: QuestionDeadlines, reader: LineReader | EventReader
) -> AsyncGenerator[bytes, None]:
    """Yield what ``reader`` finds in a stream, which may not be endless."""
    total = 0
    async with aclosing(_parts(response, deadlines)) as parts:
        async for part in parts:
            total += len(part)
            if total > MAX_ROWS_BYTES:
                msg = "the stream does not end"
                raise BadReply(msg)
            for event in reader.feed(part):
                yield event
