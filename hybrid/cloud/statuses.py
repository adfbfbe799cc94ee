"""What a refusal means: its status, before a reply or inside one, and its headers about asking again.

Many servers say 200 before they read the question, and refuse it in the first event of the stream. The law of the
headers: whatever they hold, reading them raises nothing and returns a finite delay of at least 0, or none
(``tests/cloud/test_statuses.py``, ``test_hints.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypedDict

from hybrid.cloud.port import REFUSED
from hybrid.errors import (
    AccessDenied,
    BadReply,
    CloudError,
    FailureKind,
    MissingCapability,
    ModelNotFound,
    NotAnApi,
    Unreachable,
)

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


class RetryAfter(TypedDict):
    """As ``CloudError`` takes them."""

    trouble: FailureKind | None
    retry_after_s: float | None


def read_retry_after(headers: Mapping[str, str]) -> RetryAfter:
    """Read the headers of an answer that turned a request away; their names are in lower case.

    >>> read_retry_after({"retry-after-ms": "1500"})
    {'trouble': 'busy', 'retry_after_s': 1.5}
    >>> read_retry_after({"x-should-retry": "false"})
    {'trouble': None, 'retry_after_s': None}
    """
    again = headers.get("x-should-retry", "").lower() != "false"
    return {"trouble": "busy" if again else None, "retry_after_s": _delay_s(headers)}


def _delay_s(headers: Mapping[str, str]) -> float | None:
    """Prefer milliseconds, as openai-python does; ``Retry-After`` is a number of seconds or a date (RFC 9110)."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        told = headers.get(name)
        if told is None:
            continue
        try:
            delay_s = float(told) * unit_s
        except ValueError:
            delay_s = _until(told)
        if math.isfinite(delay_s) and delay_s >= 0:
            return delay_s
    return None


def _until(date: str) -> float:
    """Seconds until a date; 0 for one that has passed, nan for none."""
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return math.nan
    if then.tzinfo is None:  # "-0000": UTC, says RFC 5322
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
