"""Replies byte by byte that no honest server sends, and some that few clients have seen though they are right.

A body is a function of the sane reply to the same request: it yields bytes to send, seconds to wait, and perhaps an
``End``. Written from RFC 9112 (HTTP/1.1), RFC 8259 (JSON) and the WHATWG description of event streams, by another hand
than the client: this file must never import ``hybrid`` or ``server_stub``. ``READABLE`` names the bodies whose content
is right by these standards: a client may read them as the sane reply they are, or turn them down, but nothing else.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import chain, repeat
from typing import Any


class End(Enum):
    """What becomes of the connection after the last byte; without one it is closed."""

    RESET = "reset"  # closed with RST: what was not read yet is lost
    HANG = "hang"  # left open, silent, until the client closes
    KEEP = "keep"  # open for the next request


Step = bytes | float | End


@dataclass(frozen=True)
class Sane:
    """What a good server would answer. ``body``: JSON, or all events of a stream."""

    status: int
    content_type: str
    body: bytes
    url: str = ""

    @property
    def stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    @property
    def events(self) -> list[bytes]:
        """The data of each event, [DONE] included; a whole reply is one."""
        if not self.stream:
            return [self.body]
        return [event.removeprefix(b"data: ") for event in self.body.split(b"\n\n") if event]

    def told(self, payload: bytes) -> bytes:
        """Another JSON text in the place of the reply: as the only event, where events were asked for."""
        return b"data: " + payload + b"\n\n" if self.stream else payload

    def changed(self, change: Callable[[Any], Any]) -> bytes:
        """The reply with ``change`` applied to every number in it that has a point."""

        def walk(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: walk(each) for name, each in value.items()}
            if isinstance(value, list):
                return [walk(each) for each in value]
            return change(value) if isinstance(value, float) else value

        texts = [each if each == b"[DONE]" else json.dumps(walk(json.loads(each))).encode() for each in self.events]
        return b"".join(b"data: " + text + b"\n\n" for text in texts) if self.stream else texts[0]


Body = Callable[[Sane], Iterator[Step]]
MB = 1 << 20


def head(sane: Sane, *lines: str, status: str = "200 OK", content_type: str | None = None) -> bytes:
    """A status line and headers, the blank line included."""
    kind = sane.content_type if content_type is None else content_type
    return "\r\n".join([f"HTTP/1.1 {status}", *([f"content-type: {kind}"] if kind else []), *lines, "", ""]).encode()


def until_closed(sane: Sane, body: bytes, *lines: str, status: str = "200 OK") -> Iterator[Step]:
    """A reply that ends where the connection does."""
    yield head(sane, "connection: close", *lines, status=status)
    yield body


def counted(sane: Sane, body: bytes, *lines: str, length: str | None = None, status: str = "200 OK") -> Iterator[Step]:
    """A reply of a stated length."""
    yield head(sane, f"content-length: {len(body) if length is None else length}", *lines, status=status)
    yield body


def chunk(part: bytes) -> bytes:
    return f"{len(part):x}\r\n".encode() + part + b"\r\n"


def chunked(sane: Sane, *parts: bytes, lines: tuple[str, ...] = ()) -> Iterator[Step]:
    """A chunked reply whose parts after the head are written as they are."""
    yield head(sane, "transfer-encoding: chunked", *lines)
    yield from parts


def endless(sane: Sane, start: bytes, again: bytes, pause: float = 0.0) -> Iterator[Step]:
    """A start, and then the same for ever."""
    yield until_head(sane) + start
    yield from chain.from_iterable(repeat((again, pause) if pause else (again,)))


def until_head(sane: Sane) -> bytes:
    return head(sane, "connection: close")


@cache
def bomb(layers: int, container: int = zlib.MAX_WBITS | 16) -> bytes:
    """One GiB of spaces (which JSON allows anywhere), packed so many times; 16 + 15: gzip, 15: zlib's deflate.

    The first layer is one deflated block of a MiB, repeated: a full flush makes blocks independent.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(b" " * MB) + packer.flush(zlib.Z_FULL_FLUSH)
    blocks, last = block * 1024, packer.flush(zlib.Z_FINISH)
    if container == zlib.MAX_WBITS | 16:
        crc = 0
        for _ in range(1024):
            crc = zlib.crc32(b" " * MB, crc)
        start, end = b"\x1f\x8b\x08" + bytes(7), crc.to_bytes(4, "little") + (1 << 30).to_bytes(4, "little")
    else:
        adler = 1
        for _ in range(1024):
            adler = zlib.adler32(b" " * MB, adler)
        start, end = b"\x78\xda", adler.to_bytes(4, "big")
    packed = start + blocks + last + end
    for _ in range(layers - 1):
        outer = zlib.compressobj(9, zlib.DEFLATED, container)
        packed = outer.compress(packed) + outer.flush()
    return packed


