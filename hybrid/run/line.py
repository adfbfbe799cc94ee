"""The way to an endpoint: a line lives with its client, a call is what one answer makes over it.

The law: a question is asked again only where ``retry`` allows it, each time by a new attempt with its own reservation
and its own id; what was handed on is never asked for again (``tests/run/test_line.py``). Knows no HTTP, no policy and
no money: an attempt brings its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, wait_random_exponential

from hybrid.run import events
from hybrid.run.retry import FIRST_WAIT_S, LONGEST_WAIT_S, Patience, Quota, cost_of

T = TypeVar("T")
Tell = Callable[[events.Event], None]
Sleep = Callable[[float], Awaitable[None]]

_full_jitter = wait_random_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)


class Line:
    """What a client keeps of its endpoint from one answer to the next."""

    def __init__(self, patience: Patience | None = None, sleep: Sleep = asyncio.sleep) -> None:
        """Start without a memory."""
        self.patience = patience or Patience()
        self.quota = Quota()
        self.sleep = sleep


class Call:
    """What one answer asks over a line."""

    def __init__(self, line: Line, tell: Tell) -> None:
        """Take the line, and whom to tell."""
        self._line = line
        self._tell = tell

    async def ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await an attempt, and others after it where that may help. Raises what the last one raised."""
        return await _Question(self._line, self._tell).ask(attempt)


class _Question:
    """One question and its retries: tenacity does the waiting and the counting, ``retry`` decides."""

    def __init__(self, line: Line, tell: Tell) -> None:
        self._line = line
        self._tell = tell
        self._paid = 0

    async def ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        trying = AsyncRetrying(
            retry=self._is_worth_it,
            wait=_wait_s,
            stop=self._is_over,
            before_sleep=self._announce,
            sleep=self._line.sleep,
            reraise=True,
        )
        answer: T = await trying(attempt)
        self._line.quota.give_back(self._paid)
        return answer

    def _is_worth_it(self, state: RetryCallState) -> bool:
        error = _error(state)
        return error is not None and self._line.patience.allows(error, state.attempt_number)

    def _is_over(self, state: RetryCallState) -> bool:
        """Asked last, once the wait is known: what says no to nothing else is paid for."""
        error = _error(state)
        if error is None or not self._line.patience.lasts(state.seconds_since_start or 0.0, state.upcoming_sleep):
            return True
        self._paid = cost_of(error)
        return not self._line.quota.take(self._paid)

    def _announce(self, state: RetryCallState) -> None:
        self._tell(events.Retried(str(_error(state)), round(state.upcoming_sleep * 1000, 3)))


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _wait_s(state: RetryCallState) -> float:
    """Full jitter, on top of what the server asked for: whoever was turned away together must not come back so."""
    asked_for: float = getattr(_error(state), "retry_after_s", None) or 0.0
    return asked_for + _full_jitter(state)
