"""Caps, what has gone against them, and the one decision: whether a request can be afforded, and with which limit.

The law: what is afforded is never more than what the tightest cap has left (``tests/spend/test_caps.py``). Every ledger
decides by ``afford``; where totals are kept, and how, is not known here. No clock is read: windows are told the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from hybrid.spend.max_cost import MaxCost, SpendScope
from hybrid.spend.price import as_usd

CapLevel: TypeAlias = Literal["request", "conversation", "day", "month", "total"]
Level: TypeAlias = Literal["client"] | CapLevel
CAP_LEVELS: tuple[CapLevel, ...] = get_args(CapLevel)
LEVELS: tuple[Level, ...] = ("client", *CAP_LEVELS)
# What a sentence calls them.
NAMES: Mapping[Level, str] = {
    "client": "the cap",
    "request": "the question's cap",
    "conversation": "the conversation's cap",
    "day": "the day's cap",
    "month": "the month's cap",
    "total": "the total cap",
}
# Windows that time ends; the others end with what they are named after.
TIMED: frozenset[Level] = frozenset({"day", "month"})
# Nine million USD, the most that a cap or a single charge is taken for: a thousand of them still add up in 64 bits.
MOST_NANOUSD = 2**53


@dataclass(frozen=True)
class Denial:
    """No money for it, in one sentence; and the cap that stands against it, where one does."""

    why: str
    level: Level | None = None
    cap_nanousd: int | None = None
    left_nanousd: int | None = None


@dataclass(frozen=True)
class CapStatus:
    """One cap in its present window."""

    level: Level
    cap_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int

    @property
    def left_nanousd(self) -> int:
        """What may still be reserved; below 0 where more was charged than was reserved, or a cap was lowered."""
        return self.cap_nanousd - self.spent_nanousd - self.reserved_nanousd

    def denial(self) -> Denial:
        """Say that it does not allow another request."""
        left = max(0, self.left_nanousd)
        cap, rest = as_usd(self.cap_nanousd), as_usd(left)
        why = f"{NAMES[self.level]} of {cap} does not allow another request ({rest} left)"
        return Denial(why, self.level, self.cap_nanousd, left)


@dataclass(frozen=True)
class Allowance:
    """A claim that fits, perhaps lowered, and what the tightest cap had left for it (None: there is no cap)."""

    claim: MaxCost
    room_nanousd: int | None


def windows(spender: SpendScope, at: int) -> dict[Level, str]:
    """Name the windows that spending at a moment (UTC, in seconds) counts in; of timed ones a later name sorts later.

    >>> windows(SpendScope("e", "q", "c", "me"), 86_400)["month"]
    '1970-01'
    """
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "client": spender.client,
        "request": spender.request,
        "conversation": spender.conversation,
        "day": moment.strftime("%Y-%m-%d"),
        "month": moment.strftime("%Y-%m"),
        "total": "",
    }


def afford(claim: MaxCost, standings: Sequence[CapStatus]) -> Allowance | Denial:
    """Decide whether a claim's worst case can be set aside, and lower its limit to what can.

    A cap with nothing left affords nothing, not even what is free.
    """
    tightest = min(standings, key=lambda standing: standing.left_nanousd, default=None)
    room = None if tightest is None else tightest.left_nanousd
    fitted = claim.fitted(room)
    if tightest is not None and (fitted is None or tightest.left_nanousd <= 0):
        return tightest.denial()
    if fitted is None or fitted.worst_nanousd > MOST_NANOUSD:
        return Denial(f"a request that may cost more than {as_usd(MOST_NANOUSD)} is not sent")
    return Allowance(fitted, room)
