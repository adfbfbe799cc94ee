"""A lease: money reserved once for several requests of one answer, and carved for each of them in memory.

The law: what is carved, charged and given back never exceeds what was reserved, but for a server that charges more
than was carved; and whatever was carved and never told is kept (``tests/spend/test_lease.py``). After a crash the whole
lease counts as spent, because its reservation stands. Nothing here waits or writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.spend.claim import Claim
from hybrid.spend.ledger import Reservation, Settlement

# Worst cases that one reservation covers: a durable write costs milliseconds, so a check in eight is enough of them.
# What is held back meanwhile is bounded by a share of what is left (``caps.LEASE_SHARE``).
LEASED_REQUESTS = 8


@dataclass(frozen=True)
class Part:
    """What one request may cost, out of a lease."""

    id: int
    nanousd: int


class Lease:
    """A reservation and what became of it. ``excess`` says that a request of it was charged too much."""

    def __init__(self, reservation: Reservation) -> None:
        """Start with all of it free."""
        self.id = reservation.id
        self.excess: str | None = None
        self._free = reservation.nanousd
        self._charged = 0
        self._carved: dict[int, int] = {}
        self._num_requests = 0
        self._written: Settlement | None = None

    def __repr__(self) -> str:
        """Show the state in nano-dollars."""
        return f"Lease({self.id}: free={self._free}, carved={sum(self._carved.values())}, charged={self._charged})"

    def carve(self, claim: Claim) -> Part | None:
        """Set a claim's worst case aside; None where it is more than what is free."""
        worst = claim.worst_nanousd
        if worst > self._free:
            return None
        self._free -= worst
        self._num_requests += 1
        self._carved[self._num_requests] = worst
        return Part(self._num_requests, worst)

    def settle(self, part: Part, charged_nanousd: int) -> bool:
        """Replace a part by what was charged; tell whether that was within it. Settling twice is a KeyError."""
        del self._carved[part.id]
        self._charged += charged_nanousd
        self._free += max(0, part.nanousd - charged_nanousd)
        return charged_nanousd <= part.nanousd

    def given_back(self) -> Settlement:
        """Give back what is free; what is carved stays reserved. Nothing more can be carved from it."""
        self._free = 0
        return Settlement(self.id, self._charged, sum(self._carved.values()), self._num_requests, self.excess)

    def wrote(self, settlement: Settlement) -> None:
        """Note what the ledger now holds."""
        self._written = settlement

    def unwritten(self) -> Settlement | None:
        """Give back what is free and return what the ledger does not hold yet; None where it holds all."""
        settlement = self.given_back()
        return None if settlement == self._written else settlement
