"""The wire alone, against servers that do what no library would: endless lines, endless streams."""

from __future__ import annotations

import threading
import time

import pytest

from hybrid.errors import BadReply, Unreachable


@pytest.fixture
def raw_server():
    """A server that answers every connection with the given bytes, again and again if asked to."""
    import socket

    listeners = []

    def start(head: bytes, forever: bytes = b"", pause: float = 0.0) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65536)
                        connection.sendall(head)
                        while forever:
                            connection.sendall(forever)
                            time.sleep(pause)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def read_stream(url, total, pause):
    """Read a stream through the wire alone, pausing after every event."""
    import asyncio
    from contextlib import aclosing

    from hybrid.cloud.wire import Deadlines, Wire

    async def read():
        wire, seen = Wire(url, None, Deadlines(1, 2, total)), 0
        try:
            async with aclosing(wire.stream("/v1/completions", {}, "r")) as events:
                async for _ in events:
                    seen += 1
                    await asyncio.sleep(pause)
        finally:
            await wire.aclose()
        return seen

    return asyncio.run(read())


def test_a_line_that_never_ends_is_given_up_in_bounded_memory(raw_server):
    with pytest.raises(BadReply, match="end its lines"):
        read_stream(raw_server(STREAM + b"data: ", b"x" * 2**20), 30, 0)


def test_the_total_deadline_ends_the_reading_and_not_whoever_reads(raw_server):
    """A deadline held across a yield would cancel the answer's own task while the local model computes."""
    with pytest.raises(Unreachable, match="in time"):
        read_stream(raw_server(STREAM, b"data: {}\n\n", 0.2), 0.3, 0.5)


def test_a_stream_that_never_ends_is_given_up_at_its_deadline_even_if_it_never_makes_us_wait(raw_server):
    with pytest.raises(Unreachable, match="in time"):
        read_stream(raw_server(STREAM, b"data: {}\n\n"), 0.5, 0)
