"""A breaker: leaves alone what keeps failing, and finds out now and then whether it is back. A state machine, no I/O.

    closed ──(too many failures)──> open ──(cool-down over)──> half-open ──(the probe succeeds)──> closed
                                     ^                             │
                                     └──────(the probe fails: twice the cool-down)

The law: closed, everything passes; open, nothing; half-open, one request, whose outcome decides. A probe that is
abandoned decides nothing, so the next request is one. Whatever happened, something passes again after the longest hold
(``tests/run/retrying/test_breaker.py``). Precedent: Nygard, *Release It!* (2007), and the rolling rate of Hystrix.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

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
        self._probing = False

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
        return self.state == "closed" or (self.state == "half-open" and not self._probing)

    def enter(self) -> bool:
        """Ask for one request to pass; its outcome must be recorded, or that it was abandoned."""
        if not self.lets_pass:
            return False
        self._probing = self._open_until is not None
        return True

    def record_success(self) -> None:
        """Count a success. It closes what a probe was sent through; one that left before is no probe."""
        if self._probing:
            self._open_until, self._probing = None, False
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
        if self._open_until is None or self._probing:
            self._open_until = self._clock() + max(self._cool_down_s, min(hold_s, LONGEST_HOLD_S))
            self._cool_down_s = min(self._config.longest_cool_down_s, 2 * self._cool_down_s)
            self._probing = False

    def record_abandoned(self) -> None:
        """Count nothing: the request ended without an outcome, since its caller has left or could not pay."""
        self._probing = False

    def _fails_too_often(self) -> bool:
        num_known = len(self._outcomes)
        by_share = (
            num_known >= self._config.least_outcomes and sum(self._outcomes) >= self._config.failure_share * num_known
        )
        return self._in_a_row >= self._config.failures_in_a_row or by_share
