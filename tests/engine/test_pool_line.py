"""Which context is lent to whom, and the line before them: in order, bounded, and nobody who leaves takes one along."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from cases import each
from scripted_engine import ScriptedEngine

from hybrid.engine import ContextPool, Cursor, CursorContext, Worker
from hybrid.errors import HybridError, QueueFull, QueueTimeout


@pytest.fixture
def lending():
    """Run a dialogue with a pool of contexts that are read through cursors; all must be free at its end."""

    def run(num_contexts: int, dialogue, **limits) -> ContextPool:
        workers = [Worker(f"pool-{n}") for n in range(num_contexts)]
        engines = [ScriptedEngine([str(n) for n in range(600)], lambda _: [0.0] * 600) for _ in workers]
        contexts = [CursorContext(e, worker, Cursor(e)) for e, worker in zip(engines, workers, strict=True)]
        pool = ContextPool(contexts, **limits)
        try:
            asyncio.run(dialogue(pool))
        finally:
            for worker in workers:
                worker.close()
        assert sorted(map(id, pool.free)) == sorted(map(id, contexts))
        assert pool.num_queued == 0
        return pool

    return run


async def turn(pool: ContextPool[CursorContext], prompt, salt=None, **more) -> int:
    """Answer a prompt with one token and return how many tokens were decoded for it."""
    async with pool.borrow(prompt, salt, **more) as context:
        before = context.engine.num_decoded
        await context.worker.do(lambda cancelled: context.cursor.begin(prompt, cancelled))
        context.cursor.follow(599)
        return context.engine.num_decoded - before


# ---- which context ---------------------------------------------------------------------------------------------------

SYSTEM = tuple(range(300))  # what all conversations share, as a system text


def conversations(number: int, turns: int):
    """Return the prompts of some conversations, a list each; every answer is the token 599."""
    prompts = [[(*SYSTEM, 400 + n, *range(20 * n))] for n in range(number)]
    for each_list in prompts:
        for k in range(turns - 1):
            each_list.append((*each_list[-1], 599, 500 + k, *range(10)))
    return prompts


@each("num_contexts", [3, 4])
@each("named", [False, True])
def test_as_many_conversations_as_there_are_contexts_never_take_one_anothers(lending, num_contexts, named):
    """They share 300 tokens, more than any of them loses; a rule of the longest prefix alone lets them take turns."""

    async def dialogue(pool):
        for k in range(5):
            for n, prompts in enumerate(conversations(3, 5)):
                cost = await turn(pool, prompts[k], conversation=f"number {n}" if named else None)
                assert cost <= (len(prompts[0]) if k == 0 else 11 + 2) + 1, (n, k)

    lending(num_contexts, dialogue)


def test_two_conversations_over_one_context_take_it_from_one_another(lending):
    """The teeth of the law above: what they share is kept, in whole blocks, and the rest is read again."""

    async def dialogue(pool):
        costs = [await turn(pool, prompts[k]) for k in range(3) for prompts in conversations(2, 3)]
        assert all(cost > 40 for cost in costs)

    lending(1, dialogue)


def test_single_questions_share_what_they_share_and_leave_conversations_alone(lending):
    """A document that many ask about is read once for each context that is not needed otherwise, and then kept."""

    async def dialogue(pool):
        document = tuple(range(100, 420))
        chat = conversations(1, 6)[0]
        await turn(pool, chat[0])
        costs = []
        for k in range(1, 6):
            costs += [await turn(pool, (*document, 450 + k, 451 + k))]
            assert await turn(pool, chat[k]) <= 13 + 1, k
        assert costs[0] == costs[1] == 324 - 1, "the second empty context reads it, too"
        assert max(costs[2:]) <= 4, "a context each, and it is kept"

    lending(3, dialogue)


def test_a_conversation_that_is_never_asked_again_is_given_up_in_the_end(lending):
    """However long it is: every text that was taken away in its stead makes it worth less."""

    async def dialogue(pool):
        await turn(pool, tuple(range(580)))
        for n in range(40):
            await turn(pool, (590 + n % 2, *range(n, 100)))
        assert all(context.engine.ids[:100] != tuple(range(100)) for context in pool.free)

    lending(2, dialogue)


def test_a_named_conversation_gets_its_own_context_also_where_its_text_was_changed(lending):
    async def dialogue(pool):
        mine = (*SYSTEM, 7, 7, 7)
        async with pool.borrow(mine, conversation="mine") as own, pool.borrow(mine) as other:
            for context in (own, other):
                await context.worker.do(lambda cancelled, c=context: c.cursor.begin(mine, cancelled))
        for _ in range(2):
            async with pool.borrow((*SYSTEM, 9), conversation="mine") as context:
                assert context is own
        async with pool.borrow((5, 6), conversation="mine") as context:
            assert context is not own, "it holds nothing of that text"

    lending(2, dialogue)


# ---- the line --------------------------------------------------------------------------------------------------------


def test_who_waits_is_served_in_order_and_told_how_many_are_ahead(lending):
    async def dialogue(pool):
        served, told = [], {n: [] for n in range(4)}

        async def ask(number):
            async with pool.borrow((number,), told=told[number].append):
                served.append(number)
                await asyncio.sleep(0)

        async with pool.borrow((9,)):
            tasks = []
            for number in range(4):
                tasks.append(asyncio.ensure_future(ask(number)))
                await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.sleep(0)
        late = asyncio.ensure_future(ask(0))  # a context is free now, and not for whoever comes now
        await asyncio.wait([*tasks, late])
        assert served == [0, 2, 3, 0]
        assert told[1] == [1]
        assert told[2] == [2, 1, 0]
        assert told[3] == [3, 2, 1, 0]

    lending(1, dialogue)


def test_who_need_not_wait_is_told_nothing(lending):
    async def dialogue(pool):
        async with pool.borrow((1,), told=lambda _: pytest.fail("nobody is ahead")):
            pass

    lending(1, dialogue)


def test_no_more_wait_than_may_and_none_longer(lending):
    async def dialogue(pool):
        async with pool.borrow((1,)):
            waiting = asyncio.ensure_future(turn(pool, (2,)))
            await asyncio.sleep(0)
            with pytest.raises(QueueFull) as full:
                await turn(pool, (3,))
            assert str(full.value) == "the local model is busy, and no more than 1 may wait for it: ask again later"
            with pytest.raises(QueueTimeout) as late:
                await waiting
            assert str(late.value) == "the local model was busy with other questions for 0.05 s: ask again later"
            assert isinstance(full.value, HybridError)
        assert await turn(pool, (4,)) == 2

    lending(1, dialogue, max_queued=1, timeout_s=0.05)


def test_nobody_may_wait_where_none_may(lending):
    async def dialogue(pool):
        assert await turn(pool, (1,)) == 2
        async with pool.borrow((1,)):
            with pytest.raises(QueueFull):
                await turn(pool, (2,))

    lending(1, dialogue, max_queued=0)


@each("seed", [0, 1, 2])
@each("num_contexts", [1, 3])
def test_three_hundred_cancellations_leave_every_context_free_and_the_line_in_order(lending, seed, num_contexts):
    """Cancelled in line, as a context is handed over, while one is emptied, while one is read, and after."""

    async def dialogue(pool):
        rng, lent, most = random.Random(seed), set(), 0

        async def ask(number):
            nonlocal most
            prompt = (*range(number % 7 * 20), 500 + number % 50)
            async with pool.borrow(prompt, rng.choice([None, "salt"])) as context:
                assert id(context) not in lent
                lent.add(id(context))
                most = max(most, len(lent))
                try:
                    await context.worker.do(lambda cancelled: context.cursor.begin(prompt, cancelled))
                    await asyncio.sleep(rng.choice([0, 0.0005]))
                finally:
                    lent.discard(id(context))

        tasks = []
        for number in range(300):
            tasks.append(asyncio.ensure_future(ask(number)))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            rng.choice(tasks[-6:]).cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert most == num_contexts
        assert await asyncio.wait_for(turn(pool, (1, 2)), 5) > 0

    lending(num_contexts, dialogue, timeout_s=0.02)


def test_who_is_cancelled_as_a_context_is_handed_over_hands_it_on(lending):
    async def dialogue(pool):
        async with pool.borrow((1,)):
            first, second = (asyncio.ensure_future(turn(pool, (n,))) for n in (2, 3))
            await asyncio.sleep(0)
        first.cancel()  # it holds the context and has not looked yet
        assert await asyncio.wait_for(second, 5) == 2
        with pytest.raises(asyncio.CancelledError):
            await first

    lending(1, dialogue)
