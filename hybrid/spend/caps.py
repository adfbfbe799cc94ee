"""Caps, what has gone against them, and the one decision: whether a request can be afforded, and with which limit.

The law: what is afforded is never more than what the tightest cap has left (``tests/spend/test_caps.py``). Every ledger
decides by ``afford``; where totals are kept, and how, is not known here. No clock is read: windows are told the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from hybrid.spend.price import Price, as_usd

StoredCapLevel: TypeAlias = Literal["request", "conversation", "day", "month", "total"]
CapLevel: TypeAlias = Literal["client"] | StoredCapLevel
STORED_CAP_LEVELS: tuple[StoredCapLevel, ...] = get_args(StoredCapLevel)
CAP_LEVELS: tuple[CapLevel, ...] = ("client", *STORED_CAP_LEVELS)
# What a sentence calls them.
NAMES: Mapping[CapLevel, str] = {
    "client": "the cap",
    "request": "the question's cap",
    "conversation": "the conversation's cap",
    "day": "the day's cap",
    "month": "the month's cap",
    "total": "the total cap",
}
# Windows that time ends; the others end with what they are named after.
TIMED: frozenset[CapLevel] = frozenset({"day", "month"})
# Nine million USD, the most that a cap or a single charge is taken for: a thousand of them still add up in 64 bits.
MOST_NANOUSD = 2**53


@dataclass(frozen=True)
class MaxCost:
    """A request that would leave: its prompt, and the most completion tokens it may be charged for (at least 1).

    ``least``: what the limit may be lowered to; a check needs all its rows. ``requests``: over HTTP, at most.
    """

    price: Price
    prompt_tokens: int
    limit: int
    min_limit: int = 1
    requests: int = 1

    @property
    def worst_nanousd(self) -> int:
        """The most it can cost."""
        return self._worst_nanousd(self.limit)

    def _worst_nanousd(self, limit: int) -> int:
        return self.price.worst_case(self.prompt_tokens, limit, self.requests)

    def fit_to(self, left_nanousd: int | None) -> MaxCost | None:
        """Lower the limit to the largest that fits; None where not even the least does.

        >>> MaxCost(Price.parse("1/0.1/4"), 10, 100).fit_to(18_000).limit
        2
        """
        limit, min_limit = max(1, self.limit), max(1, min(self.min_limit, self.limit))
        if left_nanousd is None or self._worst_nanousd(limit) <= left_nanousd:
            return replace(self, limit=limit)
        if self._worst_nanousd(min_limit) > left_nanousd:
            return None
        low, high = min_limit, limit  # low fits, high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._worst_nanousd(middle) <= left_nanousd else (low, middle)
        return replace(self, limit=low)


@dataclass(frozen=True)
class SpendScope:
    """On whose behalf money is spent: one question of one conversation of one client, put to one endpoint.

    ``cap_nanousd`` is the client's own cap (``--cap``), besides those that stand in the ledger.
    """

    endpoint: str
    request: str
    conversation: str
    client: str
    cap_nanousd: int | None = None


@dataclass(frozen=True)
class Denial:
    """No money for it, in one sentence; and the cap that stands against it, where one does."""

    why: str
    level: CapLevel | None = None
    cap_nanousd: int | None = None
    left_nanousd: int | None = None


@dataclass(frozen=True)
class CapStatus:
    """One cap in its present window."""

    level: CapLevel
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

    max_cost: MaxCost
    left_nanousd: int | None


def windows(scope: SpendScope, at: int) -> dict[CapLevel, str]:
    """Name the windows that spending at a moment (UTC, in seconds) counts in; of timed ones a later name sorts later.

    >>> windows(SpendScope("e", "q", "c", "me"), 86_400)["month"]
    '1970-01'
    """
    moment = datetime.fromtimestamp(at, UTC)
    return {
        "client": scope.client,
        "request": scope.request,
        "conversation": scope.conversation,
        "day": moment.strftime("%Y-%m-%d"),
        "month": moment.strftime("%Y-%m"),
        "total": "",
    }


def allow(max_cost: MaxCost, cap_statuses: Sequence[CapStatus]) -> Allowance | Denial:
    """Decide whether a claim's worst case can be set aside, and lower its limit to what can.

    A cap with nothing left affords nothing, not even what is free.
    """
    tightest = min(cap_statuses, key=lambda status: status.left_nanousd, default=None)
    room = None if tightest is None else tightest.left_nanousd
    fitted = max_cost.fit_to(room)
    if tightest is not None and (fitted is None or tightest.left_nanousd <= 0):
        return tightest.denial()
    if fitted is None or fitted.worst_nanousd > MOST_NANOUSD:
        return Denial(f"a request that may cost more than {as_usd(MOST_NANOUSD)} is not sent")
    return Allowance(fitted, room)
