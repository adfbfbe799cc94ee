"""How a pool makes a connection, by look-ups and attempts of our own, and what a fault of one is called. No HTTP.

Which HTTP library there is, httpx or httpx2, is known here and nowhere else (``tests/cloud/test_httpx2.py``).

A pool keeps nothing of a reply: behind one wire are many callers, and a cookie would tell one of them by another's.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from functools import partial
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING

from hybrid.cloud.names import connect_first, resolve

if TYPE_CHECKING:
    import httpcore
    import httpx
else:
    try:
        import httpcore
        import httpx
    except ImportError:  # its successor, of the same surface
        import httpcore2 as httpcore
        import httpx2 as httpx


class Network(httpcore.AnyIOBackend):
    """How connections are made: names are looked up by us, and of several addresses the first that answers is taken."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  (httpcore's port)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to a host, or raise httpcore.ConnectError."""
        connect = partial(
            super().connect_tcp,
            port=port,
            timeout=timeout,
            local_address=local_address,
            socket_options=socket_options,
        )
        try:
            addresses = await resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return await connect_first(connect, addresses, lambda stream: stream.aclose())


class NoCookies(CookieJar):
    """A jar that takes nothing."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Leave what a reply wants kept."""


def in_words(root: BaseException) -> object:
    """Return a fault in the system's words, without its number; asyncio's own name the address a second time."""
    if isinstance(root, ssl.SSLError) or not isinstance(root, OSError) or not root.errno:
        return root
    return root.strerror if isinstance(root, socket.gaierror) else os.strerror(root.errno)


def root_cause(error: BaseException) -> BaseException:
    """Return the fault that an error comes from."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    return error


__all__ = ["Network", "NoCookies", "httpcore", "httpx", "in_words", "root_cause"]
