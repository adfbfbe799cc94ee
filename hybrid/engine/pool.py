"""A pool of contexts over one set of weights, lent to one user each at a time.

Which context is lent. First the one with whose text the new one goes on: a conversation's own, by its name, or by what
it holds. Else one that is worth nothing to anybody any more. Else the one where most is kept and least is lost. Among
equals the least recently used. Worth fades as in GreedyDual-Size (Cao and Irani 1997, "Cost-Aware WWW Proxy Caching
Algorithms"): a text is worth the tokens that it would take to read it again, counted from when it was used last, and
all texts lose what was lost when a context was taken from one.

The laws (``tests/engine/test_pool.py``): no context is lent twice at a time; whoever waits is served in order; every
context comes back, however its borrower ends; a context never carries a prefix from one salt to another; as many
conversations in turn as there are contexts never take one another's. What a context holds beside its engine is its
owner's business. The pool belongs to one event loop and has no thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from hybrid.engine.cursor import Cursor, Reuse
from hybrid.engine.port import Engine, IsCancelled
from hybrid.errors import QueueFull, QueueTimeout
from hybrid.types import Ids

# One owner thread per engine: llama.cpp contexts crash or freeze if two threads use them at once.
#
# The law (``tests/engine/test_worker.py``): at most one piece of work runs at a time, and a cancelled caller returns
# only once its work has stopped, so that the next caller finds the engine at rest.

T = TypeVar("T")


class Worker:
    """A thread that does one thing after another."""

    def __init__(self, name: str) -> None:
        """Name the thread, for debuggers."""
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._begun: Future[None] | None = None

    async def do(self, work: Callable[[IsCancelled], T]) -> T:
        """Run ``work`` on the thread and return its result. Its argument says whether the caller was cancelled."""
        stop, begun = threading.Event(), self._begun
        self._begun = None

        def in_turn() -> T:
            if begun is not None:
                begun.result()  # it was in line before us, so it has ended
            return work(stop.is_set)

        future = asyncio.get_running_loop().run_in_executor(self._pool, in_turn)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            # Cancelling again (anyio's scopes do, at every turn of the loop) must not free the caller earlier.
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # seen, so that nobody reports it as lost
            raise

    def begin(self, work: Callable[[], None]) -> None:
        """Queue work without waiting for it. The next ``do`` waits for it and raises its exception."""
        self._begun = self._pool.submit(work)

    def close(self) -> None:
        """Wait for the running work and end the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class PooledContext(Protocol):
    """One context of a model and its thread. ``salt`` says whose text it holds, where users are kept apart."""

    engine: Engine
    worker: Worker
    salt: str | None

    def reusable(self, ids: Ids) -> Reuse:
        """Return how much of a text it holds that need not be read again; called while it is at rest."""
        ...

    def forget(self) -> None:
        """Hold nothing; called on the context's own thread."""
        ...


@dataclass
class CursorContext:
    """A context that is read through a cursor; ``others`` are those of the models beside it, on the same thread."""

    engine: Engine
    worker: Worker
    cursor: Cursor
    others: Mapping[str, Cursor] = field(default_factory=dict)
    salt: str | None = None

    def reusable(self, ids: Ids) -> Reuse:
        """Return what the cursor would keep."""
        return self.cursor.reusable(ids)

    def forget(self) -> None:
        """Hold nothing."""
        for cursor in (self.cursor, *self.others.values()):
            cursor.rewind(0)


ContextT = TypeVar("ContextT", bound=PooledContext)


@dataclass(frozen=True)
class _Claim:
    """What a context is wanted for."""

    ids: Ids
    salt: str | None
    conversation: str | None


