"""Whom the endpoint answers: seen before a body is read, and before any route.

The order: a request id; how the request is framed; Host (a page of another site whose name was pointed at this
machine is refused: DNS rebinding); Origin (a page of another site may not ask, and is told nothing by CORS); the key,
compared in constant time; for a POST the type, the length, how long its body takes, and what all bodies under way
take together. Plain ASGI: Starlette's own base for middleware hides that a caller has left. The laws:
``tests/serve/test_guard.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hybrid.errors import UsageError
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.body import SHORT, BodyShare, BodyTotal
from hybrid.serve.errors import ApiError

# Who may see the monitor where the endpoint has a key: whoever opens the URL that the start prints, once.
#
# A browser cannot show a key when it opens a page, and a key in a URL would stay in its history. So the start prints a
# URL with a token that is good once; it is exchanged for a cookie, which scripts cannot read (HttpOnly), other sites
# cannot use (SameSite=Strict), and which opens the page and its events and nothing else. Laws
# (``tests/serve/test_monitor.py``): a token is good once; everything is compared in constant time; what is kept is no
# token and no cookie, but their hashes.

# As many browsers as one person opens; the oldest is forgotten.
MOST_COOKIES = 16


class PageKey:
    """One server's tokens and cookies."""

    def __init__(self) -> None:
        """Nobody was let in yet."""
        self._token: bytes | None = None
        self._cookies: list[bytes] = []

    def new_token(self) -> str:
        """Return a token that is good once; an earlier one that was not used is void."""
        token = secrets.token_urlsafe(32)
        self._token = _hash(token)
        return token

    def exchange(self, token: str) -> str | None:
        """Return a cookie for a token; None: it is no token, or was used."""
        expected = self._token
        if expected is None or not hmac.compare_digest(expected, _hash(token)):
            return None
        self._token = None
        cookie = secrets.token_urlsafe(32)
        self._cookies = [*self._cookies, _hash(cookie)][-MOST_COOKIES:]
        return cookie

    def knows(self, cookie: str) -> bool:
        """Tell whether a cookie was given here."""
        shown = _hash(cookie)
        return any([hmac.compare_digest(each, shown) for each in self._cookies])  # noqa: C419  (all are compared)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


