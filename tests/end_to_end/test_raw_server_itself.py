"""The server of raw bytes, looked at with a socket: it says what it promises, and sees when nobody listens."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import time
import urllib.request
import zlib
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import islice

import httpx
import pytest
from cases import each
from raw_bodies import Sane, bomb
from raw_server import BODIES, READABLE, RawServer

BODY = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0, "logprobs": 2, "return_token_ids": True}
STREAMED = BODY | {"stream": True, "stream_options": {"include_usage": True}}
# Bodies that begin with no status line, and those that send nothing at all.
NO_HEAD = {"status-line-garbage", "http-0.9", "http-2", "tls", "ssh", "garbage-at-full-speed"}
NOTHING = {"silence", "reset", "closed"}
# What is looked at by default; the others are among the slow tests.
SOME_READABLE = {"byte-order-mark", "mixed-line-ends"}
PARTS = ["some", "others"]
SOME = {"sane", "status-line-garbage", "1xx-for-ever", "two-replies", "one-byte-a-half-second", *NOTHING}


@pytest.fixture(scope="module")
def server():
    with RawServer() as server:
        yield server


def asked(server, body, path="/v1/completions"):
    """A connection on which a request was sent."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    text = json.dumps(body).encode()
    connection.sendall(f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(text)}\r\n\r\n".encode() + text)
    return connection


def begins(connection, seconds=0.05):
    """What comes in so short a time after the first byte, which may take longer; some 64 kB at most."""
    connection.settimeout(5)
    said, until = b"", None
    with suppress(TimeoutError, ConnectionResetError):
        while len(said) < 65536 and (part := connection.recv(65536)):
            said, until = said + part, until or time.monotonic() + seconds
            connection.settimeout(max(until - time.monotonic(), 1e-4))
            if time.monotonic() > until:
                break
    return said


def ended(visit):
    """How a visit ended, once it has."""
    until = time.monotonic() + 10
    while visit.ended_by is None and time.monotonic() < until:
        time.sleep(0.005)
    return visit.ended_by


def events_of(text):
    """The events of a stream, read as WHATWG describes it."""
    lines = re.split("\r\n|\n|\r", text.removeprefix("\ufeff"))
    events, data = [], []
    for line in lines[:-1]:
        name, _, value = line.partition(":")
        if not line and data:
            events.append("\n".join(data))
            data = []
        elif name == "data":
            data.append(value.removeprefix(" "))
    return [event if event == "[DONE]" else json.loads(event) for event in events]


@pytest.mark.parametrize("bodies", [SOME, pytest.param(BODIES.keys() - SOME, marks=pytest.mark.slow)], ids=PARTS)
def test_each_body_comes_and_the_visit_is_recorded(server, bodies):
    for request_body in (BODY, STREAMED):
        each("body", sorted(bodies))(partial(check_that_it_comes, server, request_body=request_body))()


def check_that_it_comes(server, body, request_body):
    server.body = body
    with asked(server, request_body) as connection:
        if body == "silence":
            time.sleep(0.1)
        said = b"" if body == "silence" else begins(connection)
    visit = server.visits[-1]
    assert ended(visit) in {"client", "server"}
    assert (visit.name, visit.method, visit.path) == (body, "POST", "/v1/completions")
    assert json.loads(visit.body) == request_body
    assert visit.sent >= min(len(said), 1)
    assert bool(said) is (body not in NOTHING)
    if said and body not in NO_HEAD:
        assert said[:5] == b"HTTP/" or body == "one-byte-a-half-second"


@pytest.mark.slow
def test_no_two_bodies_say_the_same():
    """Each name stands for bytes of its own; a body that is the sane reply by mistake would test nothing."""
    whole = Sane(200, "application/json", b'{"text": -0.5, "usage": 1}', "http://host/path")
    events = b"".join(b"data: %b\n\n" % text for text in (b'{"text": -0.5, "b": 1}', b'{"text": 1.5}', b"[DONE]"))
    stream = Sane(200, "text/event-stream; charset=utf-8", events, "http://host/path")
    seen = {name: (*islice(body(whole), 6), *islice(body(stream), 6)) for name, body in BODIES.items()}
    assert len(BODIES) == len(set(seen.values()))


@pytest.mark.parametrize(
    "bodies", [SOME_READABLE, pytest.param(READABLE.keys() - SOME_READABLE, marks=pytest.mark.slow)], ids=PARTS
)
def test_what_is_readable_says_what_the_sane_reply_says(server, bodies):
    """Read with httpx, and with events as their standard has them."""
    each("body", sorted(bodies))(partial(check_that_it_is_read, server))()


