"""A caller that leaves, at any moment: contexts are free, money is settled, and nothing is left running."""

from __future__ import annotations

import asyncio

import pytest
from cases import each

from hybrid.serve.response import DisconnectAwareResponse


def at_rest(served):
    """Nothing is asked, reserved or borrowed any more."""
    client = served.house.client
    assert client._answers == set()
    assert served.house.ledger.reserved_nanousd == 0
    assert len(client._contexts.pool.free) == client.parallel


@each("streamed", [False, True])
@each("after", [0, 1, 3, 6])
@each("policy", ["local", "cloud", "kl"])
def test_a_caller_that_leaves_ends_the_answer(endpoint, run, streamed, after, policy):
    async def asked():
        served = endpoint()
        heard = await served.chat(
            model=f"hybrid:{policy}", stream=streamed, leave=lambda heard: heard.body.count(b"data:") >= after
        )
        at_rest(served)
        again = await served.chat(model=f"hybrid:{policy}")
        return heard, again, asyncio.all_tasks() - {asyncio.current_task()}

    heard, again, left = run(asked())
    assert again.status == 200
    assert not left
    assert b"[DONE]" not in heard.body or not streamed or after > 3


def test_a_caller_that_leaves_the_line_is_not_waited_for(endpoint, run):
    async def asked():
        served = endpoint()
        pool = served.house.client._contexts.pool
        async with pool.borrow((0,)):
            gone = asyncio.Event()
            waiting = asyncio.create_task(served.chat(gone=gone))
            async with asyncio.timeout(30):
                while not pool.num_queued:  # noqa: ASYNC110  (a line tells nobody that it grows)
                    await asyncio.sleep(0.001)
            gone.set()
            assert (await waiting).status is None
            assert pool.num_queued == 0
        at_rest(served)
        return await served.chat()

    assert run(asked()).status == 200


def test_a_caller_that_has_left_before_anything_was_begun_is_asked_nothing(endpoint, run):
    async def asked():
        served = endpoint()
        heard = await served.chat(model="hybrid:cloud", leave=lambda _: True)
        at_rest(served)
        return heard

    assert run(asked()).status is None


def test_work_ends_before_the_call_returns(run):
    """Its ``finally`` included: a server that is told of the end must find the ledger settled."""
    ended = []

    async def work(_):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async def receive():
        return {"type": "http.disconnect"}

    async def begun():
        started = asyncio.Event()

        async def later():
            await started.wait()
            return await receive()

        async def working(sender):
            started.set()
            await work(sender)

        await DisconnectAwareResponse(working)({"type": "http"}, later, None)

    run(begun())
    assert ended == [True]


def test_a_server_that_stops_ends_the_work_too(run):
    ended = []

    async def work(_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def stopped():
        async def receive():
            await asyncio.Event().wait()

        task = asyncio.create_task(DisconnectAwareResponse(work)({"type": "http"}, receive, None))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(stopped())
    assert ended == [True]
