"""JSON out of the body of a reply, in bounded memory.

The law: what is parsed takes no more than ``parsed_bytes`` says, and its texts (``tests/cloud/test_body.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from hybrid.errors import BadReply, NotAnApi

# What is read in full is an answer's own rows, or a prompt's by their texts: an echo of the server here has 566 bytes a
# token at k = 20, 4.5 MB at 8,000 tokens. Where a shape says what to leave unread, a prompt's rows are 12 MB there.
MAX_REPLY_BYTES, MAX_ROWS_BYTES = 32 * 1024 * 1024, 128 * 1024 * 1024
# A model list of thousands is a few MiB.
MAX_FACT_BYTES = 4 * 1024 * 1024
# What JSON becomes in CPython 3.11, but for its texts, measured: an object, a list, a value and its place in either.
OBJECT_BYTES, LIST_BYTES, VALUE_BYTES = 200, 88, 64
MAX_PARSED_BYTES, MAX_SHAPED_BYTES = 128 * 1024 * 1024, 512 * 1024 * 1024
# What is shorter cannot become more: no byte of JSON costs more than a brace.
SMALL_BYTES = MAX_PARSED_BYTES // OBJECT_BYTES
COUNTED_AT_ONCE = 1 << 18  # stays in a core's cache


def parsed_bytes(raw: bytes | bytearray) -> int:
    """Return what the JSON would take at most, but for its texts: three bytes of it can become seventy."""
    text, total = np.frombuffer(raw, dtype=np.uint8), 0
    for start in range(0, text.size, COUNTED_AT_ONCE):
        part = text[start : start + COUNTED_AT_ONCE]
        for mark, cost in ((b"{", OBJECT_BYTES), (b"[", LIST_BYTES), (b",", VALUE_BYTES)):
            total += cost * int(np.count_nonzero(part == ord(mark)))
    return total


def parse(raw: bytes | bytearray, url: str, shape: type | None = None) -> Any:
    """Read a body as an object or a list; ``shape`` names the fields that are wanted and what to leave unread.

    Raises NotAnApi for a page, BadReply for what is no JSON, neither, or too much.
    """
    parsed = 0 if len(raw) <= SMALL_BYTES else parsed_bytes(raw)
    if shape is not None and parsed <= MAX_SHAPED_BYTES:
        # What is of another shape, or no JSON, is read in full, and then named.
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            expected: Mapping[str, Any] = msgspec.json.decode(raw, type=shape)
            return expected
    if len(raw) > MAX_REPLY_BYTES or parsed > MAX_PARSED_BYTES:
        msg = f"{url} answered with more than a reply can hold"
        raise BadReply(msg)
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        if raw.lstrip()[:1] == b"<":
            msg = f"{url} answered with a web page: this is not the address of a model endpoint"
            raise NotAnApi(msg) from error
        msg = f"{url} answered with something that is not JSON"
        raise BadReply(msg, trouble="malformed") from error
    if not isinstance(value, dict | list):
        msg = f"{url} answered with JSON that is neither an object nor a list"
        raise BadReply(msg)
    return value
