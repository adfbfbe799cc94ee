"""Contexts come and go, and so do their borrowers: the process must not grow."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from hybrid.engine import ContextPool, Cursor, CursorContext, Worker

# A leak of one cache of 1,024 tokens of the bundled model would be 200 times half a megabyte.
MOST_MIB = 12


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
def test_two_hundred_contexts_and_a_thousand_borrowings_leave_no_memory_behind(weights):
    """Two at a time, so that a decode thread comes and goes with each pair."""
    model = weights["bundled"]

    def open_and_close():
        pair = [model.context(1024, 1) for _ in range(2)]
        for context in pair:
            context.extend(tuple(range(1, 300)))
        for context in pair:
            context.close()

    for _ in range(10):
        open_and_close()
    before = resident_mib()
    for _ in range(100):
        open_and_close()
    assert resident_mib() - before < MOST_MIB

    async def borrow(pool, first, number):
        for n in range(first, first + number):
            prompt = tuple(1 + (n * 7 + i) % 200 for i in range(20 + n % 90))
            async with pool.borrow(prompt, "a" if n % 9 == 0 else None) as context:
                await context.worker.do(lambda cancelled, c=context, p=prompt: c.cursor.begin(p, cancelled))

    engines, workers = [model.context(1024, 1) for _ in range(3)], [Worker(f"flat-{n}") for n in range(3)]
    pool = ContextPool([CursorContext(e, w, Cursor(e)) for e, w in zip(engines, workers, strict=True)])
    asyncio.run(borrow(pool, 0, 100))
    before = resident_mib()
    asyncio.run(borrow(pool, 100, 1000))
    grown = resident_mib() - before
    for engine, worker in zip(engines, workers, strict=True):
        worker.close()
        engine.close()
    assert grown < MOST_MIB