def packed(body: bytes, container: int = zlib.MAX_WBITS | 16) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, container)
    return packer.compress(body) + packer.flush()


def events_of(sane: Sane, start: bytes = b"data: ", end: bytes = b"\n\n") -> bytes:
    """The sane events between other marks."""
    return b"".join(start + event + end for event in sane.events) if sane.stream else sane.body


def many_lines(sane: Sane) -> bytes:
    """Each JSON text over several ``data`` lines: the reader joins them by line feeds, which JSON does not mind."""
    if not sane.stream:
        return sane.body
    split = [event if event == b"[DONE]" else event.replace(b", ", b",\ndata: ") for event in sane.events]
    return b"".join(b"data: " + event + b"\n\n" for event in split)


def spaced(sane: Sane) -> bytes:
    texts = [event if event == b"[DONE]" else b" \t " + event + b" \t " for event in sane.events]
    return b"".join(b"data: " + text + b"\n\n" for text in texts) if sane.stream else texts[0]


def between(sane: Sane) -> bytes:
    if not sane.stream:
        return sane.body
    noise = b": a comment\n:\nid: 7\nretry: 10\nunknown: field\nunknown\n"
    return b"".join(noise + b"event: message\ndata: " + event + b"\n\n" + b": ping\n\n" for event in sane.events)


def split_everywhere(sane: Sane) -> Iterator[Step]:
    yield head(sane, "transfer-encoding: chunked")
    for i in range(len(sane.body)):
        yield chunk(sane.body[i : i + 1])
    yield b"0\r\n\r\n"


def drip(sane: Sane) -> Iterator[Step]:
    """The sane reply, one byte every half second, from the status line on; then comments or spaces for ever."""
    yield from chain.from_iterable((bytes([each]), 0.5) for each in until_head(sane) + sane.body[:-2])
    yield from chain.from_iterable(repeat((b":\n" if sane.stream else b" ", 0.5)))


def twice(sane: Sane) -> bytes:
    """Every object says its usage and its choices twice; the second one is empty."""
    texts = [
        each if each == b"[DONE]" else each[:-1] + b', "usage": {"prompt_tokens": 0}, "choices": []}'
        for each in sane.events
    ]
    return b"".join(b"data: " + text + b"\n\n" for text in texts) if sane.stream else texts[0]


def two_replies(sane: Sane) -> Iterator[Step]:
    """A second reply on the same connection that nobody asked for: it must not be taken for the next one's."""
    yield from counted(sane, sane.body)
    poison = b'{"object": "list", "data": [{"id": "poison", "object": "model"}]}'
    yield from counted(Sane(200, "application/json", poison), poison)
    yield End.KEEP


