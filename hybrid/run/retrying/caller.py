"""Attempts at an endpoint: what one answer asks, and what a client remembers of the endpoint across answers.

Laws (``tests/run/retrying/test_retrying_caller.py``). A question is asked again only where ``retry`` allows it, each
time by a new attempt with its own reservation and its own id; what was handed on is never asked for again. After a
question has failed, nothing is asked in that answer until a cool-down is over, at least ``REST`` times what the failure
took: so a dead cloud costs one deadline, and then at most a fifth of the time. Across answers the endpoint's breaker
counts every attempt.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from hybrid.errors import CloudError, CloudFailure, Unreachable
from hybrid.run import events
from hybrid.run.retrying.breaker import Breaker, BreakerConfig
from hybrid.run.retrying.retry import RetryPolicy, RetryQuota, retry_cost, wait_s

T = TypeVar("T")
Attempt: TypeAlias = Callable[[], Awaitable[T]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]

# A probe that finds out nothing keeps the answer waiting; for so many times as long nothing is asked.
REST = 4.0


class EndpointHealth:
    """What a client remembers of its endpoint from one answer to the next: the breaker and the quota of retries."""

    def __init__(
        self,
        policy: RetryPolicy | None = None,
        config: BreakerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Start without a memory."""
        self.policy = policy or RetryPolicy()
        self.config = config or BreakerConfig()
        self.clock = clock
        self.sleep = sleep
        self.quota = RetryQuota()
        self.breaker = Breaker(self.config, clock)
        self._last_failure: CloudFailure = Unreachable("", sent=False)

    def unavailable(self) -> CloudFailure | None:
        """Return an error that says why the endpoint is left alone; None: it is not."""
        if self.breaker.lets_pass:
            return None
        left_s = max(1, math.ceil(self.breaker.remaining_s))
        return _again(self._last_failure, f" (it keeps failing, and is left alone for another {left_s} s)")

    async def attempt(self, attempt: Attempt[T]) -> T:
        """Await one attempt and count how it ended. A refusal is an answer: such an endpoint is not away."""
        if not self.breaker.enter():
            raise self.unavailable() or _again(self._last_failure)
        began = self.clock()
        try:
            reply = await attempt()
        except CloudFailure as error:
            self.record_failure(error, self.clock() - began)
            raise
        except BaseException:
            self.breaker.record_abandoned()
            raise
        self.breaker.record_success()
        return reply

    def record_failure(self, error: CloudFailure, took_s: float) -> None:
        """Count a failure, and keep its sentence."""
        self._last_failure = error
        self.breaker.record_failure(hold_s(error, took_s))


class RetryingCaller:
    """Asks an endpoint during one answer; once a question has failed, nothing until a cool-down is over."""

    def __init__(self, health: EndpointHealth, publish: events.Publish) -> None:
        """Take what is known of the endpoint, and where retries are published."""
        self._health = health
        self._publish = publish
        self._breaker = Breaker(replace(health.config, failures_in_a_row=1), health.clock)
        self._last_failure: CloudFailure = Unreachable("", sent=False)

    def unavailable(self) -> CloudFailure | None:
        """Return an error that says why nothing may be asked now; None: something may."""
        return self._health.unavailable() if self._breaker.lets_pass else _again(self._last_failure)

    async def call(self, attempt: Attempt[T]) -> T:
        """Await an attempt, and others after it where that may help. Raises what the last one raised.

        To be called only where the endpoint is not unavailable. What may show that it is back is asked once.
        """
        is_probe = self._breaker.state != "closed"
        self._breaker.enter()
        began = self._health.clock()
        try:
            reply = await self._retry(attempt, 0 if is_probe else self._health.policy.retries)
        except CloudFailure as error:
            self._record_failure(error, self._health.clock() - began)
            raise
        except BaseException:
            self._breaker.record_abandoned()
            raise
        self._breaker.record_success()
        return reply

    async def go_on(self, attempt: Attempt[T]) -> T:
        """Await more of a reply that has begun: it is not asked for again."""
        began = self._health.clock()
        try:
            return await attempt()
        except CloudFailure as error:
            took_s = self._health.clock() - began
            self._health.record_failure(error, took_s)
            self._record_failure(error, took_s)
            raise

    async def _retry(self, attempt: Attempt[T], retries: int) -> T:
        health, policy = self._health, replace(self._health.policy, retries=retries)
        began, num_failed, paid = health.clock(), 0, 0
        while True:
            try:
                reply = await health.attempt(attempt)
            except CloudError as error:
                num_failed += 1
                wait = wait_s(error, num_failed)
                if not policy.allows(error, num_failed) or not policy.in_time(health.clock() - began, wait):
                    raise
                paid = retry_cost(error)
                if health.unavailable() or not health.quota.take(paid):
                    raise
                self._publish(events.RequestRetried(str(error), round(wait * 1000, 3)))
                await health.sleep(wait)
            else:
                health.quota.give_back(paid)
                return reply

    def _record_failure(self, error: CloudFailure, took_s: float) -> None:
        self._last_failure = error
        self._breaker.record_failure(hold_s(error, took_s))


def hold_s(error: CloudFailure, took_s: float) -> float:
    """Return how long an endpoint is left alone at least: as it wishes, and in proportion to what it cost."""
    return max(error.retry_after_s or 0.0, REST * took_s)


def _again(error: CloudFailure, more: str = "") -> CloudFailure:
    """Return the same failure for a request that is not sent."""
    return type(error)(f"{error}{more}", sent=False)
