"""What asking costs: prices, the ledger, the bill. No HTTP, no models."""

from hybrid.spend.account import Account, Denial, Grant
from hybrid.spend.bill import Bill, bill
from hybrid.spend.ledger import Ledger, MemoryLedger, Reservation
from hybrid.spend.price import Price, as_usd, usd_to_nanousd

__all__ = [
    "Account",
    "Bill",
    "Denial",
    "Grant",
    "Ledger",
    "MemoryLedger",
    "Price",
    "Reservation",
    "as_usd",
    "bill",
    "usd_to_nanousd",
]
