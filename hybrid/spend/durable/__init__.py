"""The ledger as a file: SQLite, one writer at a time, nothing forgotten by a crash."""

from hybrid.spend.durable.admin import LedgerAdmin, LedgerEntry
from hybrid.spend.durable.ledger import FileLedger

__all__ = ["FileLedger", "LedgerAdmin", "LedgerEntry"]
