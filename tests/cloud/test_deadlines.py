"""How long a question is waited for: to connect, to leave, to its first byte, between parts, in all."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack

import pytest
from cases import each
from wires import DONE, EVENT, STREAM, WHOLE, post, read_stream

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.errors import BadReply, Unreachable


def test_the_total_deadline_ends_a_stream_whose_parts_keep_coming(raw_server):
    with pytest.raises(Unreachable, match=r"not whole after 0\.3 s"):
        read_stream(raw_server(STREAM, EVENT, 0.1), Timeouts(total=0.3))


def test_the_time_that_the_reader_takes_is_not_the_endpoints(raw_server):
    """A deadline held across a yield would cancel the answer's own task while the local model computes."""
    url = raw_server(STREAM, then=((0.1, EVENT), (0.1, EVENT), (0.1, DONE)))
    assert read_stream(url, Timeouts(read=0.5, total=0.5), pause=0.6) == 2


def test_a_stream_that_never_ends_is_given_up_at_its_deadline_even_if_it_never_makes_us_wait(raw_server):
    with pytest.raises(Unreachable, match="in time"):
        read_stream(raw_server(STREAM, EVENT), Timeouts(total=0.5))


def test_the_first_byte_has_a_deadline_of_its_own(raw_server):
    """A prompt is read before the first token is written; after that, silence means something else."""
    slow = raw_server(STREAM, then=((0.5, EVENT + DONE),))
    assert read_stream(slow, Timeouts(first_byte=2.0, read=0.1)) == 1
    with pytest.raises(Unreachable, match=r"nothing came for 0\.2 s"):
        read_stream(slow, Timeouts(first_byte=0.2, read=2.0))
    with pytest.raises(Unreachable, match=r"nothing more came for 0\.2 s"):
        read_stream(raw_server(STREAM + EVENT, then=((1.0, DONE),)), Timeouts(read=0.2))


def test_headers_alone_are_no_first_byte(raw_server):
    """Most servers send them before they have read the prompt."""
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    with pytest.raises(Unreachable, match=r"nothing came for 0\.2 s"):
        post(raw_server(whole, then=((1.0, b"{}"),)), Timeouts(first_byte=0.2, read=2.0))


def test_a_question_of_several_requests_has_one_total(raw_server):
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n"
    url = raw_server(b"", then=((0.2, whole + b"{}"),))
    assert post(url, Timeouts(first_byte=0.5, total=1.0), times=2) == [{}, {}]
    with pytest.raises(Unreachable, match=r"not whole after 0\.5 s"):
        post(url, Timeouts(first_byte=0.4, total=0.5), times=4)


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
    assert refused_to_connect(full, Timeouts(connect=0.2), r"no connection within 0\.2 s") == "connect"


def test_what_had_no_connection_when_the_total_was_over_was_not_sent(full):
    assert refused_to_connect(full, Timeouts(total=0.2), r"not whole after 0\.2 s") is None
    assert refused_to_connect(full, Timeouts(connect=0.3, first_byte=0.2), r"no connection within 0\.3 s") == "connect"


def test_a_resolver_that_hangs_is_no_longer_waited_for_than_a_connection(resolver):
    resolver(5)
    assert refused_to_connect("http://there", Timeouts(connect=0.2), r"no connection within 0\.2 s") == "connect"


def test_a_name_with_a_silent_address_is_connected_to_by_another(raw_server, full, resolver):
    """One address of this machine lets nobody in at the server's port; both are tried within one deadline."""
    port = int(raw_server(WHOLE + b"{}").rpartition(":")[2])
    with socket.create_server(("127.0.0.2", port), backlog=0), ExitStack() as held:
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        resolver(0, "127.0.0.2", "127.0.0.1")
        assert post(f"http://there:{port}", Timeouts(connect=5)) == [{}]
        resolver(0, "127.0.0.2", "127.0.0.2", "127.0.0.2")
        refused_to_connect(f"http://there:{port}", Timeouts(connect=0.6), r"no connection within 0\.6 s")


