"""Caps, their present status, and the one decision: whether a request is allowed, and with which limit.

The law: an allowance never exceeds what the tightest cap has left (``tests/spend/test_caps.py``). Every ledger decides
by ``allow``. This file does not know where totals are kept and reads no clock.
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
# Their names in messages.
NAMES: Mapping[CapLevel, str] = {
    "client": "the cap",
    "request": "the question's cap",
    "conversation": "the conversation's cap",
    "day": "the day's cap",
    "month": "the month's cap",
    "total": "the total cap",
}
# Windows that end with time; the others end with the request, the conversation or the client.
TIMED: frozenset[CapLevel] = frozenset({"day", "month"})
# Nine million USD, the most that a cap or a single charge is taken for: a thousand of them still add up in 64 bits.
MOST_NANOUSD = 2**53


@dataclass(frozen=True)
class MaxCost:
    """A planned request: its price, its prompt and the most completion tokens it may be charged for (at least 1).

    ``min_limit``: the limit is not lowered below it; a check needs all its rows. ``requests``: HTTP requests, at most.
    """

    price: Price
    prompt_tokens: int
    limit: int
    min_limit: int = 1
    requests: int = 1

    @property
    def worst_nanousd(self) -> int:
        """The most the request can cost."""
        return self._worst_nanousd(self.limit)

    def _worst_nanousd(self, limit: int) -> int:
        return self.price.worst_case(self.prompt_tokens, limit, self.requests)

    def fit_to(self, left_nanousd: int | None) -> MaxCost | None:
        """Lower the limit to the largest that fits; None if not even ``min_limit`` fits.

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
    """The names under which money is spent: endpoint, request, conversation and client.

    ``cap_nanousd`` is the client's own cap (``--cap``), beside the caps of the ledger.
    """

    endpoint: str
    request: str
    conversation: str
    client: str
    cap_nanousd: int | None = None


@dataclass(frozen=True)
class Denial:
    """Why a request gets no money, in one sentence, and the cap that denies it, if one does."""

    why: str
    level: CapLevel | None = None
    cap_nanousd: int | None = None
    left_nanousd: int | None = None


@dataclass(frozen=True)
class CapStatus:
    """One cap and the money spent and reserved in its present window."""

    level: CapLevel
    cap_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int

    @property
    def left_nanousd(self) -> int:
        """The amount that may still be reserved; negative after a charge above its reservation or a lowered cap."""
        return self.cap_nanousd - self.spent_nanousd - self.reserved_nanousd

    def denial(self) -> Denial:
        """Return the denial of a further request."""
        left = max(0, self.left_nanousd)
        cap, rest = as_usd(self.cap_nanousd), as_usd(left)
        why = f"{NAMES[self.level]} of {cap} does not allow another request ({rest} left)"
        return Denial(why, self.level, self.cap_nanousd, left)


@dataclass(frozen=True)
class Allowance:
    """A maximal cost that fits, perhaps with a lowered limit, and what the tightest cap had left (None: no cap)."""

    max_cost: MaxCost
    left_nanousd: int | None


def windows(scope: SpendScope, at: int) -> dict[CapLevel, str]:
    """Name the windows in which spending at a time (UTC, in seconds) counts. Later days and months sort later.

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
    """Decide whether a request's maximal cost can be reserved; lower its limit to the largest that can.

    A cap with nothing left allows no request, not even a free one.
    """
    tightest = min(cap_statuses, key=lambda status: status.left_nanousd, default=None)
    left = None if tightest is None else tightest.left_nanousd
    fitted = max_cost.fit_to(left)
    if tightest is not None and (fitted is None or tightest.left_nanousd <= 0):
        return tightest.denial()
    if fitted is None or fitted.worst_nanousd > MOST_NANOUSD:
        return Denial(f"a request that may cost more than {as_usd(MOST_NANOUSD)} is not sent")
    return Allowance(fitted, left)
