"""The pool of contexts: which one is lent, that every one comes back, and that no prefix passes from salt to salt."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine

from hybrid.engine import ContextPool, Reuse, Worker

IDS = st.lists(st.integers(0, 1), max_size=4).map(tuple)
SALTS = st.sampled_from([None, "one", "two"])
NAMES = st.sampled_from([None, "first", "second"])
# A text to borrow for, under a salt, of a conversation; or the number of an open loan that ends.
MOVES = st.lists(st.one_of(st.tuples(IDS, SALTS, NAMES), st.integers(0, 2)), max_size=24)


@dataclass
class Context:
    """A context of a model of two words; ``number`` tells it from the others."""

    number: int
    engine: ScriptedEngine
    worker: Worker
    salt: str | None = None

    def reusable(self, ids) -> Reuse:
        num = shared(self.engine.ids, ids)
        return Reuse(num, goes_on=num > 0 and num >= len(self.engine.ids) - 1)

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


@dataclass
class Book:
    """What a context holds, by hand: whose, what, since when, what it was worth then and for which conversation."""

    salt: str | None = None
    ids: tuple[int, ...] = ()
    used: int = -9
    worth: float = 0.0
    conversation: str | None = None


def by_hand(books: dict[int, Book], clock: float, ids, salt, conversation) -> tuple[int, float]:
    """Choose by the rule, written down a second time: the number of the context, and the clock afterwards."""
    kept = {n: shared(book.ids, ids) if book.salt == salt else -1 for n, book in books.items()}
    fresh = sorted(books, key=lambda n: books[n].used)
    named = [n for n in fresh if kept[n] > 0 and conversation and books[n].conversation == conversation]
    goes_on = [n for n in fresh if kept[n] > 0 and kept[n] >= len(books[n].ids) - 1]
    worthless = [n for n in fresh if books[n].worth <= clock]
    for group in (named, goes_on, worthless):
        if group:
            return max(group, key=lambda n: kept[n]), clock
    lost = {n: (books[n].worth - clock) * (len(books[n].ids) - max(0, kept[n])) / len(books[n].ids) for n in fresh}
    found = min(fresh, key=lambda n: lost[n] - kept[n])
    return found, clock + lost[found]


@given(moves=MOVES)
def test_a_context_is_lent_by_the_rule(lending, moves):
    """Held against plain books of what each context holds, whose it is, what it is worth, and when it was used last."""

    async def dialogue(pool: ContextPool[Context]) -> None:
        books, clock = {n: Book(used=n - 3) for n in range(3)}, 0.0
        async with AsyncExitStack() as all_loans:
            loans: list[tuple[AsyncExitStack, int, Book]] = []
            for now, move in enumerate(moves):
                if isinstance(move, int):
                    if move < len(loans):
                        loan, number, book = loans.pop(move)
                        await loan.aclose()
                        books[number] = replace(book, used=now, worth=clock + len(book.ids))
                elif len(loans) < 3:
                    ids, salt, conversation = move
                    expected, clock = by_hand(books, clock, ids, salt, conversation)
                    loan = await all_loans.enter_async_context(AsyncExitStack())
                    context = await loan.enter_async_context(pool.borrow(ids, salt, conversation=conversation))
                    had = books.pop(expected)
                    assert context.number == expected, (moves, now)
                    assert context.salt == salt
                    assert context.engine.ids == (had.ids if had.salt == salt else ()), (moves, now)
                    context.hold(*ids)
                    loans.append((loan, expected, Book(salt, ids, conversation=conversation)))

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
        assert repr(pool) == "ContextPool(free, tokens held: [0, 2]; 0 wait)"

    lending(2, dialogue)
