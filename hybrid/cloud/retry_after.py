"""What a server's headers say about asking again: ``Retry-After``, its cousin in milliseconds, ``x-should-retry``.

The law: whatever stands there, reading it raises nothing and says a finite, non-negative delay or none
(``tests/cloud/test_hints.py``). What nobody can read was not said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypedDict

from hybrid.errors import Trouble


class RetryAfter(TypedDict):
    """As ``CloudError`` takes them."""

    trouble: Trouble | None
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
