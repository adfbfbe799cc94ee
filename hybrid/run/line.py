"""The way to an endpoint: a line lives with its client, a call is what one answer makes over it.

Laws (``tests/run/test_line.py``). A question is asked again only where ``retry`` allows it, each time by a new attempt
with its own reservation and its own id; what was handed on is never asked for again. After a question has failed,
nothing is asked in that answer until a cool-down is over, at least ``REST`` times what the failure took: so a dead
cloud costs one deadline, and then at most a fifth of the time. Across answers the endpoint's breaker counts every
attempt. Knows no HTTP, no policy and no money: an attempt brings its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from hybrid.cloud.breaker import Breaker, BreakerConfig
from hybrid.errors import CloudError, CloudFailure, Unreachable
from hybrid.run import events
from hybrid.run.retry import FIRST_WAIT_S, LONGEST_WAIT_S, RetryPolicy, RetryQuota, cost_of

T = TypeVar("T")
Tell = Callable[[events.Event], None]
Sleep = Callable[[float], Awaitable[None]]
Attempt: TypeAlias = Callable[[], Awaitable[T]]

_full_jitter = wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)


# A probe that finds out nothing keeps the answer waiting; for so many times as long nothing is asked.
REST = 4.0


class EndpointHealth:
    """What a client keeps of its endpoint from one answer to the next."""

    def __init__(
        self,
        patience: RetryPolicy | None = None,
        trip: BreakerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Start without a memory."""
        self.patience = patience or RetryPolicy()
        self.trip = trip or BreakerConfig()
        self.clock = clock
        self.sleep = sleep
        self.quota = RetryQuota()
        self.breaker = Breaker(self.trip, clock)
        self._last = ""

    def shut(self) -> str | None:
        """Say why the endpoint is left alone; None: it is not."""
        if self.breaker.lets_pass:
            return None
        left_s = max(1, math.ceil(self.breaker.remaining_s))
        return f"{self._last} (it keeps failing, and is left alone for another {left_s} s)"

    async def once(self, attempt: Attempt[T]) -> T:
        """Await one attempt and note how it ended. A refusal is an answer: such an endpoint is not away."""
        if not self.breaker.enter():
            raise Unreachable(self.shut() or self._last, sent=False)
        began = self.clock()
        try:
            answer = await attempt()
        except CloudFailure as error:
            self.lost(error, self.clock() - began)
            raise
        except BaseException:
            self.breaker.gave_up()
            raise
        self.breaker.succeeded()
        return answer

    def lost(self, error: CloudFailure, took_s: float) -> None:
        """Note a failure."""
        self._last = str(error)
        self.breaker.failed(hold_s(error, took_s))


class RetryingCaller:
    """What one answer asks over a line."""

    def __init__(self, line: EndpointHealth, tell: Tell) -> None:
        """Take the line, and whom to tell."""
        self._line = line
        self._tell = tell
        self._own = Breaker(replace(line.trip, in_a_row=1), line.clock)
        self._why = ""

    def shut(self) -> str | None:
        """Say why nothing may be asked now; None: something may."""
        return self._line.shut() if self._own.lets_pass else self._why

    async def ask(self, attempt: Attempt[T]) -> T:
        """Await an attempt, and others after it where that may help. Raises what the last one raised.

        To be called only where the line is not shut. What may show that the endpoint is back is asked once.
        """
        patience = self._line.patience if self._own.state == "closed" else replace(self._line.patience, retries=0)
        question = _RetriedQuestion(self._line, patience, self._tell)
        self._own.enter()
        began = self._line.clock()
        try:
            answer = await question.ask(partial(self._line.once, attempt))
        except CloudFailure as error:
            self._lost(error, self._line.clock() - began)
            raise
        except BaseException:
            self._own.gave_up()
            raise
        self._own.succeeded()
        return answer

    async def go_on(self, attempt: Attempt[T]) -> T:
        """Await more of an answer that has begun: it is not asked for again."""
        began = self._line.clock()
        try:
            return await attempt()
        except CloudFailure as error:
            took_s = self._line.clock() - began
            self._line.lost(error, took_s)
            self._lost(error, took_s)
            raise

    def _lost(self, error: CloudFailure, took_s: float) -> None:
        self._why = str(error)
        self._own.failed(hold_s(error, took_s))


def hold_s(error: CloudFailure, took_s: float) -> float:
    """Return how long an endpoint is left alone at least: as it wishes, and in proportion to what it cost."""
    return max(error.retry_after_s or 0.0, REST * took_s)


class _RetriedQuestion:
    """One question and its retries: tenacity does the waiting and the counting, ``retry`` decides."""

    def __init__(self, line: EndpointHealth, patience: RetryPolicy, tell: Tell) -> None:
        self._line = line
        self._patience = patience
        self._tell = tell
        self._paid = 0
        self._began = line.clock()

    async def ask(self, attempt: Attempt[T]) -> T:
        # tenacity takes 0.14 ms for one try; most succeed, so it is called in where the first one has failed.
        try:
            answer = await attempt()
        except CloudError as error:
            answer = await self._retried(error, attempt)
        self._line.quota.give_back(self._paid)
        return answer

    async def _retried(self, error: CloudError, attempt: Attempt[T]) -> T:
        first = [error]

        async def again() -> T:
            if first:
                raise first.pop()
            return await attempt()

        trying = AsyncRetrying(
            retry=self._is_worth_it,
            wait=_wait_s,
            stop=self._is_over,
            before_sleep=self._announce,
            sleep=self._line.sleep,
            reraise=True,
        )
        answer: T = await trying(again)
        return answer

    def _is_worth_it(self, state: RetryCallState) -> bool:
        error = _error(state)
        return error is not None and self._patience.allows(error, state.attempt_number)

    def _is_over(self, state: RetryCallState) -> bool:
        """Asked last, once the wait is known: what says no to nothing else is paid for."""
        error = _error(state)
        since_s = self._line.clock() - self._began
        if error is None or not self._patience.lasts(since_s, state.upcoming_sleep):
            return True
        self._paid = cost_of(error)
        return self._line.shut() is not None or not self._line.quota.take(self._paid)

    def _announce(self, state: RetryCallState) -> None:
        self._tell(events.RequestRetried(str(_error(state)), round(state.upcoming_sleep * 1000, 3)))


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _wait_s(state: RetryCallState) -> float:
    """Full jitter, on top of what the server asked for: whoever was turned away together must not come back so."""
    asked_for: float = getattr(_error(state), "retry_after_s", None) or 0.0
    return asked_for + _full_jitter(state)
