"""HTTP. The only file that imports httpx: a method and a path in, JSON or server-sent events out, errors named.

Which exception a fault becomes decides what the user sees: ``CloudRefusal`` stops before any text, ``CloudFailure``
lets the local model answer. No message holds a key.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import SecretStr

from hybrid.errors import (
    AccessDenied,
    BadReply,
    CloudError,
    MissingCapability,
    ModelNotFound,
    NotAnApi,
    TlsFailure,
    Unreachable,
)

# Rows of an 8,000-token prompt at k = 20 are about 20 MB; nothing asked here is larger than a few times that.
MAX_REPLY_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Deadlines:
    """Seconds. ``read`` bounds the first byte and every gap between chunks, ``total`` a request from end to end."""

    connect: float = 5.0
    read: float = 20.0
    total: float = 120.0


class Wire:
    """A connection pool to one endpoint."""

    def __init__(self, url: str, api_key: SecretStr | None, deadlines: Deadlines) -> None:
        """Take the endpoint's base URL (with or without ``/v1``)."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._total = deadlines.total
        headers = {"authorization": f"Bearer {api_key.get_secret_value()}"} if api_key else {}
        timeout = httpx.Timeout(deadlines.read, connect=deadlines.connect)
        self._client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        """Name the endpoint, never the key."""
        return f"Wire({self.url})"

    async def get(self, path: str) -> Mapping[str, Any]:
        """GET a JSON object."""
        return await self._json("GET", path, None, {})

    async def post(self, path: str, body: Mapping[str, Any], request_id: str | None = None) -> Mapping[str, Any]:
        """POST a JSON object and read one back."""
        return await self._json("POST", path, body, {"x-request-id": request_id} if request_id else {})

    async def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: dict[str, str]
    ) -> Mapping[str, Any]:
        async with self._open(method, path, body, headers) as response:
            return _parse(await _read(response), self.url)

    async def stream(
        self, path: str, body: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """POST and yield the JSON of every server-sent event. Raises Unreachable if the stream ends before [DONE]."""
        async with self._open("POST", path, body, {"x-request-id": request_id}) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                msg = f"{self.url} answered a stream request with {response.headers.get('content-type')}"
                raise NotAnApi(msg)
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue  # comments keep the connection alive
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                yield _parse(data.encode(), self.url)
        msg = "the stream was cut before its end"
        raise Unreachable(msg)

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: dict[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Open a request, with every transport fault under one of our names."""
        try:
            async with asyncio.timeout(self._total), self._client.stream(method, path, json=body, headers=headers) as r:
                if r.is_error or r.is_redirect:
                    raise _refusal(r.status_code, await _read(r), self.url)
                yield r
        except (httpx.TimeoutException, TimeoutError) as error:
            msg = f"no answer from {self.url} in time"
            raise Unreachable(msg, sent=not isinstance(error, httpx.ConnectTimeout)) from error
        except httpx.TransportError as error:
            if isinstance(_root(error), ssl.SSLCertVerificationError):
                msg = f"the certificate of {self.url} could not be verified: {_root(error)}"
                raise TlsFailure(msg) from error
            msg = f"cannot reach {self.url}: {_root(error) or type(error).__name__}"
            raise Unreachable(msg, sent=not isinstance(error, httpx.ConnectError)) from error

    async def aclose(self) -> None:
        """Close the pool."""
        await self._client.aclose()


def _root(error: BaseException) -> BaseException:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_REPLY_BYTES:
            msg = f"the reply is larger than {MAX_REPLY_BYTES >> 20} MiB"
            raise BadReply(msg)
    return bytes(body)


def _parse(raw: bytes, url: str) -> Mapping[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:
        if raw.lstrip()[:1] == b"<":
            msg = f"{url} answered with a web page: this is not the address of a model endpoint"
            raise NotAnApi(msg) from error
        msg = f"{url} answered with something that is not JSON"
        raise BadReply(msg) from error
    if not isinstance(value, dict):
        msg = f"{url} answered with JSON that is not an object"
        raise BadReply(msg)
    return value


def _refusal(status: int, raw: bytes, url: str) -> CloudError:
    """Name what an error status means to the user."""
    try:
        error = json.loads(raw)["error"]
        detail = str(error["message"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        detail = "a web page" if raw.lstrip()[:1] == b"<" else ""
    said = f"{url} answered {status}" + (f": {detail}" if detail else "")
    if status in {401, 403}:
        return AccessDenied(f"{said} (--api-key-env names the variable that holds the key)")
    if status == 404:
        return NotAnApi(said) if detail in {"", "a web page", "Not Found"} else ModelNotFound(said)
    if status == 400 and "logprobs" in detail:
        return MissingCapability(said)
    if 300 <= status < 400:
        return NotAnApi(f"{said}, a redirect: give the final address")
    return Unreachable(said) if status >= 500 or status in {408, 409, 429} else BadReply(said)
