"""The ledger as a file: SQLite, one writer at a time, nothing forgotten by a crash."""

from hybrid.spend.durable.books import Books, Entry
from hybrid.spend.durable.ledger import FileLedger

__all__ = ["Books", "Entry", "FileLedger"]
