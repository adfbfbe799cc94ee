"""The pool of contexts: which one is lent, that every one comes back, and that no prefix passes from salt to salt."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.engine import ContextPool, ScriptedEngine, Worker

IDS = st.lists(st.integers(0, 1), max_size=4).map(tuple)
SALTS = st.sampled_from([None, "one", "two"])
# A text to borrow for, under a salt; or the number of the loan that ends, counted among those that are open.
MOVES = st.lists(st.one_of(st.tuples(IDS, SALTS), st.integers(0, 2)), max_size=24)


@dataclass
class Context:
    """A context of a model of two words; ``number`` tells it from the others."""

    number: int
    engine: ScriptedEngine
    worker: Worker
    salt: str | None = None

    def forget(self) -> None:
        self.engine.rewind(0)

    def hold(self, *ids: int) -> None:
        self.engine.rewind(0)
        if ids:
            self.engine.extend(ids)


@pytest.fixture(scope="module")
def worker():
    """One thread: the pool never lets two loans of one context run."""
    worker = Worker("pool")
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def lending(worker):
    """Run a dialogue with a pool; every context must be free again at its end."""

    def run(num_contexts: int, dialogue) -> None:
        async def main() -> None:
            contexts = [
                Context(n, ScriptedEngine(["a", "b"], lambda _: [0.0, 0.0], num_context=100), worker)
                for n in range(num_contexts)
            ]
            pool = ContextPool(contexts)
            await dialogue(pool)
            assert sorted(context.number for context in pool.free) == list(range(num_contexts))

        asyncio.run(main())

    return run


def shared(first, second) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


@given(moves=MOVES)
def test_the_longest_prefix_is_lent_and_the_least_recently_used_among_equals(lending, moves):
    """Held against a plain list of what each context holds, whose it is, and when it was used last."""

    async def dialogue(pool: ContextPool[Context]) -> None:
        held: dict[int, tuple[str | None, tuple[int, ...], int]] = {n: (None, (), n - 3) for n in range(3)}
        async with AsyncExitStack() as all_loans:
            loans: list[tuple[AsyncExitStack, int, tuple[int, ...], str | None]] = []
            for now, move in enumerate(moves):
                if isinstance(move, int):
                    if move < len(loans):
                        loan, number, ids, salt = loans.pop(move)
                        await loan.aclose()
                        held[number] = (salt, ids, now)
                elif len(loans) < 3:
                    ids, salt = move
                    expected = max(
                        held, key=lambda n: (shared(held[n][1], ids) if held[n][0] == salt else -1, -held[n][2])
                    )
                    loan = await all_loans.enter_async_context(AsyncExitStack())
                    context = await loan.enter_async_context(pool.borrow(ids, salt))
                    before, had = held.pop(expected)[:2]
                    assert context.number == expected, (moves, now)
                    assert context.salt == salt
                    assert context.engine.ids == (had if before == salt else ()), (moves, now)
                    context.hold(*ids)
                    loans.append((loan, expected, ids, salt))

    lending(3, dialogue)


def test_a_context_of_ones_own_salt_is_preferred_to_a_longer_prefix_of_another(lending):
    async def dialogue(pool: ContextPool[Context]) -> None:
        async with pool.borrow((1, 1), "mine") as mine, pool.borrow((0, 1)) as other:
            mine.hold(1, 1)
            other.hold(0, 1)
        async with pool.borrow((0, 1), "mine") as context:
            assert context is mine

    lending(2, dialogue)


def test_a_context_comes_back_whatever_happens_to_its_borrower(lending):
    async def dialogue(pool: ContextPool[Context]) -> None:
        with pytest.raises(ZeroDivisionError):
            async with pool.borrow((1,)):
                raise ZeroDivisionError

        async def hold() -> None:
            async with pool.borrow((1,), "salt"):
                await asyncio.sleep(60)

        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    lending(1, dialogue)


def test_a_cancelled_waiter_does_not_starve_the_next(lending):
    """The one that is woken may be cancelled before it looks; its wake-up must not be lost with it."""

    async def dialogue(pool: ContextPool[Context]) -> None:
        async def borrow() -> str:
            async with pool.borrow((1,)):
                return "served"

        async with pool.borrow((1,)):
            waiting = [asyncio.ensure_future(borrow()) for _ in range(3)]
            await asyncio.sleep(0.01)
        waiting[0].cancel()
        served = await asyncio.wait_for(asyncio.gather(*waiting[1:]), 5)
        assert served == ["served", "served"]
        await asyncio.wait(waiting)

    lending(1, dialogue)


def test_a_pool_shows_what_its_free_contexts_hold(lending):
    async def dialogue(pool: ContextPool[Context]) -> None:
        async with pool.borrow((1, 0)) as context:
            context.hold(1, 0)
        assert repr(pool) == "ContextPool(free, tokens held: [0, 2])"

    lending(2, dialogue)
