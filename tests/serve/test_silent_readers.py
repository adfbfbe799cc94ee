"""Who reads nothing is cut off: what was held for it is free again, and an endpoint is not blamed for it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import uvicorn
from asgi_caller import Opened
from cases import each
from chat_upstream import DONE, STREAM, Script, delta
from relays import TOOLS, relaying
from uvicorn.server import ServerState

from hybrid.serve import server
from hybrid.serve.app import make_app
from hybrid.serve.app_state import AppState, ServeOptions
from hybrid.serve.monitor import Monitor


@asynccontextmanager
async def served(app):
    """Serve an application by the endpoint's own protocol; yield its port."""
    config = uvicorn.Config(app, http=server.BoundedHttp, ws="none", lifespan="off", log_config=None, port=0)
    running = server.Server(config)
    task = asyncio.create_task(running.serve())
    while not running.started:  # noqa: ASYNC110  (uvicorn tells nobody)
        await asyncio.sleep(0.01)
    try:
        yield running.servers[0].sockets[0].getsockname()[1]
    finally:
        running.should_exit = True
        await task
        await running.settled()


async def silent_caller(port, head, body=b""):
    """Ask, and read nothing; what the system holds for it is small."""
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    caller.setblocking(False)
    await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(caller, head + b"host: localhost\r\n\r\n" + body)
    return caller


@each("ends", [False, True])
def test_an_answer_whose_caller_reads_nothing_ends_while_it_is_sent_and_after_it(run, monkeypatch, ends):
    """Also where all of it was handed over at once, and the connection is only to be closed."""
    monkeypatch.setattr(server, "SEND_WITHIN_S", 0.1)

    async def go():
        left = asyncio.Event()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 2**24, "more_body": not ends})
            await receive()
            while (await receive())["type"] != "http.disconnect":
                pass
            left.set()

        async with served(app) as port:
            caller = await silent_caller(port, b"GET / HTTP/1.1\r\n")
            async with asyncio.timeout(30):
                await left.wait()
            caller.close()

    run(go())


def test_a_relay_whose_caller_reads_nothing_is_closed_and_settled(house, run, monkeypatch):
    """105 of them turned every relay into a 503, and their reservations stood for ever."""
    monkeypatch.setattr(server, "SEND_WITHIN_S", 0.1)
    flood = Script.stream([delta("x" * 2**16)] * 400)

    async def go():
        opened = house()
        async with relaying(flood, flood, Script.stream([*STREAM, DONE])) as relay:
            opened.client.relayer = relay.relayer
            monitor = Monitor(ServeOptions())
            async with served(make_app(AppState(Opened(opened.client), ServeOptions(), monitor))) as port:
                asked = {"model": "hybrid", "messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
                body = json.dumps({**asked, "stream": True, "max_tokens": 50}).encode()
                head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n"
                head += f"content-length: {len(body)}\r\n".encode()
                callers = [await silent_caller(port, head, body) for _ in range(2)]
                async with asyncio.timeout(60):
                    while len(relay.there.requests) < 2 or relay.relayer._under_way:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert relay.spent[1] == 0, "nothing is reserved any more"
                assert relay.spent[0] >= 2 * relay.most(50, messages=asked["messages"]), (
                    "a server charges for what it ran ahead"
                )
                assert relay.relayer.health.breaker.in_a_row == 0
                for caller in callers:
                    caller.close()
            monitor.close()
        await opened.client.aclose()

    run(go())


def test_a_server_that_ends_waits_for_no_body_that_has_not_come(run):
    """40 of them took all of the five seconds that answers are given. Here answers are given for ever."""

    async def go():
        began, left = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            while (message := await receive())["type"] == "http.request":
                began.set()
                assert message["more_body"]
            left.set()

        async with asyncio.timeout(30):
            async with served(app) as port:
                head = b"POST / HTTP/1.1\r\ncontent-length: 100\r\n"
                caller = await silent_caller(port, head, b"half")
                await began.wait()
            assert left.is_set()
            caller.close()

    run(go())


class Transport:
    """A connection of which a test says how much is unread."""

    def __init__(self):
        self.unread, self.aborted = 0, False

    def get_write_buffer_size(self):
        return self.unread

    def abort(self):
        self.aborted = True


class Loop:
    """A clock that a test moves."""

    def __init__(self):
        self.waiting = []

    def call_later(self, _, work, *given):
        handle = asyncio.TimerHandle(0.0, work, given, asyncio.get_event_loop())
        self.waiting.append(handle)
        return handle

    def pass_the_time(self):
        due, self.waiting = self.waiting, []
        for handle in due:
            if not handle.cancelled():
                handle._callback(*handle._args)


@each("taken, held", [(0, False), (1000, False), (16 * 1024, True), (10**5, True)])
def test_who_reads_slowly_is_not_cut_off(run, taken, held):
    async def go():
        loop, transport = Loop(), Transport()
        config = uvicorn.Config(None, log_config=None)
        config.loaded_app = None
        protocol = server.BoundedHttp(config, ServerState(), {}, _loop=asyncio.get_running_loop())
        protocol.loop, protocol.transport, protocol.flow = loop, transport, protocol.flow or Flow()
        transport.unread = 10**6
        protocol.pause_writing()
        for _ in range(5):
            transport.unread -= taken
            loop.pass_the_time()
        assert transport.aborted is not held
        protocol.resume_writing()
        transport.unread = 10**6
        loop.pass_the_time()
        assert transport.aborted is not held, "nothing waits any more"

    run(go())


class Flow:
    """What uvicorn's own protocol tells its application."""

    def pause_writing(self):
        pass

    def resume_writing(self):
        pass