@dataclass(eq=False)
class _Waiter(Generic[ContextT]):
    claim: _Claim
    told: Callable[[int], None] | None
    ahead: int | None = None
    lent: asyncio.Future[ContextT] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ContextPool(Generic[ContextT]):
    """Lends contexts. ``free`` are those at rest, the least recently used first."""

    def __init__(
        self, contexts: Iterable[ContextT], *, max_queued: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Take the contexts; all are free, and they stay the caller's to close.

        ``max_queued``: the most that may wait at a time; ``timeout_s``: how long each of them may. None: no bound.
        """
        self.free = list(contexts)
        self._max_queued = max_queued
        self._timeout_s = timeout_s
        self._line: deque[_Waiter[ContextT]] = deque()
        # What each context's text is worth, in tokens, once the clock is taken off; and whose conversation it holds.
        self._clock = 0.0
        self._worth = {id(context): float(len(context.engine.ids)) for context in self.free}
        self._conversations: dict[int, str | None] = {}

    def __repr__(self) -> str:
        """Show how many tokens each free context holds, and how many wait."""
        held = [len(context.engine.ids) for context in self.free]
        return f"ContextPool(free, tokens held: {held}; {self.num_queued} wait)"

    @property
    def num_queued(self) -> int:
        """How many wait for a context."""
        return len(self._line)

    @asynccontextmanager
    async def borrow(
        self,
        ids: Ids,
        salt: str | None = None,
        *,
        conversation: str | None = None,
        told: Callable[[int], None] | None = None,
    ) -> AsyncIterator[ContextT]:
        """Wait for a free context, lend it, and take it back afterwards, however that goes.

        ``told`` is called with the number of those ahead in line, if there is one, and again whenever it falls. A
        context of another salt is emptied first: how fast a text is answered must not tell what others have asked.
        Raises QueueFull at once, and QueueTimeout where none became free in time.
        """
        context = await self._take(_Claim(ids, salt, conversation), told)
        try:
            if context.salt != salt:
                await context.worker.do(lambda _: context.forget())
                context.salt = salt
            yield context
        finally:
            self._worth[id(context)] = self._clock + len(context.engine.ids)
            self._give_back(context)

    # ---- the line ----------------------------------------------------------------------------------------------------

    async def _take(self, claim: _Claim, told: Callable[[int], None] | None) -> ContextT:
        if self.free and not self._line:
            return self._lend(claim)
        if self._max_queued is not None and len(self._line) >= self._max_queued:
            msg = f"the local model is busy, and no more than {self._max_queued} may wait for it: ask again later"
            raise QueueFull(msg)
        waiter, served = _Waiter[ContextT](claim, told), False
        self._line.append(waiter)
        try:
            self._tell()
            async with asyncio.timeout(self._timeout_s):
                context = await waiter.lent
            served = True
        except TimeoutError:
            msg = f"the local model was busy with other questions for {self._timeout_s:g} s: ask again later"
            raise QueueTimeout(msg) from None
        finally:
            if not served:
                self._leave(waiter)
        return context

    def _leave(self, waiter: _Waiter[ContextT]) -> None:
        """Take a waiter out of the line; what was lent to it before it could look is given back."""
        if waiter.lent.done() and not waiter.lent.cancelled():
            self._give_back(waiter.lent.result())
        elif waiter in self._line:
            self._line.remove(waiter)
            self._tell()

    def _give_back(self, context: ContextT) -> None:
        """Lend what is free to whoever has waited longest."""
        self.free.append(context)
        while self.free and self._line:
            waiter = self._line.popleft()
            if not waiter.lent.done():  # cancelled, and about to leave
                waiter.lent.set_result(self._lend(waiter.claim))
        self._tell()

    def _tell(self) -> None:
        for ahead, waiter in enumerate(self._line):
            if waiter.ahead != ahead:
                waiter.ahead = ahead
                if waiter.told is not None:
                    waiter.told(ahead)

    # ---- which context -----------------------------------------------------------------------------------------------

    def _lend(self, claim: _Claim) -> ContextT:
        context = self._choose(claim)
        self.free.remove(context)
        self._conversations[id(context)] = claim.conversation
        return context

    def _choose(self, claim: _Claim) -> ContextT:
        """Choose by the rule at the top; ``max`` and ``min`` return the first of equals, the least recently used."""
        held = [(context, self._reuse(context, claim)) for context in self.free]
        named = [each for each in held if claim.conversation and self._holds(each[0], claim.conversation)]
        for own in (named, [each for each in held if each[1].goes_on]):
            if any(reuse.num_tokens > 0 for _, reuse in own):
                return max(own, key=_num_kept)[0]
        if idle := [each for each in held if self._credit(each[0]) <= 0]:
            return max(idle, key=_num_kept)[0]
        loss = {id(context): self._loss(context, reuse.num_tokens) for context, reuse in held}
        context, _ = min(held, key=lambda each: loss[id(each[0])] - each[1].num_tokens)
        self._clock += loss[id(context)]
        return context

    def _reuse(self, context: ContextT, claim: _Claim) -> Reuse:
        """Return what is kept in a context; of another salt's less than nothing, so that it comes after its equals."""
        return context.reusable(claim.ids) if context.salt == claim.salt else Reuse(-1, goes_on=False)

    def _holds(self, context: ContextT, conversation: str) -> bool:
        return self._conversations.get(id(context)) == conversation

    def _credit(self, context: ContextT) -> float:
        """Return what a context's text is worth by now, in tokens."""
        return self._worth[id(context)] - self._clock

    def _loss(self, context: ContextT, num_kept: int) -> float:
        """Return what is lost of that worth where only the first tokens are kept."""
        num_held = len(context.engine.ids)
        return self._credit(context) * (num_held - max(0, num_kept)) / max(1, num_held)


def _num_kept(choice: tuple[PooledContext, Reuse]) -> int:
    return choice[1].num_tokens
