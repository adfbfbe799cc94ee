"""One endpoint's price against one ledger: leave for a request, and what it cost.

The law: a request leaves only with its worst case reserved; a request whose charge never becomes known keeps its
reservation (``tests/spend/test_account.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.spend.ledger import Ledger, Reservation
from hybrid.spend.price import NANOUSD_PER_USD, Price
from hybrid.types import CloudUsage


@dataclass(frozen=True)
class Grant:
    """Leave to send one request with at most ``limit`` completion tokens."""

    prompt_tokens: int
    limit: int
    reservation: Reservation


@dataclass(frozen=True)
class Denial:
    """No money for it, in one sentence."""

    why: str


class Account:
    """Reserves before a request leaves and settles after it."""

    def __init__(self, price: Price | None, ledger: Ledger) -> None:
        """Take a price (None: not known) and the ledger that holds the cap."""
        self._price = price
        self._ledger = ledger

    @property
    def price(self) -> Price | None:
        """What the endpoint charges; None if nobody said."""
        return self._price

    def learn(self, price: Price) -> None:
        """Take the price that is only known once the endpoint has said which model it serves."""
        self._price = price

    def ask(self, prompt_tokens: int, limit: int, least: int = 1) -> Grant | Denial:
        """Reserve the worst case of a request; a ``limit`` that does not fit is lowered, to ``least`` at most."""
        if self._price is None:
            if self._ledger.cap_nanousd is not None and self._ledger.cap_nanousd > 0:
                return Denial("there is a cap but no price for this endpoint: state --price P/C/O, or --price free")
            amount = 0
        else:
            limit = self._fitting(self._price, prompt_tokens, limit, least)
            amount = self._price.worst_case(prompt_tokens, limit)
        reservation = self._ledger.reserve(amount)
        if reservation is None:
            return Denial(self._reached())
        return Grant(prompt_tokens, limit, reservation)

    def settle(self, grant: Grant, usage: CloudUsage | None) -> None:
        """Record what the request was charged. Without a usage the reservation stands: it may have been spent."""
        if usage is not None:
            self._ledger.settle(grant.reservation, self.cost(usage) or 0)

    def cost(self, usage: CloudUsage) -> int | None:
        """Nano-dollars for a usage; None where the price is not known."""
        return None if self._price is None else self._price.cost(usage)

    def _fitting(self, price: Price, prompt_tokens: int, limit: int, least: int) -> int:
        remaining = self._ledger.remaining_nanousd
        if remaining is None:
            return limit
        low, high = least, max(least, limit)
        while low < high:  # the largest limit whose worst case fits; the least where none does: the ledger then refuses
            middle = (low + high + 1) // 2
            low, high = (middle, high) if price.worst_case(prompt_tokens, middle) <= remaining else (low, middle - 1)
        return low

    def _reached(self) -> str:
        cap, remaining = self._ledger.cap_nanousd or 0, self._ledger.remaining_nanousd or 0
        return f"the cap of {_usd(cap)} USD does not allow another request ({_usd(max(0, remaining))} USD left)"


def _usd(nanousd: int) -> str:
    return f"{nanousd / NANOUSD_PER_USD:.9f}".rstrip("0").rstrip(".")
