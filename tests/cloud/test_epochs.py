"""Whether the server behind a wire may have become another one, and requests that leave only where it has not."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager

import pytest
from cases import each

from hybrid.cloud.bounds import Timeouts
from hybrid.cloud.wire import ServerChanged, Wire
from hybrid.errors import CloudError

HEAD = b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"10\r\ndata: [DONE]\r\n\r\n\r\n"
WHOLE_STREAMS = {
    "whole": HEAD + LAST + b"0\r\n\r\n",
    "endless": HEAD + LAST + b"1\r\n\n\r\n" * 3,  # it has said that it is done, and goes on
}


class Served:
    """A server whose paths say with which status it answers; ``/stream`` says one event and then nothing more."""

    def __init__(self):
        self.heard, self.connections, self._serving, self.url = [], [], [], ""

    async def serve(self, incoming, outgoing):
        self._serving.append(asyncio.current_task())
        self.connections.append(outgoing)
        self.heard.append(b"")
        number = len(self.heard) - 1
        while line := await incoming.readline():
            self.heard[number] += line
            if line.startswith(b"POST"):
                path = line.split()[1].decode().strip("/")
            if line == b"\r\n":
                self.heard[number] += await incoming.readexactly(len(b"{}"))
                outgoing.write(self.answer(path))
        outgoing.close()

    def answer(self, path):
        if path in WHOLE_STREAMS:
            return WHOLE_STREAMS[path]
        if path == "stream":
            return b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n"
        return f"HTTP/1.1 {path or 200} x\r\ncontent-length: 2\r\n\r\n{{}}".encode()

    async def hang_up(self):
        """Close every connection, and wait until the client could know."""
        for connection in self.connections:
            connection.close()
        await asyncio.sleep(0.05)

    async def rest(self):
        await self.hang_up()
        await asyncio.wait(self._serving)


@asynccontextmanager
async def serving():
    served = Served()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, Timeouts(total=5))
    try:
        yield served, wire
    finally:
        await wire.aclose()
        server.close()
        await served.rest()


def with_server(test):
    """Run what awaits a server and a wire to it."""

    async def run():
        async with serving() as (served, wire):
            return await test(served, wire)

    return asyncio.run(run())


def test_an_epoch_lasts_from_one_request_to_the_next_and_not_over_a_new_connection():
    async def asked(served, wire):
        epochs = [wire.epoch]
        for closed in (False, False, True):
            deadlines = wire.question_deadlines()
            await wire.post("/", {}, deadlines=deadlines)
            assert deadlines.sent_in_epoch == wire.epoch, "it says in which epoch a request has left"
            epochs.append(wire.epoch)
            if closed:
                await served.hang_up()
                epochs.append(wire.epoch)
        await wire.post("/", {})
        return [*epochs, wire.epoch]

    before, first, second, third, hung_up, again = with_server(asked)
    assert before is hung_up is None, "without a connection nobody knows who would answer"
    assert first == second == third != again
    assert None not in {first, again}


@each(
    ("status", "ends"), [(403, True), (500, True), (502, True), (503, True), (400, False), (404, False), (429, False)]
)
def test_an_epoch_ends_with_what_a_server_that_is_exchanged_says(status, ends):
    """A proxy keeps its connection to us and says 502 while it has no server behind it; V1 has no such route: 403."""

    async def asked(_, wire):
        await wire.post("/", {})
        before = wire.epoch
        with pytest.raises(CloudError):
            await wire.post(f"/{status}", {})
        return before, wire.epoch

    before, after = with_server(asked)
    assert after is not None
    assert (before != after) is ends


def test_a_request_leaves_in_the_epoch_it_is_meant_for():
    async def asked(served, wire):
        await wire.post("/", {})
        await wire.post("/", {}, only_in=wire.epoch)
        return served.heard

    [only] = with_server(asked)
    assert only.count(b"POST") == 2


async def refuse(wire, epoch, recorded):
    async def leaving(_num_bytes=0):
        recorded.append("it leaves")

    with pytest.raises(ServerChanged):
        await wire.post("/", {}, deadlines=wire.question_deadlines(before_send=leaving), only_in=epoch)


@each("ended_by", ["a new connection", "a 500", "a connection that has closed"])
def test_a_request_that_is_meant_for_another_epoch_does_not_leave(ended_by):
    """Nothing of it is sent, no connection is made for it, and nobody records that it leaves: it costs nothing."""
    recorded = []

    async def asked(served, wire):
        await wire.post("/", {})
        epoch = wire.epoch
        if ended_by == "a 500":
            with pytest.raises(CloudError):
                await wire.post("/500", {})
        else:
            await served.hang_up()
        if ended_by == "a new connection":
            await wire.post("/", {})
        before = list(served.heard)
        await refuse(wire, epoch, recorded)
        return before == served.heard

    assert with_server(asked)
    assert recorded == []


def test_a_request_that_turns_out_to_need_a_new_connection_does_not_leave():
    """The one that is open is taken by a stream, which nobody could know before."""
    recorded = []

    async def asked(served, wire):
        async with aclosing(wire.stream("/stream", {}, "r")) as events:
            await anext(events)
            assert wire.epoch is not None
            await refuse(wire, wire.epoch, recorded)
            await asyncio.sleep(0.05)
            return list(served.heard)

    first, *others = with_server(asked)
    assert first.count(b"POST") == 1
    assert others == [b""], "a connection was made, and no byte was sent over it"
    assert recorded == []


def test_two_open_connections_may_lead_to_two_servers():
    """A service spreads connections over its servers: which of them answers the next request, nobody knows."""

    async def asked(_, wire):
        async with aclosing(wire.stream("/stream", {}, "r")) as events:
            await anext(events)
            alone = wire.epoch
            deadlines = wire.question_deadlines()
            await wire.post("/", {}, deadlines=deadlines)
            return alone, deadlines.sent_in_epoch, wire.epoch

    alone, sent_in_epoch, both = with_server(asked)
    assert alone is not None
    assert sent_in_epoch is both is None


@each(("stream", "kept"), [("whole", True), ("endless", False)])
def test_a_stream_that_is_over_leaves_its_connection_to_the_next_request(stream, kept):
    """Else every answer that the cloud writes would end what was shown, and take another connection."""

    async def asked(served, wire):
        assert [event async for event in wire.stream(f"/{stream}", {}, "r")] == []
        before = wire.epoch
        await wire.post("/", {})
        return before == wire.epoch, len(served.heard)

    assert with_server(asked) == (kept, 1 if kept else 2)
