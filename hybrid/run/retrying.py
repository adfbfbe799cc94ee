"""The way to an endpoint that fails now and then: what is asked again, and when nothing is asked for a while.

Laws (``tests/run/retrying``). A retry is sent only for trouble that may pass, at most so often for its kind, within its
policy's time, and only while the quota holds; each takes from the quota, and a success gives back. Each is a new
attempt with its own reservation and its own id; what was handed on is never asked for again. After a question has
failed, nothing is asked in that answer until a cool-down is over, at least ``REST`` times what the failure took: so a
dead cloud costs one deadline, and then at most a fifth of the time. Across answers the endpoint's breaker counts every
attempt. Knows no HTTP, no policy and no money: an attempt brings its own.

The breaker is a state machine. Closed, everything passes; open, nothing; half-open, one request, whose outcome decides.

    closed ──(too many failures)──> open ──(cool-down over)──> half-open ──(the probe succeeds)──> closed
                                     ^                             │
                                     └──────(the probe fails: twice the cool-down)

A probe that is abandoned decides nothing, so the next request is one. Whatever happened, something passes again after
the longest hold (``tests/run/retrying/test_breaker.py``). Precedent: Nygard, *Release It!* (2007), and the rolling rate
of Hystrix.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from hybrid.errors import CloudError, CloudFailure, FailureKind, Unreachable
from hybrid.record import events

T = TypeVar("T")
Attempt: TypeAlias = Callable[[], Awaitable[T]]
Sleep: TypeAlias = Callable[[float], Awaitable[None]]
BreakerState: TypeAlias = Literal["closed", "open", "half-open"]

# However long a server asks to be left alone.
LONGEST_HOLD_S = 600.0


@dataclass(frozen=True)
class BreakerConfig:
    """When a breaker opens, and for how long.

    ``failures_in_a_row`` open it, or a ``failure_share`` of the last ``window`` outcomes once there are
    ``least_outcomes``. The cool-down begins with ``cool_down_s`` and doubles up to ``longest_cool_down_s`` while probes
    fail.
    """

    failures_in_a_row: int = 5
    failure_share: float = 0.5
    window: int = 20
    least_outcomes: int = 10
    cool_down_s: float = 5.0
    longest_cool_down_s: float = 60.0


class Breaker:
    """Guards one endpoint. Used from one thread, the event loop's."""

    def __init__(self, config: BreakerConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed."""
        self._config = config or BreakerConfig()
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=self._config.window)  # True: it failed
        self._in_a_row = 0
        self._cool_down_s = self._config.cool_down_s
        self._open_until: float | None = None
        self.probing = False
        """Whether the request that may show that the endpoint is back is under way."""

    def __repr__(self) -> str:
        """Show the state."""
        return f"Breaker({self.state}, {self._in_a_row} failures in a row)"

    @property
    def state(self) -> BreakerState:
        """What it does with the next request."""
        if self._open_until is None:
            return "closed"
        return "half-open" if self._clock() >= self._open_until else "open"

    @property
    def in_a_row(self) -> int:
        """How many failures there were since the last success."""
        return self._in_a_row

    @property
    def remaining_s(self) -> float:
        """Seconds until a request may pass; 0 where one may."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock())

    @property
    def lets_pass(self) -> bool:
        """Whether a request may leave."""
        return self._open_until is None or (self._clock() >= self._open_until and not self.probing)

    def enter(self) -> bool:
        """Ask for one request to pass; its outcome must be recorded, or that it was abandoned."""
        if not self.lets_pass:
            return False
        self.probing = self._open_until is not None
        return True

    def record_success(self) -> None:
        """Count a success. It closes what a probe was sent through; one that left before is no probe."""
        if self.probing:
            self._open_until, self.probing = None, False
            self._cool_down_s = self._config.cool_down_s
            self._outcomes.clear()  # the window begins anew
        if self._open_until is None:
            self._in_a_row = 0
            self._outcomes.append(False)

    def record_failure(self, hold_s: float = 0.0) -> None:
        """Count a failure; if that opens the breaker, it stays open for ``hold_s`` at least."""
        self._outcomes.append(True)
        self._in_a_row += 1
        if self._open_until is None and not self._fails_too_often():
            return
        if self._open_until is None or self.probing:
            self._open_until = self._clock() + max(self._cool_down_s, min(hold_s, LONGEST_HOLD_S))
            self._cool_down_s = min(self._config.longest_cool_down_s, 2 * self._cool_down_s)
            self.probing = False

    def record_abandoned(self) -> None:
        """Count nothing: the request ended without an outcome, since its caller has left or could not pay."""
        self.probing = False

    def _fails_too_often(self) -> bool:
        num_known = len(self._outcomes)
        by_share = (
            num_known >= self._config.least_outcomes and sum(self._outcomes) >= self._config.failure_share * num_known
        )
        return self._in_a_row >= self._config.failures_in_a_row or by_share


# How often a question is asked again, whatever the user allows. A body that is no JSON was, most often, cut off by
# something on the way, so it gets a second chance; a server that writes such bodies gets no third, since each was
# charged. Rows that cannot be believed, and silence after the first byte, get none: the work was done, and would be
# done, and charged, again.
MOST_RETRIES: Mapping[FailureKind, int] = {"connect": 9, "silent": 9, "cut": 9, "busy": 9, "malformed": 1, "learned": 9}
# The window of the first wait and the longest one, as openai-python has them; within a window it is full jitter.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
# A server may ask for more. But a user with a model at hand is served better by it than by waiting.
LONGEST_RETRY_AFTER_S = 8.0

# AWS's standard mode (botocore/retries/quota.py, standard.py): a hundred retries that fail, then only what successes
# give back. So an outage does not double the load on whoever tries to end it.
CAPACITY, COST, COST_OF_WAITING, WITHOUT_RETRY = 500, 5, 10, 1

# In the place of the last failure, before there is one.
NO_FAILURE = Unreachable("", sent=False)
_random = secrets.SystemRandom()

# A probe that finds out nothing keeps the answer waiting; for so many times as long nothing is asked.
REST = 4.0


@dataclass(frozen=True)
class RetryPolicy:
    """How often a question may be asked again, and until how many seconds after it was first asked."""

    retries: int = 2
    within_s: float = 20.0

    def allows(self, error: BaseException, num_failed: int) -> bool:
        """Whether what has failed so many times is worth asking again."""
        if not isinstance(error, CloudError) or error.trouble is None:
            return False
        asked_to_wait = error.retry_after_s or 0.0
        return num_failed <= min(self.retries, MOST_RETRIES[error.trouble]) and asked_to_wait <= LONGEST_RETRY_AFTER_S

    def in_time(self, since_s: float, wait_s: float) -> bool:
        """Whether a retry would still leave in time."""
        return since_s + wait_s < self.within_s


class RetryQuota:
    """What is left for retries. The endpoint's, not the question's."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Start full."""
        self._capacity = self._remaining = capacity

    def __repr__(self) -> str:
        """Show how full it is."""
        return f"RetryQuota({self._remaining} of {self._capacity})"

    @property
    def remaining(self) -> int:
        """What retries may still take."""
        return self._remaining

    def take(self, cost: int) -> bool:
        """Pay for a retry; return whether there was enough."""
        if cost > self._remaining:
            return False
        self._remaining -= cost
        return True

    def give_back(self, cost: int) -> None:
        """Return what the retry that succeeded has cost, or a little where none was needed."""
        self._remaining = min(self._capacity, self._remaining + (cost or WITHOUT_RETRY))


def retry_cost(error: BaseException) -> int:
    """Return what a retry after this error takes from the quota: waiting in vain costs the most."""
    return COST_OF_WAITING if isinstance(error, CloudError) and error.trouble == "silent" else COST


def wait_s(error: CloudError, num_failed: int) -> float:
    """Draw how long to wait: full jitter, on top of what the server asked for.

    Callers that were turned away together must not come back together.
    """
    window_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (num_failed - 1))
    return (error.retry_after_s or 0.0) + _random.uniform(0.0, window_s)


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
        self._last_failure: CloudFailure = NO_FAILURE

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
            if error is self._last_failure:  # one attempt that several answers waited for: it was counted
                self.breaker.record_abandoned()
            else:
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
        self._last_failure: CloudFailure = NO_FAILURE

    def unavailable(self) -> CloudFailure | None:
        """Return an error that says why nothing may be asked now; None: something may."""
        return self._health.unavailable() if self._breaker.lets_pass else _again(self._last_failure)

    async def call(self, attempt: Attempt[T]) -> T:
        """Await an attempt, and others after it where that may help. Raises what the last one raised.

        To be called only where the endpoint is not unavailable. What may show that it is back is asked once.
        """
        self._breaker.enter()
        began = self._health.clock()
        try:
            reply = await self._retry(attempt, 0 if self._breaker.probing else self._health.policy.retries)
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
