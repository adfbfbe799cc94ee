"""Bodies under way: together never more than there is room for, and nothing of them is left once all have ended."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

from asgi_caller import JSON
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.serve import handler, requests
from hybrid.serve.app_state import ServeOptions
from hybrid.serve.body import BodyTotal
from hybrid.serve.errors import ApiError
from hybrid.serve.guard import Guard
from hybrid.serve.reducer import AnswerLog, AnswerMetadata
from hybrid.types import Message

MIB = 2**20
SCOPE = {"type": "http", "method": "POST", "path": "/v1/x", "headers": JSON, "query_string": b""}


class Caller:
    """One request to a guarded application, which holds what it reads until it is let go."""

    def __init__(self):
        self.coming, self.let_go, self.held, self.status = asyncio.Queue(), asyncio.Event(), 0, None

    async def app(self, scope, receive, send):
        more = True
        while more:
            try:
                message = await receive()
            except ApiError as error:
                self.held = 0
                await error.response()(scope, receive, send)
                return
            self.held += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        await self.let_go.wait()

    def begin(self, guard_of):
        async def send(message):
            self.status = message.get("status", self.status)

        async def run():
            try:
                await guard_of(self)(SCOPE, self.coming.get, send)
            finally:
                self.held = 0

        self.task = asyncio.create_task(run())

    async def settle(self):
        for _ in range(40):
            await asyncio.sleep(0)


def calls(step):
    """Run ``step(begin, callers)`` over one guard; every call goes through it, each to an application of its own."""

    async def go():
        callers = []

        async def routed(scope, receive, send):
            await scope["caller"].app(scope, receive, send)

        guard = Guard(routed, ServeOptions(), sleep=lambda _: asyncio.sleep(0))

        def begin():
            caller = Caller()
            caller.begin(lambda one: lambda scope, *rest: guard({**scope, "caller": one}, *rest))
            callers.append(caller)
            return caller

        try:
            return await step(begin, callers, guard)
        finally:
            for caller in callers:
                caller.task.cancel()
            await asyncio.gather(*(caller.task for caller in callers), return_exceptions=True)
            assert guard._bodies.num_bytes == 0, "at rest nothing is held"

    return asyncio.run(go())


PART = {size: bytes(size) for size in (60_000, 3 * MIB, 7 * MIB, 8 * MIB)}
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "part", "part", "part", "part", "end", "leave", "cancel", "answered"]),
              st.integers(0, 29), st.sampled_from([*PART])),
    min_size=60, max_size=90,
)  # fmt: skip


def test_whatever_comes_ends_and_leaves_they_are_bounded_and_given_back():
    refused = most = 0

    @settings(max_examples=15)
    @given(STEPS)
    def law(steps):
        async def step(begin, callers, guard):
            nonlocal refused, most
            for _ in range(30):
                begin()
            for what, which, size in steps:
                caller = callers[which % len(callers)]
                match what:
                    case "begin":
                        begin()
                    case "part":
                        caller.coming.put_nowait({"type": "http.request", "body": PART[size], "more_body": True})
                    case "end":
                        caller.coming.put_nowait({"type": "http.request", "body": PART[size], "more_body": False})
                    case "leave":
                        caller.coming.put_nowait({"type": "http.disconnect"})
                    case "cancel":
                        caller.task.cancel()
                    case "answered":
                        caller.let_go.set()
                await caller.settle()
                held = sum(caller.held for caller in callers)
                assert held <= 64 * MIB
                assert held == guard._bodies.num_bytes, "what is counted is what is held"
                most = max(most, held)
            refused += sum(caller.status == 503 for caller in callers)

        calls(step)

    law()
    assert refused > 5
    assert most > 40 * MIB


async def _send(caller, num_bytes, *, more):
    caller.coming.put_nowait({"type": "http.request", "body": bytes(num_bytes), "more_body": more})
    await caller.settle()


def test_a_small_question_is_read_while_others_fill_the_room_and_a_long_one_is_told_when_to_ask_again():
    async def step(begin, callers, guard):
        sent = []
        for _ in range(9):
            await _send(begin(), 7 * MIB, more=True)
        assert [caller.status for caller in callers] == [None] * 8 + [503]
        small, long = begin(), begin()
        await _send(small, 10_000, more=False)
        await _send(long, MIB, more=False)
        assert (small.status, small.held, long.status) == (None, 10_000, 503)
        callers[0].coming.put_nowait({"type": "http.disconnect"})
        callers[0].let_go.set()
        await callers[0].settle()
        again = begin()
        await _send(again, MIB, more=False)
        assert (again.status, again.held) == (None, MIB)
        return sent

    calls(step)


def test_a_body_that_has_no_room_is_a_503_in_the_apis_words(endpoint, run):
    served = endpoint()
    with served.app._bodies.open_share() as share:
        for _ in range(7):
            share.grow(8 * MIB)
        body = {"model": "hybrid:local", "messages": [{"role": "user", "content": "a" * 100_000}], "max_tokens": 2}
        heard = run(served.ask("/v1/chat/completions", body))
        assert (heard.status, heard.error["code"], heard.headers["retry-after"]) == (503, "overloaded", "2")
        assert heard.headers["connection"] == "close"
        small = {**body, "messages": [{"role": "user", "content": "a"}]}
        assert run(served.ask("/v1/chat/completions", small)).status == 200
    assert run(served.ask("/v1/chat/completions", json.dumps(small).encode())).status == 200


def test_long_bodies_are_read_one_at_a_time(endpoint, run, monkeypatch):
    """What JSON says in three bytes takes 70 once it is read: six of 8 MiB at once were more than the machine had."""
    served, read, now, most = endpoint(), handler._read, [0], [0]

    def counted(raw, how, pace):
        assert not gc.isenabled(), "it looks at all that was made by now, again and again"
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return read(raw, how, pace)
        finally:
            now[0] -= 1

    monkeypatch.setattr(handler, "_read", counted)
    body = b'{"messages": [' + b"[]," * 100_000 + b"[]]}"

    async def several():
        return await asyncio.gather(*(served.ask("/v1/chat/completions", body) for _ in range(6)))

    assert [heard.status for heard in run(several())] == [400] * 6
    assert most == [1]
    assert gc.isenabled()


def test_a_caller_who_leaves_while_its_body_waits_holds_nothing(endpoint, run, monkeypatch):
    """A model may take minutes to load; by then the room was full of what nobody waited for."""
    served, waits = endpoint(), asyncio.Event()

    async def client():
        waits.set()
        await asyncio.Event().wait()

    backend = SimpleNamespace(client=client, opened=None)
    monkeypatch.setattr(served.app._app.state, "app_state", replace(served.app._app.state.app_state, backend=backend))

    async def leaves():
        gone = asyncio.Event()
        asking = asyncio.create_task(served.ask("/v1/chat/completions", bytes(8 * MIB), gone=gone))
        await waits.wait()
        assert served.app._bodies.num_bytes == 8 * MIB
        gone.set()
        return await asyncio.wait_for(asking, 60)

    assert run(leaves()).status is None
    assert served.app._bodies.num_bytes == 0


def test_a_long_body_is_read_alone_though_its_caller_has_left(endpoint, run, monkeypatch):
    served, begun, go_on, order = endpoint(), asyncio.Event(), threading.Event(), []
    body = json.dumps({"messages": [{"role": "user", "content": "a" * 100_000}]}).encode()

    async def leaves():
        loop = asyncio.get_running_loop()

        def read(raw, how, pace):
            order.append("begin")
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(60)
            order.append("end")
            raise ApiError(400, "it is enough")

        monkeypatch.setattr(handler, "_read", read)
        gone = asyncio.Event()
        first = asyncio.create_task(served.ask("/v1/chat/completions", body, gone=gone))
        await begun.wait()
        second = asyncio.create_task(served.ask("/v1/chat/completions", body))
        gone.set()
        for _ in range(30):
            await asyncio.sleep(0)
        assert order == ["begin"]
        assert served.app._bodies.num_bytes == 2 * len(body), "what is still read is held"
        go_on.set()
        return [heard.status for heard in await asyncio.gather(first, second)]

    assert run(leaves()) == [None, 400]
    assert order == ["begin", "end"] * 2


def test_of_a_long_prompt_the_monitor_keeps_the_end():
    """It keeps finished answers, and a body may have 8 MiB."""
    for prompt in ("ab" * MIB, [Message("user", "ab" * MIB)] * 3, [{"role": "user", "content": "ab"}] * MIB):
        log = AnswerLog(AnswerMetadata("a", "hybrid", None, prompt), shows_texts=True)
        assert len(json.dumps(log.head["prompt"])) < MIB // 2
        assert log.head["prompt"][-1][1].endswith("ab")
        assert "\u2026" in json.dumps(log.head["prompt"], ensure_ascii=False)
    short = [Message("system", "a"), Message("user", "b")]
    assert AnswerLog(AnswerMetadata("a", "hybrid", None, short), shows_texts=True).head["prompt"] == [
        ["system", "a"],
        ["user", "b"],
    ]


def test_long_bodies_are_received_together_at_one_rate_whether_there_is_room_for_them_or_not():
    """A dozen callers who sent 8 MiB again and again had all of the loop; those turned away came back at once."""
    resting, rested, came = [0], [], 0

    async def sleep(seconds):
        resting[0] += 1
        rested.append((seconds, resting[0]))
        await asyncio.sleep(0)
        resting[0] -= 1

    async def routed(scope, receive, send):
        nonlocal came
        with suppress(ApiError):
            while (message := await receive())["more_body"]:
                came += len(message["body"])
        await asyncio.Event().wait()

    async def go():
        guard = Guard(routed, ServeOptions(), sleep=sleep)

        def body(part):
            async def receive():
                return {"type": "http.request", "body": part, "more_body": True}

            return receive

        callers = [asyncio.create_task(guard(SCOPE, body(bytes(2**18)), None)) for _ in range(12)]
        short = asyncio.create_task(guard(SCOPE, body(b"x"), None))
        for _ in range(2_000):
            await asyncio.sleep(0)
        for task in (*callers, short):
            task.cancel()
        await asyncio.gather(*callers, short, return_exceptions=True)

    asyncio.run(go())
    assert came > 48 * MIB
    assert sum(seconds for seconds, _ in rested) >= (came - 2_000) / (64 * MIB), "all but the short one's"
    assert {num for _, num in rested} == {1}, "one at a time"
    assert len(rested) > came // 2**18, "one that was turned away has rested, too"


def test_a_body_of_nothing_but_brackets_is_not_read(endpoint, run, monkeypatch):
    """8 MiB of them took 2 s, in which nobody was answered, and 200 MiB. A text may hold some."""
    read = []
    monkeypatch.setattr(
        requests, "json", SimpleNamespace(loads=lambda raw, **how: read.append(len(raw)) or json.loads(raw, **how))
    )
    served = endpoint()
    for one in (b"[],", b'{"a":[]},', b"{},", b'1,"\\"",'):
        body = b'{"messages": [' + one * 270_000 + b"{}]}"
        heard = run(served.ask("/v1/chat/completions", body))
        assert (heard.status, heard.error["code"]) == (413, "body_too_long")
    assert read == []
    text = {"model": "hybrid:local", "messages": [{"role": "user", "content": "[{," * 300_000}], "max_tokens": 2}
    assert run(served.ask("/v1/chat/completions", text)).error["code"] == "context_length_exceeded"
    assert len(read) == 1


def test_of_many_long_bodies_that_grow_side_by_side_some_come_whole():
    """Each refusal gives room to the others: else all of them are refused where the last of the room is taken."""
    total, (size, part, num) = BodyTotal(), (8 * 2**20, 2**16, 16)
    shares, came = [total.open_share() for _ in range(num)], [0] * num
    refused = set()
    for _ in range(size // part):
        for i in range(num):
            if i not in refused:
                try:
                    shares[i].grow(part)
                    came[i] += part
                except ApiError:
                    refused.add(i)
    assert 0 < len(refused) < num
    assert [number for number in range(num) if came[number] == size] == sorted(set(range(num)) - refused)