def check_that_it_is_read(server, body):

    def read(name, request_body):
        server.body = name
        text = httpx.post(server.url + "/v1/completions", json=request_body, trust_env=False, timeout=20).text
        text = re.sub('"cmpl-[^"]*"', '"cmpl"', text)
        return events_of(text) if request_body is STREAMED else json.loads(text.removeprefix("\ufeff"))

    for request_body in (BODY, STREAMED):
        assert read(body, request_body) == read("sane", request_body)
    assert len(read(body, STREAMED)) == 5  # three tokens, usage, [DONE]


@pytest.mark.slow
def test_a_bomb_is_small_and_holds_a_gibibyte():
    """Unpacked a MiB at a time: what a careless client would hold at once."""
    assert 2000 < len(bomb(2)) < 4000
    assert len(bomb(3)) < 400
    assert gzip.decompress(bomb(3)) == bomb(2)
    assert gzip.decompress(bomb(2)) == bomb(1)
    for container, packed in ((zlib.MAX_WBITS | 16, bomb(1)), (zlib.MAX_WBITS, bomb(1, zlib.MAX_WBITS))):
        unpacker, size, kinds = zlib.decompressobj(container), 0, Counter()
        left = packed
        while left:
            part = unpacker.decompress(left, 1 << 20)
            left, size = unpacker.unconsumed_tail, size + len(part)
            if size <= 1 << 22:
                kinds.update(part)
        assert size + len(unpacker.flush()) == 1 << 30
        assert unpacker.eof  # the check sums are right
        assert kinds.keys() == {ord(" ")}


@each("body", ["event-of-a-gigabyte", "1xx-for-ever", "headers-endless", "zeros-at-full-speed"])
def test_what_has_no_end_goes_on_while_it_is_read_and_stops_when_the_client_goes(server, body):
    server.body = body
    with asked(server, STREAMED) as connection:
        read = 0
        while read < 8 << 20:
            read += len(connection.recv(1 << 20))
    visit = server.visits[-1]
    assert ended(visit) == "client"
    assert read - (1 << 20) <= visit.sent < read + (16 << 20)
    assert visit.seconds > 0


def test_a_silent_server_knows_how_long_it_was_waited_for(server):
    server.body = "silence"
    with asked(server, BODY):
        time.sleep(0.3)
    assert ended(server.visits[-1]) == "client"
    assert 0.25 < server.visits[-1].seconds < 5
    assert server.visits[-1].sent == 0


def test_discovery_is_sane_unless_it_is_everywhere(server):
    server.body = "status-line-garbage"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path, name in (("/version", "version"), ("/v1/models", "data")):
        assert name in json.load(opener.open(server.url + path))
    tokenize = urllib.request.Request(server.url + "/tokenize", b'{"prompt": "abc"}')
    assert json.load(opener.open(tokenize))["count"] > 0
    assert [visit.name for visit in server.visits[-3:]] == ["", "", ""]
    with RawServer("status-line-garbage", everywhere=True) as bad, pytest.raises(http.client.BadStatusLine):
        opener.open(bad.url + "/version")


def test_a_reply_that_nobody_asked_for_lies_on_the_connection_before_the_next_request(server):
    """A client that goes on with this connection takes it for the reply to its next request."""
    server.body = "two-replies"
    with asked(server, BODY) as connection:
        _, first, second = begins(connection).split(b"HTTP/1.1 200 OK")
        assert b'"choices"' in first
        assert b"poison" in second
        connection.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")
        assert b'"large"' in begins(connection)


def test_a_reset_is_a_reset_and_a_close_a_close(server):
    server.body = "reset"
    with asked(server, BODY) as connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
    server.body = "closed"
    with asked(server, BODY) as connection:
        assert connection.recv(1) == b""
    server.body = "closed-after-head"
    with asked(server, BODY) as connection:
        assert begins(connection, 2).endswith(b"\r\n\r\n")


def test_nested_encodings_are_announced_as_they_are_packed(server):
    for name, layers in (("gzip-bomb-twice", 2), ("gzip-bomb-thrice", 3)):
        server.body = name
        with asked(server, BODY) as connection:
            head, _, body = begins(connection, 2).partition(b"\r\n\r\n")
        assert b"content-encoding: " + b", ".join([b"gzip"] * layers) in head
        assert body == bomb(layers)
