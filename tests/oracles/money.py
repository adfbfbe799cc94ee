"""Requests of a stated cost, and a clock to set: what tests of ledgers are made of."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.spend import MaxCost, Price, Settlement


def max_cost_of(nanousd: int, min_limit: int | None = None) -> MaxCost:
    """A request that costs so much at most; with ``least``, one whose limit may be lowered to cost that."""
    if min_limit is None:
        return MaxCost(Price(1_000_000, 0, 0), nanousd, 1)
    return MaxCost(Price(1_000_000, 0, 1_000_000), min_limit - 1, nanousd - min_limit + 1)


def settled(reservation, charged, excess=None) -> Settlement:
    return Settlement(reservation, charged, excess)


@dataclass
class Clock:
    """Seconds since 1970, set by hand."""

    now: float = 1_800_000_000.0  # a Friday in January 2027, 08:00 UTC

    def __call__(self) -> float:
        return self.now
