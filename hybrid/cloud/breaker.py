"""A breaker: leaves alone what keeps failing, and finds out now and then whether it is back. A state machine, no I/O.

    closed ──(too many failures)──> open ──(cool-down over)──> half-open ──(the probe succeeds)──> closed
                                     ^                             │
                                     └──────(the probe fails: twice the cool-down)

The law: closed, everything passes; open, nothing; half-open, one request, whose outcome decides. A probe that is given
up decides nothing, so the next request is one. Whatever happened, something passes again after the longest hold
(``tests/cloud/test_breaker.py``). Precedent: Nygard, *Release It!* (2007), and the rolling rate of Hystrix.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["closed", "open", "half-open"]

# However long a server asks to be left alone.
LONGEST_HOLD_S = 600.0


@dataclass(frozen=True)
class BreakerConfig:
    """When a breaker opens, and for how long.

    ``in_a_row`` failures open it, or a ``share`` of the last ``of`` outcomes once there are ``at_least`` so many. The
    cool-down begins with ``cool_down_s`` and doubles up to ``longest_s`` while probes fail.
    """

    in_a_row: int = 5
    share: float = 0.5
    of: int = 20
    at_least: int = 10
    cool_down_s: float = 5.0
    longest_s: float = 60.0


class Breaker:
    """Guards one endpoint. Used from one thread, the event loop's."""

    def __init__(self, trip: BreakerConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed."""
        self._trip = trip or BreakerConfig()
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=self._trip.of)  # True: it failed
        self._in_a_row = 0
        self._cool_down_s = self._trip.cool_down_s
        self._until: float | None = None
        self._probing = False

    def __repr__(self) -> str:
        """Show the state."""
        return f"Breaker({self.state}, {self._in_a_row} failures in a row)"

    @property
    def state(self) -> State:
        """What it does with the next request."""
        if self._until is None:
            return "closed"
        return "half-open" if self._clock() >= self._until else "open"

    @property
    def in_a_row(self) -> int:
        """How many failures there were since the last success."""
        return self._in_a_row

    @property
    def remaining_s(self) -> float:
        """Seconds until a request may pass; 0 where one may."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock())

    @property
    def lets_pass(self) -> bool:
        """Whether a request may leave."""
        return self.state == "closed" or (self.state == "half-open" and not self._probing)

    def enter(self) -> bool:
        """Ask for one request to pass; its outcome must be told, or that it was given up."""
        if not self.lets_pass:
            return False
        self._probing = self._until is not None
        return True

    def succeeded(self) -> None:
        """Note a success. It closes what a probe was sent through; one that left before is no probe."""
        if self._probing:
            self._until, self._probing = None, False
            self._cool_down_s = self._trip.cool_down_s
            self._outcomes.clear()  # it begins anew
        if self._until is None:
            self._in_a_row = 0
            self._outcomes.append(False)

    def failed(self, hold_s: float = 0.0) -> None:
        """Note a failure; if that opens the breaker, it stays open for ``hold_s`` at least."""
        self._outcomes.append(True)
        self._in_a_row += 1
        if self._until is None and not self._is_too_much():
            return
        if self._until is None or self._probing:
            self._until = self._clock() + max(self._cool_down_s, min(hold_s, LONGEST_HOLD_S))
            self._cool_down_s = min(self._trip.longest_s, 2 * self._cool_down_s)
            self._probing = False

    def gave_up(self) -> None:
        """Note that a request ended without an outcome: whoever asked has left, or could not pay."""
        self._probing = False

    def _is_too_much(self) -> bool:
        known = len(self._outcomes)
        in_share = known >= self._trip.at_least and sum(self._outcomes) >= self._trip.share * known
        return self._in_a_row >= self._trip.in_a_row or in_share
