"""What asking costs: prices, the ledger, the bill. No HTTP, no models."""

from hybrid.spend.account import Account, Denial, Grant
from hybrid.spend.bill import Bill, bill
from hybrid.spend.ledger import Ledger, MemoryLedger, Reservation
from hybrid.spend.price import Price, as_usd, usd_to_nanousd
from hybrid.spend.price_file import PriceFile, endpoint_id

__all__ = [
    "Account",
    "Bill",
    "Denial",
    "Grant",
    "Ledger",
    "MemoryLedger",
    "Price",
    "PriceFile",
    "Reservation",
    "as_usd",
    "bill",
    "endpoint_id",
    "usd_to_nanousd",
]