MAX_BODY = 8 * 1024 * 1024
BODY_WITHIN_S = 30.0
# Of all long bodies together: a dozen callers who send 8 MiB again and again took all of the loop.
LONG_BYTES_PER_S = 64 * 2**20
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Addresses that stand for every one of a machine: nobody calls it by them.
EVERY = frozenset({"0.0.0.0", "::"})  # noqa: S104  (compared, never bound here)
OPEN_PATHS = frozenset({"/health"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FORM_KEYS = ("authorization", "x-api-key")


class Guard:
    """ASGI middleware that turns away whom the endpoint does not answer."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        own_key_paths: frozenset[str] = frozenset(),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Take the routes, and the paths of those that ask for a key or a cookie themselves."""
        self._app = app
        self._options = options
        self._own_key_paths = own_key_paths
        self._bodies, self._turn, self._sleep = BodyTotal(), asyncio.Lock(), sleep
        self._hosts = LOOPBACK | options.hosts | ({options.host.lower()} - EVERY)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at a request, and let it through or say why not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["hybrid.request_id"] = _request_id(headers)
        origin = headers.get("origin")
        allowed = origin if origin in self._options.origins else None

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = MutableHeaders(raw=list(message.get("headers", [])))
                told.setdefault("x-request-id", scope["hybrid.request_id"])  # a relay's upstream has named it
                if allowed:
                    told["access-control-allow-origin"] = allowed
                    told["vary"] = "Origin"
                message = {**message, "headers": told.raw}
            await send(message)

        try:
            _check_framing(headers)
            self._mind_host(headers)
            self._mind_origin(headers, origin, scope["method"])
            if scope["method"] == "OPTIONS" and allowed:
                await _preflight(headers, named)
                return
            self._mind_key(headers, scope["path"])
            posts = scope["method"] == "POST"
            if posts:
                _check_head(headers)
        except ApiError as error:
            await error.response()(scope, receive, named)
            return
        with self._bodies.open_share() as share:  # what came of a body is held until its answer has ended
            await self._app(scope, _bounded(receive, share, self._rest) if posts else receive, named)

    async def _rest(self, num_bytes: int) -> None:
        """Rest for what came of a long body, one caller after the other."""
        async with self._turn:
            await self._sleep(num_bytes / LONG_BYTES_PER_S)

    def _mind_host(self, headers: Headers) -> None:
        """Refuse names that are not this machine's."""
        told = headers.getlist("host")
        name = _host_name(told[0]) if len(told) == 1 else None
        if name is None or name not in self._hosts:
            said = "this endpoint is not called by that name: the Host header is not one of its own (--allow-host NAME)"
            raise ApiError(403, said, "permission_error", "host_not_allowed")

    def _mind_origin(self, headers: Headers, origin: str | None, method: str) -> None:
        """Refuse what a page of another origin asks, unless it is allowed; its own page is of the same origin."""
        if origin is None or origin in self._options.origins or method in {"GET", "HEAD"}:
            return
        if origin.lower() in {f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")}:
            return
        said = "pages of that origin may not ask this endpoint (--allow-origin ORIGIN)"
        raise ApiError(403, said, "permission_error", "origin_not_allowed")

    def _mind_key(self, headers: Headers, path: str) -> None:
        """Refuse a caller without the key; how long that takes tells nothing of it."""
        if path not in OPEN_PATHS | self._own_key_paths and not shows_key(self._options, headers):
            said = "this endpoint has a key: send it as Authorization: Bearer KEY, or as x-api-key"
            raise ApiError(401, said, "authentication_error", "invalid_api_key", headers={"www-authenticate": "Bearer"})


def shows_key(options: ServeOptions, headers: Headers) -> bool:
    """Tell whether a request shows the key in either header, or there is none; how long that takes tells nothing."""
    if options.key is None:
        return True
    key = options.key.get_secret_value().encode()
    shown = [headers.get(name, "") for name in _FORM_KEYS]
    shown[0] = shown[0].partition(" ")[2] if shown[0].lower().startswith("bearer ") else ""
    matches = [hmac.compare_digest(key, each.strip().encode("utf-8", "replace")) for each in shown]  # all of them
    return any(matches)


# ---- what is named at the start --------------------------------------------------------------------------------------


def allowed_host(named: str) -> str:
    """Return a name as a Host header is compared with. Raises UsageError for what no header could match.

    >>> allowed_host("Laptop.LAN"), allowed_host("[fe80::1]"), allowed_host("fe80::1")
    ('laptop.lan', 'fe80::1', 'fe80::1')
    """
    bare = named.strip("[]").lower()
    if _host_name(f"[{bare}]" if ":" in bare else bare) == bare:
        return bare
    meant = _meant(named).hostname
    example = f", like {meant}" if meant and _host_name(meant) == meant else ""
    msg = f"--allow-host {named}: give the name or the address alone, without scheme, port and path{example}"
    raise UsageError(msg)


def allowed_origin(named: str) -> str:
    """Return an origin as browsers send it. Raises UsageError for what no browser sends.

    >>> allowed_origin("http://localhost:3000"), allowed_origin("null")
    ('http://localhost:3000', 'null')
    """
    meant = _meant(named)
    usual_port = {"http": ":80", "https": ":443"}.get(meant.scheme, ":")
    place = meant.netloc.rpartition("@")[2].lower().removesuffix(usual_port)
    sent = f"{meant.scheme or 'http'}://{place}"
    sendable = re.fullmatch(r"[!-)+-~]*", place)  # visible ASCII without a star
    if named == "null" or (named == sent and sendable):
        return named
    example = sent if place and sendable else "http://localhost:3000"
    msg = f"--allow-origin {named}: give the origin as browsers send it, like {example}"
    raise UsageError(msg)


def _meant(named: str) -> SplitResult:
    """Return the parts of what somebody gave in the place of a name or an origin, as far as there are any."""
    try:
        return urlsplit(named if "://" in named else f"//{named}")
    except ValueError:  # half an address in brackets
        return urlsplit("")


# ---- what a request holds --------------------------------------------------------------------------------------------


def _request_id(headers: Headers) -> str:
    """Return the caller's own id of the request, if it is one that a log can hold, or a new one."""
    told = headers.get("x-request-id", "")
    return told if _REQUEST_ID.fullmatch(told) else f"req_{secrets.token_hex(12)}"


def _host_name(host: str) -> str | None:
    """Return the name or address in a Host header, without its port; None where there is none.

    >>> _host_name("[::1]:8088"), _host_name("LOCALHOST"), _host_name("a@b"), _host_name("x:y:z")
    ('::1', 'localhost', None, None)
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", host.strip())
    return (found[1] or found[2]).lower().rstrip(".") if found else None


async def _preflight(headers: Mapping[str, str], send: Send) -> None:
    """Answer a browser that asks whether a page of an allowed origin may ask."""
    told = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": headers.get("access-control-request-headers", "content-type")[:1000],
        "access-control-max-age": "600",
    }
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in told.items()]
    await send({"type": "http.response.start", "status": 204, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def _check_framing(headers: Headers) -> None:
    """Refuse a length beside chunks: a proxy may take another byte for the end of the request (RFC 9112, 6.1)."""
    if "content-length" in headers and "transfer-encoding" in headers:
        said = "a request has a Content-Length or a Transfer-Encoding, not both"
        raise ApiError(400, said, code="invalid_framing", headers={"connection": "close"})


def _check_head(headers: Headers) -> None:
    """Raise ApiError for a body that is not JSON, or says itself that it is too long."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        said = "the body must be JSON: content-type application/json"
        raise ApiError(415, said, code="unsupported_media_type")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY:
        raise _too_long()


def _bounded(receive: Receive, share: BodyShare, rest: Callable[[int], Awaitable[None]]) -> Receive:
    """Return how a body is received: bounded in length and time, and by what the bodies of others take.

    What comes beyond a short one rests, whether there is room for it or not: only then is more received.
    """
    came, ended, deadline = 0, False, asyncio.get_running_loop().time() + BODY_WITHIN_S

    async def bounded() -> Message:
        nonlocal came, ended
        if ended:
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            said = f"the body did not come within {BODY_WITHIN_S:g} s"
            raise ApiError(408, said, code="body_timeout", headers={"connection": "close"}) from None
        came += (num_bytes := len(message.get("body", b"")))
        ended = not message.get("more_body", False)
        if came > MAX_BODY:
            raise _too_long()
        try:
            share.grow(num_bytes)
        finally:
            if came > SHORT:
                await rest(num_bytes)
        return message

    return bounded


def _too_long() -> ApiError:
    said = f"the body is longer than {MAX_BODY // 2**20} MiB"
    return ApiError(413, said, code="body_too_long", headers={"connection": "close"})
