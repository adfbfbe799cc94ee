"""A pool of contexts over one set of weights, lent to one user each at a time.

The laws (``tests/engine/test_pool.py``): the free context with the longest prefix of the wanted text is lent, the least
recently used one among equals; no context is lent twice at a time; every context comes back, however its borrower
ends; a context never carries a prefix from one salt to another. What a context holds beside its engine is its owner's
business. The pool belongs to one event loop and has no thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from hybrid.engine.cursor import num_shared
from hybrid.engine.port import Engine
from hybrid.engine.worker import Worker
from hybrid.types import Ids


class PooledContext(Protocol):
    """One context of a model and its thread. ``salt`` says whose text it holds, where users are kept apart."""

    engine: Engine
    worker: Worker
    salt: str | None

    def forget(self) -> None:
        """Hold nothing; called on the context's own thread."""
        ...


ContextT = TypeVar("ContextT", bound=PooledContext)


class ContextPool(Generic[ContextT]):
    """Lends contexts by longest shared prefix. ``free`` are those at rest, the least recently used first."""

    def __init__(self, contexts: Iterable[ContextT]) -> None:
        """Take the contexts; all are free, and they stay the caller's to close."""
        self.free = list(contexts)
        self._freed = asyncio.Condition()

    def __repr__(self) -> str:
        """Show how many tokens each free context holds."""
        return f"ContextPool(free, tokens held: {[len(context.engine.ids) for context in self.free]})"

    @asynccontextmanager
    async def borrow(self, ids: Ids, salt: str | None = None) -> AsyncIterator[ContextT]:
        """Wait for a free context, lend it, and take it back afterwards, however that goes.

        A context of another salt is emptied first: how fast a text is answered must not tell what others have asked.
        """
        async with self._freed:
            await self._freed.wait_for(lambda: bool(self.free))
            context = max(self.free, key=lambda held: _shared(held, ids, salt))  # the first of equals
            self.free.remove(context)
        try:
            if context.salt != salt:
                await context.worker.do(lambda _: context.forget())
                context.salt = salt
            yield context
        finally:
            async with self._freed:
                self.free.append(context)
                self._freed.notify_all()  # a woken waiter may be cancelled before it looks: the next must not starve


def _shared(context: PooledContext, ids: Ids, salt: str | None) -> int:
    """Return how many tokens of ``ids`` a context holds, and -1 for a context of another salt."""
    return num_shared(context.engine.ids, ids) if context.salt == salt else -1
