"""The wire alone, against servers that do what no library would: endless lines, endless streams, long silences."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import tracemalloc
from contextlib import ExitStack, aclosing

import pytest

from hybrid.cloud import Chunk, WriteQuestion
from hybrid.cloud.deadlines import Deadlines
from hybrid.cloud.dialects.dialect import Asked
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import AccessDenied, BadReply, CloudFailure, CloudRefusal, NotAnApi, Unreachable
from hybrid.types import CloudUsage, Sampling

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def read_stream(url, deadlines, pause=0.0):
    """Read a stream through an endpoint, pausing after every chunk; return how many events there were."""

    class Dialect:
        rows, rows_altered_by = False, frozenset()

        def worst(self, question):
            return CloudUsage(1, 10**6)

        least = worst

        def write(self, question):
            return Asked("/v1/completions", {}, stream="to done"), lambda _: Chunk((1,), (None,))

    async def read():
        endpoint, seen = Endpoint(Wire(url, None, deadlines)), 0
        endpoint.dialect = Dialect()
        try:
            async with aclosing(endpoint.write(WriteQuestion((1,), 9, 0, Sampling(), "r"))) as chunks:
                async for chunk in chunks:
                    seen += len(chunk.ids)
                    await asyncio.sleep(pause)
        finally:
            await endpoint.aclose()
        return seen

    return asyncio.run(read())


def get(url, deadlines):
    """Ask for a fact."""

    async def got():
        wire = Wire(url, None, deadlines)
        try:
            return await wire.get("/v1/models")
        finally:
            await wire.aclose()

    return asyncio.run(got())


def post(url, deadlines, times=1):
    """Post so many times for one question."""

    async def posted():
        wire = Wire(url, None, deadlines)
        waits = wire.waits()
        try:
            return [await wire.post("/", {}, waits=waits) for _ in range(times)]
        finally:
            await wire.aclose()

    return asyncio.run(posted())


def test_a_line_that_never_ends_is_given_up_in_bounded_memory(raw_server):
    with pytest.raises(BadReply, match="end its lines"):
        read_stream(raw_server(STREAM + b"data: ", b"x" * 2**20), Deadlines(total=30))


EVENT, DONE = b"data: {}\n\n", b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbfdata: {}\n\ndata: [DONE]\n\n",
        b"data: {}\r\rdata: [DONE]\r\r",
        b'data: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n',
        b": ping\n\ndata\n\nid: 1\ndata:{}\n\ndata:[DONE]\n\n",
    ],
    ids=ascii,
)
def test_a_stream_is_read_as_the_standard_says(raw_server, body):
    """A byte order mark, bare carriage returns, an event on two lines, one without data: all of it is allowed."""
    for cut in (1, len(body) // 2, len(body) - 1):
        assert read_stream(raw_server(STREAM + body[:cut], then=((0.05, body[cut:]),)), Deadlines(total=5)) == 1


def test_the_total_deadline_ends_a_stream_whose_parts_keep_coming(raw_server):
    with pytest.raises(Unreachable, match=r"not whole after 0\.3 s"):
        read_stream(raw_server(STREAM, EVENT, 0.1), Deadlines(total=0.3))


def test_the_time_that_the_reader_takes_is_not_the_endpoints(raw_server):
    """A deadline held across a yield would cancel the answer's own task while the local model computes."""
    url = raw_server(STREAM, then=((0.1, EVENT), (0.1, EVENT), (0.1, DONE)))
    assert read_stream(url, Deadlines(read=0.5, total=0.5), pause=0.6) == 2


def test_a_stream_that_never_ends_is_given_up_at_its_deadline_even_if_it_never_makes_us_wait(raw_server):
    with pytest.raises(Unreachable, match="in time"):
        read_stream(raw_server(STREAM, EVENT), Deadlines(total=0.5))


def test_the_first_byte_has_a_deadline_of_its_own(raw_server):
    """A prompt is read before the first token is written; after that, silence means something else."""
    slow = raw_server(STREAM, then=((0.5, EVENT + DONE),))
    assert read_stream(slow, Deadlines(first_byte=2.0, read=0.1)) == 1
    with pytest.raises(Unreachable, match=r"nothing came for 0\.2 s"):
        read_stream(slow, Deadlines(first_byte=0.2, read=2.0))
    with pytest.raises(Unreachable, match=r"nothing more came for 0\.2 s"):
        read_stream(raw_server(STREAM + EVENT, then=((1.0, DONE),)), Deadlines(read=0.2))


