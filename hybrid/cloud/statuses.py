"""What an error status means to the user, wherever it stands: before a reply, or inside one.

Many servers say 200 before they look at what was asked, and then turn it down in the first event.
"""

from __future__ import annotations

import re

from hybrid.cloud.metering import REFUSED
from hybrid.cloud.retry_after import RetryAfter, read_retry_after
from hybrid.errors import AccessDenied, BadReply, CloudError, MissingCapability, ModelNotFound, NotAnApi, Unreachable

# Besides 5xx: too slow, in conflict, too early, too many. openai-python asks again after the same ones.
BUSY = frozenset({408, 409, 425, 429})

# A flag of the server's, in its own words: vLLM names the one that opens a route.
_FLAG = re.compile(r"(?<![\w-])--[a-z]")


def status_error(
    status: int, said: str, detail: str, key_hint: str = "", again: RetryAfter | None = None
) -> CloudError:
    """Return the error that a status from 300 on is: ``said`` is its sentence, ``detail`` the server's own words."""
    sent = status not in REFUSED
    if status in BUSY or (status >= 500 and status != 501):
        return Unreachable(said, sent=sent, **(again or read_retry_after({})))
    error = _named(status, said, detail, key_hint)
    error.sent = sent
    return error


def _named(status: int, said: str, detail: str, key_hint: str) -> CloudError:
    closed = status == 403 and _FLAG.search(detail)  # to everybody, until the server is started otherwise
    if closed or status in {405, 501}:  # such a server will never take the method, or the route
        return NotAnApi(said)
    if status in {401, 403}:
        return AccessDenied(f"{said}; {key_hint}" if key_hint else said)
    if status == 404:
        return NotAnApi(said) if detail in {"", "a web page", "Not Found"} else ModelNotFound(said)
    if status == 400 and "logprobs" in detail:
        return MissingCapability(said)
    if status < 400:
        return NotAnApi(f"{said}, a redirect: give the final address")
    return BadReply(said)
