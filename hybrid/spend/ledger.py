"""What has been spent and what is promised: the port, and a ledger in memory.

The law: settled plus reserved never exceeds the cap, whatever the order of calls, as long as no request is settled
above its reservation; one that is, is recorded in full (``tests/spend/test_ledger.py``). A ledger knows amounts, not
tokens, prices or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reservation:
    """A promise of money that no other request can spend."""

    id: int
    nanousd: int


class Ledger(Protocol):
    """Where reservations and settlements are kept."""

    @property
    def cap_nanousd(self) -> int | None:
        """The most that may be spent; None for no cap."""
        ...

    @property
    def remaining_nanousd(self) -> int | None:
        """Cap less settled less reserved; None for no cap."""
        ...

    def reserve(self, nanousd: int) -> Reservation | None:
        """Set an amount aside, or return None where it does not fit."""
        ...

    def settle(self, reservation: Reservation, nanousd: int) -> None:
        """Replace a reservation by what was charged. Settling twice is an error (KeyError)."""
        ...


class MemoryLedger:
    """A ledger that lives as long as the process. Used from one thread, the event loop's."""

    def __init__(self, cap_nanousd: int | None = None) -> None:
        """Start with nothing spent."""
        self._cap = cap_nanousd
        self._settled = 0
        self._open: dict[int, int] = {}
        self._next = 0

    def __repr__(self) -> str:
        """Show the state in nano-dollars."""
        return f"MemoryLedger(settled={self._settled}, reserved={sum(self._open.values())}, cap={self._cap})"

    @property
    def cap_nanousd(self) -> int | None:
        """The most that may be spent."""
        return self._cap

    @property
    def settled_nanousd(self) -> int:
        """What has been charged so far."""
        return self._settled

    @property
    def reserved_nanousd(self) -> int:
        """What is promised to requests under way, or to requests whose charge never became known."""
        return sum(self._open.values())

    @property
    def remaining_nanousd(self) -> int | None:
        """What may still be reserved."""
        return None if self._cap is None else self._cap - self._settled - self.reserved_nanousd

    def reserve(self, nanousd: int) -> Reservation | None:
        """Set an amount aside if it fits. A cap with nothing left admits nothing, not even what is free."""
        remaining = self.remaining_nanousd
        if remaining is not None and (remaining <= 0 or nanousd > remaining):
            return None
        self._next += 1
        self._open[self._next] = nanousd
        return Reservation(self._next, nanousd)

    def settle(self, reservation: Reservation, nanousd: int) -> None:
        """Replace the reservation by the charge."""
        del self._open[reservation.id]
        self._settled += nanousd