def test_tls_and_the_look_up_before_it_have_one_deadline(raw_server, resolver):
    """A server that takes the connection and says nothing: the handshake has what the look-up has left."""
    port = raw_server(b"", then=((9.0, b""),)).rpartition(":")[2]
    resolver(1.5, "127.0.0.1")
    began = time.monotonic()
    refused_to_connect(f"https://there:{port}", Timeouts(connect=2.5), r"no connection within 2\.5 s")
    assert time.monotonic() - began < 3.7


def test_a_proxy_that_says_nothing_is_no_connection(raw_server, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", raw_server(b"", then=((3.0, b""),)))
    deadlines = Timeouts(connect=0.3, first_byte=1.0)
    assert refused_to_connect("https://there", deadlines, r"no connection within 0\.3 s") == "connect"


def test_a_proxy_that_refuses_is_no_connection(raw_server, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", raw_server(b"HTTP/1.1 502 x\r\ncontent-length: 0\r\n\r\n"))
    assert refused_to_connect("https://there", Timeouts(), "cannot reach https://there: 502") == "connect"


def test_the_first_byte_is_waited_for_from_when_the_request_has_left(raw_server, resolver):
    port = raw_server(b"", then=((0.5, WHOLE + b"{}"),)).rpartition(":")[2]
    resolver(0.7, "127.0.0.1")
    assert post(f"http://there:{port}", Timeouts(first_byte=1.0)) == [{}]


def test_what_was_waited_for_in_earlier_attempts_counts_in_the_total(raw_server):
    async def posted():
        wire = Wire(raw_server(b"", then=((5.0, b""),)), None, Timeouts(total=60.0))
        try:
            await wire.post("/", {}, deadlines=wire.question_deadlines(asked_at=time.monotonic() - 59.8))
        finally:
            await wire.aclose()

    with pytest.raises(Unreachable, match="not whole after 60 s"):
        asyncio.run(posted())


def test_finding_out_what_an_endpoint_is_has_one_total(raw_server):
    """Each of its questions would be in time."""

    async def look(total):
        url = raw_server(b"", then=((0.4, WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"[]"),))
        endpoint = Endpoint(Wire(url, None, Timeouts(total=total)), "m", dialect="vllm")
        try:
            await endpoint.discover("a", (1,))
        finally:
            await endpoint.aclose()

    with pytest.raises(BadReply):
        asyncio.run(look(60))
    with pytest.raises(Unreachable, match=r"not whole after 0\.5 s"):
        asyncio.run(look(0.5))


@each("reader", ["post", "stream"])
@each("stopped", [False, True])
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

    async def leaving(_num_bytes=0):
        for _ in range(50):  # whatever was sent before this would be there by now
            await asyncio.sleep(0.002)
        seen.append("recorded")
        if stopped:
            raise KeyError("it stays")

    async def asked():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, Timeouts(total=5))
        try:
            for _ in range(2):  # on a new connection and on an old one
                if reader == "post":
                    await wire.post("/", {}, deadlines=wire.question_deadlines(before_send=leaving))
                else:
                    assert [
                        event async for event in wire.stream("/", {}, "r", wire.question_deadlines(before_send=leaving))
                    ] == []
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

    async def slow(num_bytes):
        assert num_bytes == len(b"{}"), "of the body"
        await asyncio.sleep(0.6)

    async def full(_num_bytes):
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
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, Timeouts(connect=0.3, total=0.5))
        try:
            return await wire.post("/", {}, deadlines=wire.question_deadlines(before_send=leaving))
        finally:
            await wire.aclose()
            server.close()
            await asyncio.wait(serving)

    assert asyncio.run(asked(slow)) == {}
    serving.clear()
    with pytest.raises(KeyError, match="the disk is full"):
        asyncio.run(asked(full))
