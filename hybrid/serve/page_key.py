"""Who may see the monitor where the endpoint has a key: whoever opens the URL that the start prints, once.

A browser cannot show a key when it opens a page, and a key in a URL would stay in its history. So the start prints a
URL with a token that is good once; it is exchanged for a cookie, which scripts cannot read (HttpOnly), other sites
cannot use (SameSite=Strict), and which opens the page and its events and nothing else. Laws
(``tests/serve/test_page_key.py``): a token is good once; everything is compared in constant time; what is kept is no
token and no cookie, but their hashes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

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
