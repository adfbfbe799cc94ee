"""The cost of requests: prices, caps, the ledger, the bill. No HTTP, no models.

The ledger in a file is a package of its own, ``hybrid.spend.durable``: a policy that reads a price needs no SQLite.
"""

from hybrid.spend.answer_budget import Account, AnswerBudget, Bill, Grant, as_times, bill
from hybrid.spend.ask_prices import AskPrices, CheckRates, Spans, TokenTimes, as_percent, tokens_shown
from hybrid.spend.ledger import (
    STORED_CAP_LEVELS,
    CapScope,
    CapStatus,
    Denial,
    MaxCost,
    MemoryLedger,
    Reservation,
    Settlement,
    SpendScope,
    StoredCapScope,
    closed_endpoint,
    denying_level,
)
from hybrid.spend.price import TARIFFS, LongContext, Price, as_usd, usd_to_nanousd
from hybrid.spend.price_file import SHIPPED_TARIFFS, PriceFile, endpoint_id

__all__ = [
    "SHIPPED_TARIFFS",
    "STORED_CAP_LEVELS",
    "TARIFFS",
    "Account",
    "AnswerBudget",
    "AskPrices",
    "Bill",
    "CapScope",
    "CapStatus",
    "CheckRates",
    "Denial",
    "Grant",
    "LongContext",
    "MaxCost",
    "MemoryLedger",
    "Price",
    "PriceFile",
    "Reservation",
    "Settlement",
    "Spans",
    "SpendScope",
    "StoredCapScope",
    "TokenTimes",
    "as_percent",
    "as_times",
    "as_usd",
    "bill",
    "closed_endpoint",
    "denying_level",
    "endpoint_id",
    "tokens_shown",
    "usd_to_nanousd",
]
