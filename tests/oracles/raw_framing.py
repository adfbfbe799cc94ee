"""Heads, lengths and connections that break HTTP/1.1 (RFC 9112): the other half of ``raw_bodies``.

By another hand than the client: this file must never import ``hybrid`` or ``server_stub``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, repeat

from raw_bodies import (
    ENCODINGS,
    JSON,
    MB,
    READABLE,
    STREAMS,
    Body,
    End,
    Sane,
    Step,
    chunk,
    chunked,
    counted,
    head,
    then,
    two_replies,
    until_closed,
    until_head,
)  # fmt: skip


def for_ever(start: bytes, again: bytes, pause: float = 0.0) -> Iterator[Step]:
    yield start
    yield from chain.from_iterable(repeat((again, pause) if pause else (again,)))


def numbered_headers() -> Iterator[Step]:
    """Headers with names of their own, for ever."""
    yield b"HTTP/1.1 200 OK\r\n"
    number = 0
    while True:
        yield b"".join(b"x-%d: %b\r\n" % (each, b"v" * 80) for each in range(number, number + 512))
        number += 512


def status(line: str) -> Body:
    return lambda sane: counted(sane, sane.body, "connection: close", status=line)


def lengths(*values: str) -> Body:
    """The sane reply under these content lengths."""

    def steps(sane: Sane) -> Iterator[Step]:
        yield head(sane, "connection: close", *(f"content-length: {value}" for value in values))
        yield sane.body

    return steps


def redirected(where: str, code: str) -> Body:
    """``where``: {url} stands for the address that was asked."""

    def steps(sane: Sane) -> Iterator[Step]:
        yield head(sane, f"location: {where.format(url=sane.url)}", "content-length: 0", status=code)
        yield End.KEEP

    return steps


HEADS: Mapping[str, Body] = {
    "status-999": status("999 Odd"),
    "status-000": status("000 Odd"),
    "status-600": status("600 Odd"),
    "status-299": status("299 Odd"),
    "status-206": status("206 Partial Content"),
    "status-of-four-digits": status("2000 OK"),
    "status-negative": status("-200 OK"),
    "status-of-letters": status("abc OK"),
    "status-line-garbage": lambda _: iter([b"\x00\x01\x02 garbage\r\n\r\n" * 100]),
    "status-line-endless": lambda _: for_ever(b"HTTP/1.1 200 ", b"O" * 65536),
    "http-0.9": lambda sane: iter([sane.body]),
    "http-1.0": lambda sane: iter([head(sane).replace(b"HTTP/1.1", b"HTTP/1.0"), sane.body]),
    "http-2": lambda _: iter([b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + bytes(18)]),
    "http-3.7": lambda sane: iter([head(sane).replace(b"HTTP/1.1", b"HTTP/3.7"), sane.body]),
    "tls": lambda _: iter([b"\x15\x03\x01\x00\x02\x02\x46"]),
    "ssh": lambda _: iter([b"SSH-2.0-OpenSSH_9.9\r\n", 0.2]),
    "headers-endless": lambda _: numbered_headers(),
    "headers-endless-slowly": lambda _: for_ever(b"HTTP/1.1 200 OK\r\n", b"x-more: value\r\n", 0.05),
    "header-endless": lambda _: for_ever(b"HTTP/1.1 200 OK\r\nx-long: ", b"v" * 65536),
    "header-of-200-kb": lambda sane: until_closed(sane, sane.body, "x-long: " + "v" * 200_000),
    "header-without-colon": lambda sane: until_closed(sane, sane.body, "nonsense"),
    "header-with-nul": lambda sane: until_closed(sane, sane.body, "x-nul: a\0b"),
    "header-folded": lambda sane: until_closed(sane, sane.body, "x-folded: a\r\n  b"),
    "header-without-name": lambda sane: until_closed(sane, sane.body, ": value"),
    "header-in-latin-1": lambda sane: iter([
        head(sane, "x-odd: $", "connection: close").replace(b"$", b"\xe9\xff"), sane.body,
    ]),
    "line-feeds-only": lambda sane: iter([until_head(sane).replace(b"\r\n", b"\n"), sane.body]),
    "content-type-missing": lambda sane: iter([head(sane, "connection: close", content_type=""), sane.body]),
    "content-type-html": lambda sane: iter([head(sane, "connection: close", content_type="text/html"), sane.body]),
    "retry-after-for-ever": lambda sane: counted(sane, b"{}", f"retry-after: {10**30}", status="429 Slow Down"),
    "retry-after-negative": lambda sane: counted(sane, b"{}", "retry-after: -1e400", status="503 Away"),
    "retry-after-garbage": lambda sane: counted(sane, b"{}", "retry-after: \xa0soon", status="429 Slow Down"),
    "cookies": lambda sane: until_closed(sane, sane.body, *(f"set-cookie: c{i}={'v' * 99}" for i in range(300))),
    "error-page-of-100-megabytes": lambda sane: chain(
        [head(sane, "connection: close", status="500 Oh", content_type="text/html")], repeat(b"<p>" * 350_000, 100)
    ),
    "error-page-endless": lambda sane: for_ever(head(sane, status="400 No", content_type="text/html"), b"<p>" * 20_000),
}  # fmt: skip

LENGTHS: Mapping[str, Body] = {
    "length-huge-then-closed": lambda sane: counted(sane, sane.body, length=str(10**15)),
    "length-huge-then-silence": lambda sane: then(End.HANG, counted(sane, sane.body, length=str(10**15))),
    "length-too-small": lambda sane: then(End.KEEP, counted(sane, sane.body, length=str(len(sane.body) // 2))),
    "length-zero": lambda sane: then(End.KEEP, counted(sane, sane.body, length="0")),
    "length-one-too-large": lambda sane: counted(sane, sane.body, length=str(len(sane.body) + 1)),
    "length-negative": lengths("-1"),
    "length-of-letters": lengths("many"),
    "length-of-5000-digits": lengths("9" * 5000),
    "length-signed": lambda sane: counted(sane, sane.body, "connection: close", length=f"+{len(sane.body)}"),
    "length-twice": lengths("5", "7"),
    "length-and-chunks": lambda sane: chunked(sane, chunk(sane.body), b"0\r\n\r\n", lines=("content-length: 3",)),
    "chunk-of-letters": lambda sane: chunked(sane, b"zz\r\n" + sane.body),
    "chunk-negative": lambda sane: chunked(sane, b"-5\r\n" + sane.body),
    "chunk-empty-size": lambda sane: chunked(sane, b"\r\n" + sane.body),
    "chunk-of-16-exabytes": lambda sane: then(End.HANG, chunked(sane, b"ffffffffffffffff\r\n", sane.body)),
    "chunk-size-endless": lambda sane: for_ever(head(sane, "transfer-encoding: chunked"), b"0" * 65536),
    "chunk-extension-endless": lambda sane: for_ever(head(sane, "transfer-encoding: chunked") + b"5;x=", b"v" * 65536),
    "chunk-longer-than-told": lambda sane: chunked(sane, b"3\r\n" + sane.body + b"\r\n0\r\n\r\n"),
    "chunks-without-end": lambda sane: chunked(sane, chunk(sane.body)),
    "chunks-without-end-silence": lambda sane: then(End.HANG, chunked(sane, chunk(sane.body))),
    "chunks-of-one-byte-at-full-speed": lambda sane: for_ever(
        head(sane, "transfer-encoding: chunked"), b"1\r\n:\r\n" * 8192
    ),
    "trailers-endless": lambda sane: for_ever(
        head(sane, "transfer-encoding: chunked") + chunk(sane.body) + b"0\r\n", b"x-more: value\r\n" * 4096
    ),
    "transfer-encoding-unknown": lambda sane: iter([head(sane, "transfer-encoding: nonsense"), sane.body]),
}

CONNECTIONS: Mapping[str, Body] = {
    "silence": lambda _: iter([End.HANG]),
    "reset": lambda _: iter([End.RESET]),
    "closed": lambda _: iter([]),
    "closed-after-head": lambda sane: iter([until_head(sane)]),
    "closed-in-the-head": lambda sane: iter([until_head(sane)[:-9]]),
    "reset-after-head": lambda sane: iter([until_head(sane), 0.2, End.RESET]),
    "silence-after-head": lambda sane: iter([until_head(sane), End.HANG]),
    "silence-in-the-head": lambda sane: iter([until_head(sane)[:-9], End.HANG]),
    "1xx-for-ever": lambda _: for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 512),
    "1xx-for-ever-slowly": lambda _: for_ever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.05),
    "switching-protocols": lambda sane: counted(sane, sane.body, "upgrade: h2c", status="101 Switching Protocols"),
    "204-with-body": lambda sane: then(End.KEEP, counted(sane, sane.body, status="204 No Content")),
    "205-with-body": lambda sane: then(End.KEEP, counted(sane, sane.body, status="205 Reset Content")),
    "304-with-body": lambda sane: then(End.KEEP, counted(sane, sane.body, status="304 Not Modified")),
    "two-replies": two_replies,
    "redirect-loop": redirected("{url}", "307 Temporary Redirect"),
    "redirect-loop-302": redirected("{url}", "302 Found"),
    "redirect-away": redirected("http://127.0.0.1:9/v1/completions", "308 Permanent Redirect"),
    "redirect-to-a-file": redirected("file:///etc/passwd", "301 Moved Permanently"),
    "redirect-to-nothing": redirected("", "307 Temporary Redirect"),
    "garbage-at-full-speed": lambda _: for_ever(b"", bytes(range(256)) * 256),
    "zeros-at-full-speed": lambda sane: for_ever(until_head(sane), bytes(MB)),
}

BODIES: Mapping[str, Body] = {**READABLE, **ENCODINGS, **STREAMS, **JSON, **HEADS, **LENGTHS, **CONNECTIONS}