def test_headers_alone_are_no_first_byte(raw_server):
    """Most servers send them before they have read the prompt."""
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    with pytest.raises(Unreachable, match=r"nothing came for 0\.2 s"):
        post(raw_server(whole, then=((1.0, b"{}"),)), Deadlines(first_byte=0.2, read=2.0))


def test_a_question_of_several_requests_has_one_total(raw_server):
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    url = raw_server(b"", then=((0.2, whole + b"{}"),))
    assert post(url, Deadlines(first_byte=0.5, total=1.0), times=2) == [{}, {}]
    with pytest.raises(Unreachable, match=r"not whole after 0\.5 s"):
        post(url, Deadlines(first_byte=0.4, total=0.5), times=4)


@pytest.fixture
def full():
    """The address of a server whose backlog is full: it lets nobody in."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as held:
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def resolver(monkeypatch):
    """Make every name lead to some addresses, after so many seconds."""

    def answer(seconds, *addresses):
        def look_up(host, port, *_, **__):
            time.sleep(seconds)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return answer


def refused_to_connect(url, deadlines, words):
    with pytest.raises(Unreachable, match=words) as late:
        post(url, deadlines)
    assert not late.value.sent, "nothing has left, so nothing was charged"
    return late.value.trouble


def test_a_connection_has_a_deadline_too(full):
    assert refused_to_connect(full, Deadlines(connect=0.2), r"no connection within 0\.2 s") == "connect"


def test_what_had_no_connection_when_the_total_was_over_was_not_sent(full):
    assert refused_to_connect(full, Deadlines(total=0.2), r"not whole after 0\.2 s") is None
    assert refused_to_connect(full, Deadlines(connect=0.3, first_byte=0.2), r"no connection within 0\.3 s") == "connect"


def test_a_resolver_that_hangs_is_no_longer_waited_for_than_a_connection(resolver):
    resolver(5)
    assert refused_to_connect("http://there", Deadlines(connect=0.2), r"no connection within 0\.2 s") == "connect"


def test_a_name_with_a_silent_address_is_connected_to_by_another(raw_server, full, resolver):
    """One address of this machine lets nobody in at the server's port; both are tried within one deadline."""
    port = int(raw_server(WHOLE + b"{}").rpartition(":")[2])
    with socket.create_server(("127.0.0.2", port), backlog=0), ExitStack() as held:
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        resolver(0, "127.0.0.2", "127.0.0.1")
        assert post(f"http://there:{port}", Deadlines(connect=5)) == [{}]
        resolver(0, "127.0.0.2", "127.0.0.2", "127.0.0.2")
        refused_to_connect(f"http://there:{port}", Deadlines(connect=0.6), r"no connection within 0\.6 s")


def test_tls_and_the_look_up_before_it_have_one_deadline(raw_server, resolver):
    """A server that takes the connection and says nothing: the handshake has what the look-up has left."""
    port = raw_server(b"", then=((9.0, b""),)).rpartition(":")[2]
    resolver(1.5, "127.0.0.1")
    began = time.monotonic()
    refused_to_connect(f"https://there:{port}", Deadlines(connect=2.5), r"no connection within 2\.5 s")
    assert time.monotonic() - began < 3.7


