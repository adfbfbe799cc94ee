"""What asking costs: prices, caps, the ledger, the bill. No HTTP, no models.

The ledger in a file is ``hybrid.spend.durable``, apart: a policy that looks at a price needs no SQLite.
"""

from hybrid.spend.account import Account
from hybrid.spend.bill import Bill, bill
from hybrid.spend.caps import CAP_LEVELS, CapLevel, Denial, Standing
from hybrid.spend.claim import Claim, Spender
from hybrid.spend.ledger import Ledger, MemoryLedger, Reservation, Settlement
from hybrid.spend.price import Price, as_usd, usd_to_nanousd
from hybrid.spend.price_file import PriceFile, endpoint_id
from hybrid.spend.purse import Grant, Purse

__all__ = [
    "CAP_LEVELS",
    "Account",
    "Bill",
    "CapLevel",
    "Claim",
    "Denial",
    "Grant",
    "Ledger",
    "MemoryLedger",
    "Price",
    "PriceFile",
    "Purse",
    "Reservation",
    "Settlement",
    "Spender",
    "Standing",
    "as_usd",
    "bill",
    "endpoint_id",
    "usd_to_nanousd",
]
