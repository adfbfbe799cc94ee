"""A person's access to a ledger: set and show caps, read the log, reconcile. The client never uses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hybrid.errors import UsageError
from hybrid.spend.durable.ledger import FileLedger, latest_time, replace_charge
from hybrid.spend.durable.schema import caps_of, check_totals, checksum, read_total, rebuild_totals
from hybrid.spend.ledger import MOST_NANOUSD, STORED_CAP_LEVELS, SpendScope, StoredCapScope, windows
from hybrid.spend.price import as_usd

# A scope without names: the windows of requests and conversations are not shown.
_NO_SCOPE = SpendScope("", "", "", "")


@dataclass(frozen=True)
class CapRow:
    """A cap (None: not set) and its present window; caps of a request or a conversation have no window to show."""

    level: StoredCapScope
    window: str | None
    cap_nanousd: int | None
    spent_nanousd: int | None
    reserved_nanousd: int | None


@dataclass(frozen=True)
class LedgerEntry:
    """One entry of the ledger: a reservation, its price as text, and the names of its scope."""

    id: int
    at: int
    endpoint: str
    request: str
    conversation: str
    client: str
    price: str
    granted_nanousd: int
    reserved_nanousd: int
    charged_nanousd: int
    num_requests: int
    state: str


@dataclass(frozen=True)
class ClosedEndpoint:
    """An endpoint that charged more than was reserved, and gets no more requests."""

    endpoint: str
    at: int
    why: str


_FIELDS = (
    "id, at, endpoint, request, conversation, client, price, granted, reserved, charged, requests, state FROM entries"
)


class LedgerAdmin:
    """Reads and corrects a ledger for a person. Raises LedgerError and UsageError, in sentences."""

    def __init__(self, ledger: FileLedger) -> None:
        """Take the ledger."""
        self._file = ledger.file
        self._clock = ledger.clock
        self._proven_in: sqlite3.Connection | None = None

    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self._file.exists()

    @contextmanager
    def _transaction(self, *, flushed: bool) -> Iterator[sqlite3.Connection]:
        """Read and write in one step, once the whole ledger is proven."""
        with self._file.transaction(flushed=flushed) as db:
            if self._proven_in is not db:
                check_totals(db)
                self._proven_in = db
            yield db

    def rows(self) -> list[CapRow]:
        """Return every level's cap and what is spent and reserved in its present window."""
        with self._transaction(flushed=False) as db:
            caps = caps_of(db)
            names = windows(_NO_SCOPE, int(self._clock()))
            return [
                CapRow(level, None, caps.get(level), None, None)
                if level in {"request", "conversation"}
                else CapRow(level, names[level] or None, caps.get(level), *read_total(db, level, names[level]))
                for level in STORED_CAP_LEVELS
            ]

    def set_cap(self, level: StoredCapScope, nanousd: int | None) -> None:
        """Set a cap; None removes it. A cap below what is spent allows nothing more."""
        if nanousd is not None and nanousd > MOST_NANOUSD:
            msg = f"a cap is at most {as_usd(MOST_NANOUSD)}: none removes it"
            raise UsageError(msg)
        with self._transaction(flushed=True) as db:
            db.execute("DELETE FROM caps WHERE level = ?", (level,))
            if nanousd is not None:
                db.execute("INSERT INTO caps VALUES (?, ?, ?)", (level, nanousd, checksum(level, nanousd)))

    def log(self, num: int) -> list[LedgerEntry]:
        """Return the last entries, the newest first."""
        with self._transaction(flushed=False) as db:
            found = db.execute(f"SELECT {_FIELDS} ORDER BY id DESC LIMIT ?", (num,))
            return list(map(_entry, found))

    def open_entries(self) -> list[LedgerEntry]:
        """Return the entries without a known charge, the oldest first: in flight, or never settled."""
        return self._in_state("reserved", "sent")

    def disputed(self) -> list[LedgerEntry]:
        """Return the entries charged above their reservation, the oldest first."""
        return self._in_state("disputed")

    def _in_state(self, *states: str) -> list[LedgerEntry]:
        wanted = ", ".join("?" * len(states))
        with self._transaction(flushed=False) as db:
            found = db.execute(f"SELECT {_FIELDS} WHERE state IN ({wanted}) ORDER BY id", states)
            return list(map(_entry, found))

    def closed(self) -> list[ClosedEndpoint]:
        """Return the closed endpoints."""
        with self._transaction(flushed=False) as db:
            return [ClosedEndpoint(*row) for row in db.execute("SELECT endpoint, at, why FROM closed ORDER BY at")]

    def ahead_s(self) -> int:
        """Return by how many seconds the last entry is later than this clock; 0 if it is not."""
        with self._transaction(flushed=False) as db:
            return max(0, latest_time(db) - int(self._clock()))

    def reconcile(self, entry_id: int, charged_nanousd: int | None) -> LedgerEntry:
        """Replace an entry's amounts by its whole charge (None: charge everything that is reserved).

        Any entry can be corrected: one without a known charge, and one with a wrong charge. No endpoint is reopened.
        """
        if charged_nanousd is not None and charged_nanousd > MOST_NANOUSD:
            msg = f"a charge is at most {as_usd(MOST_NANOUSD)}"
            raise UsageError(msg)
        with self._transaction(flushed=True) as db:
            row = db.execute(f"SELECT {_FIELDS} WHERE id = ?", (entry_id,)).fetchone()
            if row is None:
                msg = f"entry {entry_id} is not in the ledger; hybrid budget log lists what is"
                raise UsageError(msg)
            entry = _entry(row)
            charged = entry.charged_nanousd + entry.reserved_nanousd if charged_nanousd is None else charged_nanousd
            replace_charge(db, entry_id, charged, "reconciled")
            return _entry(db.execute(f"SELECT {_FIELDS} WHERE id = ?", (entry_id,)).fetchone())

    def reopen(self, endpoint: str) -> None:
        """Reopen a closed endpoint."""
        with self._transaction(flushed=True) as db:
            if not db.execute("DELETE FROM closed WHERE endpoint = ?", (endpoint,)).rowcount:
                msg = f"{endpoint} is not closed; hybrid budget reconcile lists what is"
                raise UsageError(msg)

    def set_clock(self) -> int:
        """Date entries that are later than this clock as of now; return their number."""
        with self._transaction(flushed=True) as db:
            now = int(self._clock())
            moved = db.execute("UPDATE entries SET at = ? WHERE at > ?", (now, now)).rowcount
            rebuild_totals(db)
            return moved


def _entry(row: tuple[Any, ...]) -> LedgerEntry:
    entry = LedgerEntry(*row)
    return replace(entry, price=todays_spelling(entry.price))


def todays_spelling(price: str) -> str:
    """Return a price that the ledger keeps as text as ``Price.parse`` reads it today.

    What is written now never has four parts (``Price.in_full``): four are an earlier version's ``P/C/O/R``.

    >>> todays_spelling("1/0.1/4/0.002:new, a page"), todays_spelling("1/0.1/4, a page")
    ('1/0.1/1/4/0.002:new, a page', '1/0.1/4, a page')
    """
    stated, comma, source = price.partition(", ")
    amounts, colon, tariff = stated.partition(":")
    parts = amounts.split("/")
    if len(parts) == 4:
        prompt, cached, completion, request = parts
        amounts = f"{prompt}/{cached}/{prompt}/{completion}/{request}"
    return f"{amounts}{colon}{tariff}{comma}{source}"
