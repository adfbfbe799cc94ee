"""What comes back, in bounded memory: JSON out of a body, server-sent events and lines out of bytes cut anywhere.

The laws. Parsed JSON takes no more memory than ``parsed_bytes`` says, plus its texts (``tests/cloud/test_body.py``).
However the bytes are cut, the events are those of the whole text, read as the HTML standard says (WHATWG, 9.2.6): lines
end with CR, LF or CRLF, one byte order mark may come first, the ``data`` lines of an event are joined, an event ends
with an empty line, and an event without an end is none (``tests/cloud/test_sse.py``). Knows no HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from hybrid.errors import BadReply, NotAnApi

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# One event is a few tokens with their rows.
MAX_EVENT_BYTES = 8 * 1024 * 1024
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


class LineReader:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        """Start before the first byte."""
        self._held = bytearray()
        self._is_first = True
        self._after_cr = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the lines that are whole by now, without their ends. Raises BadReply where one does not end."""
        if self._after_cr and part.startswith(b"\n"):
            part = part[1:]  # the other half of a CRLF
        self._after_cr = part.endswith(b"\r")
        for piece in part.splitlines(keepends=True):
            _grow(self._held, piece)
            if piece.endswith((b"\r", b"\n")):
                line = bytes(self._held).rstrip(b"\r\n")
                yield line.removeprefix(BYTE_ORDER_MARK) if self._is_first else line
                self._is_first = False
                self._held.clear()


class EventReader:
    """Reads the data of events; their types and ids, and comments, are passed over."""

    def __init__(self) -> None:
        """Start before the first byte."""
        self._lines = LineReader()
        self._data = bytearray()

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield the data of every event that is whole by now. Raises BadReply where one does not end."""
        for line in self._lines.feed(part):
            name, _, value = line.partition(b":")
            if name == b"data":
                _grow(self._data, value.removeprefix(b" ") + b"\n")
            elif not line and self._data:
                yield bytes(self._data[:-1])
                self._data.clear()


def _grow(held: bytearray, part: bytes) -> None:
    held += part
    if len(held) > MAX_EVENT_BYTES:
        msg = "the endpoint's stream does not end its lines, or its events"
        raise BadReply(msg)