def test_a_proxy_that_says_nothing_is_no_connection(raw_server, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", raw_server(b"", then=((3.0, b""),)))
    deadlines = Deadlines(connect=0.3, first_byte=1.0)
    assert refused_to_connect("https://there", deadlines, r"no connection within 0\.3 s") == "connect"


def test_a_proxy_that_refuses_is_no_connection(raw_server, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", raw_server(b"HTTP/1.1 502 x\r\ncontent-length: 0\r\n\r\n"))
    assert refused_to_connect("https://there", Deadlines(), "cannot reach https://there: 502") == "connect"


def test_the_first_byte_is_waited_for_from_when_the_request_has_left(raw_server, resolver):
    port = raw_server(b"", then=((0.5, WHOLE + b"{}"),)).rpartition(":")[2]
    resolver(0.7, "127.0.0.1")
    assert post(f"http://there:{port}", Deadlines(first_byte=1.0)) == [{}]


def test_what_was_waited_for_in_earlier_attempts_counts_in_the_total(raw_server):
    async def posted():
        wire = Wire(raw_server(b"", then=((5.0, b""),)), None, Deadlines(total=60.0))
        try:
            await wire.post("/", {}, waits=wire.waits(asked_at=time.monotonic() - 59.8))
        finally:
            await wire.aclose()

    with pytest.raises(Unreachable, match="not whole after 60 s"):
        asyncio.run(posted())


def test_finding_out_what_an_endpoint_is_has_one_total(raw_server):
    """Each of its questions would be in time."""

    async def look(total):
        url = raw_server(b"", then=((0.4, WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"[]"),))
        endpoint = Endpoint(Wire(url, None, Deadlines(total=total)), "m", dialect="vllm")
        try:
            await endpoint.look("a", (1,))
        finally:
            await endpoint.aclose()

    with pytest.raises(BadReply):
        asyncio.run(look(60))
    with pytest.raises(Unreachable, match=r"not whole after 0\.5 s"):
        asyncio.run(look(0.5))


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


def status(code, *headers):
    return b"\r\n".join((f"HTTP/1.1 {code} x".encode(), *headers, b"content-length: 2", b"", b"{}"))


@pytest.mark.parametrize(
    ("head", "trouble", "sent", "retry_after_s"),
    [
        *[(status(code), "busy", True, None) for code in (408, 409, 425, 500, 502, 503, 504, 529)],
        (status(429), "busy", False, None),
        (status(429, b"Retry-After: 7"), "busy", False, 7.0),
        (status(503, b"retry-after-ms: 20", b"x-should-retry: false"), None, True, 0.02),
        (b"", "cut", True, None),
        (WHOLE[:20], "cut", True, None),
        (WHOLE + b"{", "cut", True, None),
        (WHOLE + b"{]", "malformed", True, None),
        (WHOLE + b"11", None, True, None),
        *[(status(code), None, False, None) for code in (400, 402, 413, 415, 422)],
        *[(status(code), None, True, None) for code in (406, 418, 499)],
    ],
    ids=str,
)
def test_a_fault_says_whether_it_may_pass_and_whether_it_may_have_been_charged(
    raw_server, head, trouble, sent, retry_after_s
):
    with pytest.raises(CloudFailure) as fault:
        post(raw_server(head), Deadlines())
    assert (fault.value.trouble, fault.value.sent, fault.value.retry_after_s) == (trouble, sent, retry_after_s)


@pytest.mark.parametrize("code", [301, 308, 401, 403, 404, 405])
def test_a_refusal_was_not_computed(raw_server, code):
    with pytest.raises(CloudRefusal) as fault:
        post(raw_server(status(code)), Deadlines())
    assert not fault.value.sent


@pytest.mark.parametrize("code", [407, 414, 422, 431])
def test_what_is_turned_away_unread_is_no_refusal_and_was_not_computed(raw_server, code):
    with pytest.raises(CloudFailure) as fault:
        post(raw_server(status(code)), Deadlines())
    assert not fault.value.sent


def test_a_server_that_does_not_implement_the_method_is_no_bad_day(raw_server):
    """It never will. A proxy's page before a service that is away (502, 503) is one."""
    with pytest.raises(NotAnApi) as fault:
        post(raw_server(status(501)), Deadlines())
    assert fault.value.sent, "a status of 500 or more never says that nothing was computed"
    for code in (500, 502, 503, 504):
        with pytest.raises(Unreachable):
            post(raw_server(status(code)), Deadlines())


def test_a_refused_connection_may_pass_and_cost_nothing():
    with pytest.raises(Unreachable) as fault:
        post("http://127.0.0.1:9", Deadlines())
    assert (fault.value.trouble, fault.value.sent) == ("connect", False)


def test_silence_may_pass_before_the_first_byte_only(raw_server):
    with pytest.raises(Unreachable) as before:
        post(raw_server(b"", then=((1.0, b""),)), Deadlines(first_byte=0.1))
    with pytest.raises(Unreachable) as after:
        post(raw_server(WHOLE + b"{", then=((1.0, b"}"),)), Deadlines(read=0.1))
    assert (before.value.trouble, after.value.trouble) == ("silent", None)


def test_a_stream_that_is_cut_says_so(raw_server):
    with pytest.raises(Unreachable) as fault:
        read_stream(raw_server(STREAM + EVENT), Deadlines())
    assert fault.value.trouble == "cut"


# 64 MiB of spaces and a JSON object, packed twice: less than 300 bytes.
PACKED = gzip.compress(gzip.compress(b" " * 2**26 + b"{}", mtime=0), mtime=0)
READERS = {"get": get, "post": post, "stream": read_stream}


def packed(code, coding, body=PACKED):
    head = b"HTTP/1.1 %d x\r\ncontent-type: text/event-stream\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (code, coding, len(body)) + body


@pytest.mark.parametrize("coding", [b"gzip, gzip", b"GZIP", b"br", b"zstd", b"nobody-knows"], ids=bytes.decode)
@pytest.mark.parametrize("reader", READERS)
def test_a_body_in_an_encoding_is_refused_before_a_byte_of_it_is_decoded(raw_server, reader, coding):
    """A few hundred bytes can stand for gigabytes; it was asked for as it is."""
    url = raw_server(packed(200, coding))
    tracemalloc.start()
    try:
        with pytest.raises(NotAnApi, match=rf"in the encoding {coding.decode().lower()}"):
            READERS[reader](url, Deadlines(total=5))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("reader", READERS)
def test_the_status_of_a_packed_error_page_still_says_what_is_wrong(raw_server, reader):
    with pytest.raises(AccessDenied, match="answered 401"):
        READERS[reader](raw_server(packed(401, b"gzip, gzip")), Deadlines(total=5))


@pytest.mark.parametrize("reader", READERS)
def test_the_status_of_an_endless_error_page_still_says_what_is_wrong(raw_server, reader):
    with pytest.raises(AccessDenied, match="answered 401"):
        READERS[reader](raw_server(b"HTTP/1.1 401 x\r\n\r\n", b" " * 2**20), Deadlines(total=5))


def test_an_encoding_that_is_none_is_read(raw_server):
    assert post(raw_server(packed(200, b"identity", b"{}")), Deadlines(total=5)) == [{}]


@pytest.mark.parametrize("reader", READERS)
def test_every_request_asks_for_no_encoding(reader):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, heard = f"http://127.0.0.1:{listener.getsockname()[1]}", []

        def hear():
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.recv(65536))

        thread = threading.Thread(target=hear)
        thread.start()
        with pytest.raises(Unreachable):
            READERS[reader](url, Deadlines(total=5))
        thread.join()
    assert b"\r\naccept-encoding: identity\r\n" in heard[0].lower()


@pytest.mark.parametrize("reader", ["post", "stream"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_request_leaves_once_that_is_recorded_and_there_is_a_connection(reader, stopped):
    """Recorded before, it would seem spent where no connection comes; after its first byte it may be too late."""
    seen, serving = [], []

    async def serve(incoming, outgoing):
        seen.append("connection")
        serving.append(asyncio.current_task())
        while line := await incoming.readline():
            seen.append("byte")
            if line == b"\r\n":
                outgoing.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\n")
                outgoing.write(b"data: [DONE]\n\n" if reader == "stream" else b"{            }")
        outgoing.close()

    async def leaving():
        for _ in range(50):  # whatever was sent before this would be there by now
            await asyncio.sleep(0.002)
        seen.append("recorded")
        if stopped:
            raise KeyError("it stays")

    async def asked():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, Deadlines(total=5))
        try:
            for _ in range(2):  # on a new connection and on an old one
                if reader == "post":
                    await wire.post("/", {}, waits=wire.waits(leaving=leaving))
                else:
                    assert [event async for event in wire.stream("/", {}, "r", wire.waits(leaving=leaving))] == []
        finally:
            await wire.aclose()
            server.close()
            await asyncio.wait(serving)

    if stopped:
        with pytest.raises(KeyError, match="it stays"):
            asyncio.run(asked())
        assert seen == ["connection", "recorded"]
        return
    asyncio.run(asked())
    order = [what for what, before in zip(seen, [None, *seen], strict=False) if what != before]
    assert order in (["connection", "recorded", "byte"] * 2, ["connection", "recorded", "byte", "recorded", "byte"])


def test_waiting_for_a_record_is_not_waiting_for_the_endpoint():
    """Whoever keeps the record says so in its own words; no deadline of the endpoint passes meanwhile."""

    async def slow():
        await asyncio.sleep(0.6)

    async def full():
        await asyncio.sleep(0.6)
        raise KeyError("the disk is full")

    serving = []

    async def serve(incoming, outgoing):
        serving.append(asyncio.current_task())
        while line := await incoming.readline():
            if line == b"\r\n":
                outgoing.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        outgoing.close()

    async def asked(leaving):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, Deadlines(connect=0.3, total=0.5))
        try:
            return await wire.post("/", {}, waits=wire.waits(leaving=leaving))
        finally:
            await wire.aclose()
            server.close()
            await asyncio.wait(serving)

    assert asyncio.run(asked(slow)) == {}
    serving.clear()
    with pytest.raises(KeyError, match="the disk is full"):
        asyncio.run(asked(full))
