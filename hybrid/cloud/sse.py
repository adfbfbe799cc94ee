"""Server-sent events out of bytes that come cut anywhere; and bare lines, for servers that send JSON by the line.

The law: however the bytes are cut, the events are those of the whole text, read as the HTML standard says (WHATWG,
9.2.6). Lines end with CR, LF or CRLF, one byte order mark may come first, the ``data`` lines of an event are joined, an
event ends with an empty line, and what is not ended is none (``tests/cloud/test_sse.py``). Knows no HTTP and no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybrid.errors import BadReply

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# One event is a few tokens with their rows.
MAX_EVENT_BYTES = 8 * 1024 * 1024


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
