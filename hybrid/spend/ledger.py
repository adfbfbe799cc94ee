"""Spent and reserved money: the port of a ledger, and a ledger in memory.

The law: settled plus reserved never exceeds a cap, whatever the order of calls, as long as no request is settled above
its reservation. A charge above the reservation is recorded in full, as disputed, and closes the endpoint
(``tests/spend/test_ledger.py``, for every ledger alike). A ledger knows amounts and scopes, not HTTP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hybrid.spend.caps import (
    CAP_LEVELS,
    STORED_CAP_LEVELS,
    TIMED,
    CapLevel,
    CapStatus,
    Denial,
    MaxCost,
    SpendScope,
    StoredCapLevel,
    allow,
    windows,
)


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


@dataclass(frozen=True)
class _MemoryEntry:
    scope: SpendScope
    windows: Mapping[CapLevel, str]
    reserved: int


class MemoryLedger:
    """A ledger that lives as long as the process. Used from one thread, the event loop's."""

    durable = False

    def __init__(
        self,
        cap_nanousd: int | None = None,
        caps: Mapping[StoredCapLevel, int] | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start with nothing spent. ``cap_nanousd`` is the total cap; by default all time is one day."""
        self._caps = dict(caps or {}) | ({} if cap_nanousd is None else {"total": cap_nanousd})
        self._clock = clock
        self._latest = 0
        self._open: dict[int, _MemoryEntry] = {}
        self._totals: defaultdict[tuple[CapLevel, str], list[int]] = defaultdict(lambda: [0, 0])
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
        caps: dict[CapLevel, int] = {level: self._caps[level] for level in STORED_CAP_LEVELS if level in self._caps}
        if scope.cap_nanousd is not None:
            caps["client"] = scope.cap_nanousd
        return [CapStatus(level, caps[level], *self._sum(level, now[level])) for level in CAP_LEVELS if level in caps]

    def _sum(self, level: CapLevel, window: str) -> tuple[int, int]:
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
