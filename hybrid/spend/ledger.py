"""Spent and reserved money: caps and the one decision they make, the port of a ledger, and a ledger in memory.

The laws. An allowance never exceeds what the tightest cap has left (``tests/spend/test_caps.py``); every ledger decides
by ``allow``. Settled plus reserved never exceeds a cap, whatever the order of calls, as long as no request is settled
above its reservation. A charge above the reservation is recorded in full, as disputed, and closes the endpoint
(``tests/spend/test_ledger.py``, for every ledger alike). A ledger knows amounts and scopes, not HTTP.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeAlias, get_args

from hybrid.spend.price import Price, as_usd

StoredCapScope: TypeAlias = Literal["request", "conversation", "day", "month", "total"]
CapScope: TypeAlias = Literal["client"] | StoredCapScope
STORED_CAP_LEVELS: tuple[StoredCapScope, ...] = get_args(StoredCapScope)
CAP_LEVELS: tuple[CapScope, ...] = ("client", *STORED_CAP_LEVELS)
# Their names in messages.
NAMES: Mapping[CapScope, str] = {
    "client": "the cap",
    "request": "the question's cap",
    "conversation": "the conversation's cap",
    "day": "the day's cap",
    "month": "the month's cap",
    "total": "the total cap",
}
# Windows that end with time; the others end with the request, the conversation or the client.
TIMED: frozenset[CapScope] = frozenset({"day", "month"})
# Nine million USD, the most that a cap or a single charge is taken for: a thousand of them still add up in 64 bits.
MOST_NANOUSD = 2**53


@dataclass(frozen=True)
class MaxCost:
    """The most that a planned request may cost, as price, prompt tokens and completion limit (at least 1).

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
        return self.price.worst_case(self.prompt_tokens, self.limit, self.requests)

    @property
    def least_nanousd(self) -> int:
        """The most the request can cost with the lowest limit that it may have."""
        return self._lowered.worst_nanousd

    @property
    def needs(self) -> str:
        """Say what it needs: with the lowest limit that it may have, and with all of its own.

        >>> MaxCost(Price.parse("1/0.1/4"), 1000, 500).needs
        '0.001004 USD needed for a first token, 0.003 USD for up to 500'
        """
        least, worst = self.least_nanousd, self.worst_nanousd
        if least == worst:
            return f"{as_usd(least)} needed"
        return f"{as_usd(least)} needed for a first token, {as_usd(worst)} for up to {self.limit}"

    @property
    def _lowered(self) -> MaxCost:
        return replace(self, limit=max(1, min(self.min_limit, self.limit)))

    def fit_to(self, left_nanousd: int | None) -> MaxCost | None:
        """Lower the limit to the largest that fits; None if not even ``min_limit`` fits.

        >>> MaxCost(Price.parse("1/0.1/4"), 10, 100).fit_to(18_000).limit
        2
        """
        whole = replace(self, limit=max(1, self.limit))
        if left_nanousd is None or whole.worst_nanousd <= left_nanousd:
            return whole
        fitting = self._lowered
        if fitting.worst_nanousd > left_nanousd:
            return None
        too_high = whole.limit
        while too_high - fitting.limit > 1:
            middle = replace(self, limit=(fitting.limit + too_high) // 2)
            if middle.worst_nanousd <= left_nanousd:
                fitting = middle
            else:
                too_high = middle.limit
        return fitting


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
    level: CapScope | None = None
    cap_nanousd: int | None = None
    left_nanousd: int | None = None


@dataclass(frozen=True)
class CapStatus:
    """One cap and the money spent and reserved in its present window."""

    level: CapScope
    cap_nanousd: int
    spent_nanousd: int
    reserved_nanousd: int

    @property
    def left_nanousd(self) -> int:
        """The amount that may still be reserved; negative after a charge above its reservation or a lowered cap."""
        return self.cap_nanousd - self.spent_nanousd - self.reserved_nanousd

    def denial(self, max_cost: MaxCost | None = None) -> Denial:
        """Return the denial of a further request, and say what that needs, where it is known."""
        left = max(0, self.left_nanousd)
        cap, rest = as_usd(self.cap_nanousd), as_usd(left)
        needs = f", {max_cost.needs}" if max_cost is not None and max_cost.worst_nanousd else ""
        why = f"{NAMES[self.level]} of {cap} does not allow another request ({rest} left{needs})"
        return Denial(why, self.level, self.cap_nanousd, left)


@dataclass(frozen=True)
class Allowance:
    """A maximal cost that fits, perhaps with a lowered limit, and what the tightest cap had left (None: no cap)."""

    max_cost: MaxCost
    left_nanousd: int | None


def windows(scope: SpendScope, at: int) -> dict[CapScope, str]:
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
        return tightest.denial(max_cost)
    if fitted is None or fitted.worst_nanousd > MOST_NANOUSD:
        return Denial(f"a request that may cost more than {as_usd(MOST_NANOUSD)} is not sent")
    return Allowance(fitted, left)


# ---- ledgers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reservation:
    """Money that no other request can spend, and the limit of the request it was reserved for.

    ``nonce`` distinguishes it from an entry of the same number in a file that replaced the ledger.
    ``returned_nanousd``: reservations of dead processes that were returned in the same step, unsent.
    """

    id: int
    nanousd: int
    limit: int = 1
    nonce: int = 0
    returned_nanousd: int = 0


@dataclass(frozen=True)
class Settlement:
    """The charge of a reserved request; nothing of the reservation stays.

    ``excess`` says, in a sentence, that the endpoint charged more than was reserved: the entry is then disputed and the
    endpoint closed.
    """

    reservation: Reservation
    charged_nanousd: int
    excess: str | None = None


class Ledger(Protocol):
    """Where reservations and settlements are kept.

    A reservation that is never settled counts as spent. ``durable``: calls wait for a disk, so they are not made on an
    event loop. Any call of such a ledger may raise LedgerError, in a sentence for the person who can mend it.
    """

    @property
    def durable(self) -> bool:
        """Whether the ledger outlives the process."""
        ...

    def reserve(self, max_cost: MaxCost, scope: SpendScope) -> Reservation | Denial:
        """Reserve a request's maximal cost. A limit that does not fit is lowered in the same step."""
        ...

    def mark_sent(self, reservation: Reservation) -> None:
        """Record that the request is about to be sent: from now on only a person can return its money."""
        ...

    def settle(self, settlement: Settlement) -> None:
        """Replace a reservation by its charge. Raises KeyError if it was settled before."""
        ...

    def cap_statuses(self, scope: SpendScope) -> list[CapStatus]:
        """Return the status of every cap that binds a scope now."""
        ...


def closed_denial(endpoint: str, why: str) -> Denial:
    """Return the denial for a closed endpoint."""
    return Denial(f"{endpoint} is closed ({why}): see hybrid budget reconcile")


def closed_endpoint(why: str) -> str | None:
    """Return the endpoint that a sentence with such a denial names; None where it has none.

    >>> closed_endpoint("gone; " + closed_denial("http://one", "it charged 1 USD").why)
    'http://one'
    """
    found = re.search(r"(\S+) is closed \(.*\): see hybrid budget reconcile", why)
    return found[1] if found else None


def denying_level(why: str) -> CapScope | None:
    """Return the level of the cap that a sentence with a cap's denial names; None where it has none.

    >>> denying_level(CapStatus("day", 10**9, 10**9, 0).denial().why)
    'day'
    """
    named = (level for level, name in NAMES.items() if re.search(rf"{name} of \S+ USD does not allow another", why))
    return next(named, None)


@dataclass(frozen=True)
class _MemoryEntry:
    scope: SpendScope
    windows: Mapping[CapScope, str]
    reserved: int


class MemoryLedger:
    """A ledger that lives as long as the process. Used from one thread, the event loop's."""

    durable = False

    def __init__(
        self,
        cap_nanousd: int | None = None,
        caps: Mapping[StoredCapScope, int] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start with nothing spent. ``cap_nanousd`` is the total cap; by default all time is one day."""
        self._caps = dict(caps or {}) | ({} if cap_nanousd is None else {"total": cap_nanousd})
        self._clock = clock
        self._latest = 0
        self._open: dict[int, _MemoryEntry] = {}
        self._totals: defaultdict[tuple[CapScope, str], list[int]] = defaultdict(lambda: [0, 0])
        self._closed: dict[str, str] = {}
        self._next = 0

    def __repr__(self) -> str:
        """Show the state in nano-dollars."""
        return f"MemoryLedger(settled={self.settled_nanousd}, reserved={self.reserved_nanousd}, caps={self._caps})"

    @property
    def settled_nanousd(self) -> int:
        """The sum of all charges."""
        return self._totals["total", ""][0]

    @property
    def reserved_nanousd(self) -> int:
        """The sum reserved for requests under way and for requests whose charge never became known."""
        return self._totals["total", ""][1]

    def reserve(self, max_cost: MaxCost, scope: SpendScope) -> Reservation | Denial:
        """See the port."""
        if scope.endpoint in self._closed:
            return closed_denial(scope.endpoint, self._closed[scope.endpoint])
        allowance = allow(max_cost, self.cap_statuses(scope))
        if isinstance(allowance, Denial):
            return allowance
        self._latest = max(self._latest, int(self._clock()))
        entry = _MemoryEntry(scope, windows(scope, self._latest), allowance.max_cost.worst_nanousd)
        self._next += 1
        self._open[self._next] = entry
        self._add(entry, 0, entry.reserved)
        return Reservation(self._next, entry.reserved, allowance.max_cost.limit)

    def mark_sent(self, reservation: Reservation) -> None:
        """See the port. Memory dies with its process, so nothing need be recorded."""

    def settle(self, settlement: Settlement) -> None:
        """See the port."""
        entry = self._open.pop(settlement.reservation.id)
        self._add(entry, settlement.charged_nanousd, -entry.reserved)
        if settlement.excess is not None:
            self._closed[entry.scope.endpoint] = settlement.excess

    def cap_statuses(self, scope: SpendScope) -> list[CapStatus]:
        """See the port. All days and months that are not over count: a clock set back frees nothing."""
        now = windows(scope, int(self._clock()))
        caps: dict[CapScope, int] = {level: self._caps[level] for level in STORED_CAP_LEVELS if level in self._caps}
        if scope.cap_nanousd is not None:
            caps["client"] = scope.cap_nanousd
        return [CapStatus(level, caps[level], *self._sum(level, now[level])) for level in CAP_LEVELS if level in caps]

    def _sum(self, level: CapScope, window: str) -> tuple[int, int]:
        counted = [
            total
            for (kind, name), total in self._totals.items()
            if kind == level and (name >= window if level in TIMED else name == window)
        ]
        return sum(spent for spent, _ in counted), sum(reserved for _, reserved in counted)

    def _add(self, entry: _MemoryEntry, spent: int, reserved: int) -> None:
        for level, window in entry.windows.items():
            total = self._totals[level, window]
            total[0] += spent
            total[1] += reserved