def zeros(sane: Sane) -> Iterator[Step]:
    """A JSON array of 200 MB."""
    yield until_head(sane) + (b"data: " if sane.stream else b"") + b"["
    yield from repeat(b"0," * (MB // 2), 200)
    yield b"0]" + (b"\n\n" if sane.stream else b"")


def first_event(sane: Sane) -> bytes:
    return b"data: " + sane.events[0] + b"\n\n" if sane.stream else sane.body


def then(end: End, steps: Iterator[Step]) -> Iterator[Step]:
    yield from steps
    yield end


# Bodies that say the right thing in a rare way.
READABLE: Mapping[str, Body] = {
    "sane": lambda sane: then(End.KEEP, counted(sane, sane.body)),
    "until-closed": lambda sane: until_closed(sane, sane.body),
    "chunked-byte-by-byte": split_everywhere,
    "chunk-extensions": lambda sane: chunked(
        sane, f"{len(sane.body):X};name=value\r\n".encode() + sane.body + b"\r\n0\r\ntrailer: t\r\n\r\n"
    ),
    "early-hints": lambda sane: chain(
        [b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"], counted(sane, sane.body, "connection: close")
    ),
    "head-in-capitals": lambda sane: iter([
        f"HTTP/1.1 200 \r\nCONTENT-TYPE:{sane.content_type.upper()}\r\nCONNECTION:CLOSE\r\n\r\n".encode(), sane.body
    ]),
    "byte-order-mark": lambda sane: until_closed(sane, b"\xef\xbb\xbf" + sane.body),
    "carriage-returns": lambda sane: until_closed(sane, events_of(sane, end=b"\r\r")),
    "crlf": lambda sane: until_closed(sane, events_of(sane, end=b"\r\n\r\n")),
    "mixed-line-ends": lambda sane: until_closed(sane, events_of(sane, end=b"\r\n\r")),
    "many-data-lines": lambda sane: until_closed(sane, many_lines(sane)),
    "no-space-after-data": lambda sane: until_closed(sane, events_of(sane, start=b"data:")),
    "comments-between": lambda sane: until_closed(sane, between(sane)),
    "whitespace-around-json": lambda sane: until_closed(sane, spaced(sane)),
    "escaped-ascii": lambda sane: until_closed(sane, sane.body.replace(b'"text"', b'"\\u0074ext"')),
}  # fmt: skip

ENCODINGS: Mapping[str, Body] = {
    "gzip-bomb": lambda sane: counted(sane, bomb(1), "content-encoding: gzip"),
    "gzip-bomb-twice": lambda sane: counted(sane, bomb(2), "content-encoding: gzip, gzip"),
    "gzip-bomb-thrice": lambda sane: counted(sane, bomb(3), "content-encoding: gzip, gzip, gzip"),
    "deflate-bomb": lambda sane: counted(sane, bomb(1, zlib.MAX_WBITS), "content-encoding: deflate"),
    "gzip-unasked": lambda sane: counted(sane, packed(sane.body), "content-encoding: gzip"),
    "gzip-in-capitals": lambda sane: counted(sane, packed(sane.body), "Content-Encoding: GZIP"),
    "gzip-in-two-headers": lambda sane: counted(
        sane, packed(packed(sane.body)), "content-encoding: gzip", "content-encoding: gzip"
    ),
    "gzip-as-transfer-coding": lambda sane: chunked(
        Sane(200, sane.content_type, b""), chunk(packed(sane.body)), b"0\r\n\r\n", lines=("transfer-encoding: gzip",)
    ),
    "gzip-untold": lambda sane: counted(sane, packed(sane.body)),
    "gzip-cut": lambda sane: counted(sane, packed(sane.body)[:-9], "content-encoding: gzip"),
    "gzip-told-of-plain-text": lambda sane: counted(sane, sane.body, "content-encoding: gzip"),
    "deflate-unasked": lambda sane: counted(sane, packed(sane.body, -zlib.MAX_WBITS), "content-encoding: deflate"),
    "brotli-garbage": lambda sane: counted(sane, bytes(range(256)) * 8, "content-encoding: br"),
    "zstd-garbage": lambda sane: counted(sane, b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 8, "content-encoding: zstd"),
    "unknown-encoding": lambda sane: counted(sane, sane.body, "content-encoding: x-nonsense"),
}

STREAMS: Mapping[str, Body] = {
    "comments-for-ever": lambda sane: endless(sane, b"", b": ping\n\n", 0.05),
    "comments-at-full-speed": lambda sane: endless(sane, b"", b": ping\n\n" * 4096),
    "line-feeds-at-full-speed": lambda sane: endless(sane, b"", b"\n" * 65536),
    "event-of-a-gigabyte": lambda sane: endless(sane, b'data: {"id": "', b"x" * 65536),
    "data-lines-without-end": lambda sane: endless(sane, b"", b"data: 1\n" * 8192),
    "tokens-for-ever": lambda sane: endless(sane, b"", first_event(sane)),
    "tokens-for-ever-slowly": lambda sane: endless(sane, b"", first_event(sane), 0.05),
    "empty-stream-done": lambda sane: until_closed(sane, sane.told(b"[DONE]")),
    "empty-stream-closed": lambda sane: until_closed(sane, b""),
    "without-done": lambda sane: until_closed(sane, b"".join(b"data: %b\n\n" % each for each in sane.events[:-1])),
    "done-twice-and-more": lambda sane: until_closed(sane, sane.body + b"data: [DONE]\n\n" + sane.body),
    "first-event-then-closed": lambda sane: until_closed(sane, first_event(sane)),
    "first-event-then-reset": lambda sane: chain(until_closed(sane, first_event(sane)), [0.2, End.RESET]),
    "first-event-then-silence": lambda sane: then(End.HANG, until_closed(sane, first_event(sane))),
    "half-an-event": lambda sane: until_closed(sane, sane.body[: len(first_event(sane)) // 2]),
    "events-out-of-order": lambda sane: until_closed(
        sane, b"".join(b"data: %b\n\n" % each for each in reversed(sane.events))
    ),
    "whole-reply-for-a-stream": lambda sane: counted(
        Sane(200, "application/json", b""), sane.events[0], "connection: close"
    ),
    "stream-for-a-whole-reply": lambda sane: until_closed(
        Sane(200, "text/event-stream", b""), b"".join(b"data: %b\n\n" % each for each in sane.events)
    ),
    "data-without-anything": lambda sane: until_closed(sane, b"data\n\ndata:\n\ndata: \n\n"),
    "one-byte-a-half-second": drip,
}

JSON: Mapping[str, Body] = {
    name: lambda sane, payload=payload: until_closed(sane, sane.told(payload))
    for name, payload in {
        "nested-100000-deep": b"[" * 100_000 + b"]" * 100_000,
        "nested-in-usage": b'{"choices": [], "usage": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        "number-of-10-million-digits": b'{"choices": [], "usage": {"completion_tokens": ' + b"7" * 10**7 + b"}}",
        "exponent-of-10-digits": b'{"choices": [], "usage": {"completion_tokens": 1e9999999999}}',
        "lone-surrogate": b'{"choices": [{"index": 0, "text": "\\ud800", "token_ids": [5], "logprobs": null}]}',
        "invalid-utf-8": b'{"choices": [{"index": 0, "text": "\xff\xfe\xc0\x80", "logprobs": null}]}',
        "top-level-text": b'"choices"',
        "top-level-null": b"null",
        "top-level-number": b"42",
        "top-level-array": b'[{"choices": []}]',
        "choices-null": b'{"choices": null, "usage": null}',
        "choices-of-numbers": b'{"choices": [1, 2]}',
        "choices-empty": b'{"choices": []}',
        "error-null": b'{"error": null}',
        "error-as-text": b'{"error": "no"}',
        "error-as-list": b'{"error": [{"code": "400"}]}',
        "object-unclosed": b'{"choices": [{"index": 0, "text": "abc',
        "two-objects": b'{"choices": []}{"choices": []}',
        "single-quotes": b"{'choices': []}",
        "key-of-10-megabytes": b'{"' + b"k" * 10**7 + b'": 1}',
        "a-million-choices": b'{"choices": [' + b"{}," * 10**6 + b"{}]}",
        "blank": b"  \t ",
        "nul-bytes": bytes(64),
        "utf-16": '{"choices": []}'.encode("utf-16"),
        "web-page": b"<!doctype html><title>Sign in</title>",
    }.items()
} | {
    "not-a-number": lambda sane: until_closed(sane, sane.changed(lambda _: math.nan)),
    "infinity": lambda sane: until_closed(sane, sane.changed(lambda _: math.inf)),
    "minus-infinity": lambda sane: until_closed(sane, sane.changed(lambda _: -math.inf)),
    "positive-logarithms": lambda sane: until_closed(sane, sane.changed(abs)),
    "numbers-as-text": lambda sane: until_closed(sane, sane.changed(str)),
    "array-of-200-megabytes": zeros,
    "usage-and-choices-twice": lambda sane: until_closed(sane, twice(sane)),
    "all-in-utf-16": lambda sane: until_closed(sane, sane.body.decode().encode("utf-16")),
    "told-as-utf-16": lambda sane: until_closed(
        Sane(200, "application/json; charset=utf-16", b""), sane.body.decode().encode("utf-16")
    ),
}
