"""The ledger in a file: the port, over SQLite.

The law is the port's, under any number of processes and any crash (``tests/spend/test_durable_*.py``): a reservation is
on the disk before it is granted. A reservation that was not settled counts as spent until a person reconciles it; an
unsent one is returned once its process is dead. A settlement is not flushed to the disk unless it exceeds its
reservation: a lost settlement can only overstate what was spent. The mark that a request was sent is not flushed
either: it must outlive the process, and after a power failure no reservation is returned.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from hybrid.errors import LedgerError
from hybrid.spend.durable.file import PATIENCE_S, SqliteFile, is_dead, owner
from hybrid.spend.durable.schema import DamagedLedger, caps_of, check_totals, check_windows, checksum, read_total
from hybrid.spend.ledger import (
    CAP_LEVELS,
    MOST_NANOUSD,
    CapScope,
    CapStatus,
    Denial,
    MaxCost,
    Reservation,
    Settlement,
    SpendScope,
    allow,
    closed_denial,
    windows,
)

# Proven for whoever spends, whatever is capped: a wrong amount of any entry shows in the last.
ALWAYS_PROVEN: frozenset[CapScope] = frozenset({"client", "day", "month", "total"})
# With so many windows a process has all totals proven at once, and none after that.
MOST_PROVEN = 32


class FileLedger:
    """The shared spending of all processes that name the same file."""

    durable = True

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, patience_s: float = PATIENCE_S) -> None:
        """Name the file; it is made with the first reservation."""
        self.file = SqliteFile(path, patience_s)
        self.clock = clock
        self._capped_in: int | None = None  # the generation of the file in which caps were seen
        self._proven: set[tuple[str, str]] = set()
        self._proven_in: sqlite3.Connection | None = None

    def __repr__(self) -> str:
        """Name the file."""
        return f"FileLedger({self.file.path})"

    def reserve(self, max_cost: MaxCost, scope: SpendScope) -> Reservation | Denial:
        """See the port."""
        with self.file.transaction(flushed=True) as db:
            now = int(self.clock())
            caps, names = self._proven_caps(db, scope, now)  # nothing is given back to what is not proven
            returned = give_back_unsent(db)
            closed = db.execute("SELECT why FROM closed WHERE endpoint = ?", (scope.endpoint,)).fetchone()
            if closed:
                return closed_denial(scope.endpoint, closed[0])
            allowance = allow(max_cost, cap_statuses_of(db, caps, names))
            if isinstance(allowance, Denial):
                return allowance
            at = max(now, latest_time(db))  # time never runs backwards in a ledger
            who = (scope.endpoint, scope.request, scope.conversation, scope.client)
            price, worst, nonce = (
                f"{max_cost.price.in_full}, {max_cost.price.source}",
                allowance.max_cost.worst_nanousd,
                secrets.randbits(62),
            )
            room = None if allowance.left_nanousd is None else min(allowance.left_nanousd, 4 * MOST_NANOUSD)
            cursor = db.execute(
                "INSERT INTO entries (at, endpoint, request, conversation, client, price, room, granted, reserved, "
                "owner, nonce) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (at, *who, price, room, worst, worst, owner(), nonce),
            )
            add_to_totals(db, windows(scope, at), 0, worst)
            assert cursor.lastrowid is not None
            return Reservation(cursor.lastrowid, worst, allowance.max_cost.limit, nonce, returned)

    def mark_sent(self, reservation: Reservation) -> None:
        """See the port. Raises LedgerError if the reservation was returned or reconciled, or is not in this file."""
        with self.file.transaction(flushed=False) as db:
            mine = (reservation.id, reservation.nonce)
            db.execute("UPDATE entries SET state = 'sent' WHERE id = ? AND nonce = ? AND state = 'reserved'", mine)
            found = db.execute("SELECT state FROM entries WHERE id = ? AND nonce = ?", mine).fetchone()
        if found != ("sent",):
            raise self._missing_reservation()

    def settle(self, settlement: Settlement) -> None:
        """See the port."""
        with self.file.transaction(flushed=settlement.excess is not None) as db:
            reservation = settlement.reservation
            found = db.execute("SELECT nonce, state FROM entries WHERE id = ?", (reservation.id,)).fetchone()
            if found is None or found[0] != reservation.nonce:
                raise self._missing_reservation()  # the file was replaced: that entry is somebody else's
            if found[1] in {"settled", "disputed"}:
                raise KeyError(reservation.id)
            state = "settled" if settlement.excess is None else "disputed"
            replace_charge(db, reservation.id, settlement.charged_nanousd, state)
            if settlement.excess is not None:
                close_endpoint(db, reservation.id, int(self.clock()), settlement.excess)

    def cap_statuses(self, scope: SpendScope) -> list[CapStatus]:
        """See the port. Where there is no file yet, none is made."""
        if self._capped_in is None and not self.file.exists():
            return own_cap(scope)
        with self.file.transaction(flushed=False) as db:
            return cap_statuses_of(db, *self._proven_caps(db, scope, int(self.clock())))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _missing_reservation(self) -> LedgerError:
        return LedgerError(f"the ledger {self.file.path} does not hold this request's reservation any more: ask again")

    def _proven_caps(
        self, db: sqlite3.Connection, scope: SpendScope, now: int
    ) -> tuple[dict[CapScope, int], dict[CapScope, str]]:
        """Return the caps that bind a scope, and its windows, all proven. Raises LedgerError if caps have vanished."""
        kept, this = caps_of(db), self.file.generation
        if not kept and self._capped_in not in {None, this}:
            msg = (
                f"the ledger {self.file.path} was taken away, and with it the caps that bound this client: put it "
                "back, or set caps in the new one (hybrid budget set)"
            )
            raise LedgerError(msg)
        self._capped_in = this if kept else None
        caps: dict[CapScope, int] = {level: kept[level] for level in CAP_LEVELS if level in kept}
        if scope.cap_nanousd is not None:
            caps["client"] = scope.cap_nanousd
        names = windows(scope, now)
        self._prove(db, {level: name for level, name in names.items() if level in caps or level in ALWAYS_PROVEN})
        return caps, names

    def _prove(self, db: sqlite3.Connection, names: dict[CapScope, str]) -> None:
        """Raise DamagedLedger if a total is not what its entries sum to; once for a window of this connection."""
        if self._proven_in is not db:
            self._proven, self._proven_in = set(), db
        new = {level: window for level, window in names.items() if (level, window) not in self._proven}
        if not new or len(self._proven) > MOST_PROVEN:
            return
        if len(self._proven) + len(new) > MOST_PROVEN:
            check_totals(db)  # many conversations: all of it, once
        else:
            check_windows(db, new)
        self._proven |= new.items()


def cap_statuses_of(db: sqlite3.Connection, caps: dict[CapScope, int], names: dict[CapScope, str]) -> list[CapStatus]:
    """Return the status of each cap in its window."""
    return [
        CapStatus(level, caps[level], *read_total(db, level, names[level])) for level in CAP_LEVELS if level in caps
    ]


def own_cap(scope: SpendScope) -> list[CapStatus]:
    """Return the client's own cap, if it has one, as unspent."""
    return [] if scope.cap_nanousd is None else [CapStatus("client", scope.cap_nanousd, 0, 0)]


def latest_time(db: sqlite3.Connection) -> int:
    """Return the time of the last entry, 0 if there is none."""
    found = db.execute("SELECT at FROM entries ORDER BY id DESC LIMIT 1").fetchone()
    return found[0] if found else 0


def add_to_totals(db: sqlite3.Connection, names: dict[CapScope, str], spent: int, reserved: int) -> None:
    """Add to the totals of some windows; either amount may be negative."""
    db.executemany(
        "INSERT INTO totals VALUES (?1, ?2, max(?3, 0), max(?4, 0)) ON CONFLICT (level, window) DO UPDATE SET "
        "spent = spent + ?3, reserved = reserved + ?4",
        [(level, window, spent, reserved) for level, window in names.items()],
    )


def replace_charge(db: sqlite3.Connection, entry_id: int, charged_nanousd: int, state: str) -> None:
    """Replace an entry's reservation and charge by a charge. Raises TypeError if there is no such entry."""
    at, endpoint, request, conversation, client, reserved, charged = db.execute(
        "SELECT at, endpoint, request, conversation, client, reserved, charged FROM entries WHERE id = ?", (entry_id,)
    ).fetchone()
    now_charged = min(charged_nanousd, MOST_NANOUSD)
    update = "UPDATE entries SET reserved = 0, charged = ?, state = ? WHERE id = ?"
    db.execute(update, (now_charged, state, entry_id))
    add_to_totals(
        db, windows(SpendScope(endpoint, request, conversation, client), at), now_charged - charged, -reserved
    )


def close_endpoint(db: sqlite3.Connection, entry_id: int, at: int, why: str) -> None:
    """Close the endpoint of an entry: no request to it is granted any more."""
    (endpoint,) = db.execute("SELECT endpoint FROM entries WHERE id = ?", (entry_id,)).fetchone()
    row = endpoint, at, why
    db.execute("INSERT OR REPLACE INTO closed VALUES (?, ?, ?, ?)", (*row, checksum(*row)))


def give_back_unsent(db: sqlite3.Connection) -> int:
    """Return unsent reservations of dead processes to the caps; return their sum.

    Raises DamagedLedger where the index names an entry that is none of them: SQLite believes it.
    """
    owners = [name for (name,) in db.execute("SELECT DISTINCT owner FROM entries WHERE state = 'reserved'")]
    returned = 0
    for name in filter(is_dead, owners):
        unsent = "SELECT id, reserved FROM entries WHERE state = 'reserved' AND owner = ?"
        for entry_id, reserved in db.execute(unsent, (name,)).fetchall():
            if db.execute("SELECT state FROM entries WHERE id = ?", (entry_id,)).fetchone() != ("reserved",):
                raise DamagedLedger("an index is not what its table holds")
            replace_charge(db, entry_id, 0, "returned")
            returned += reserved
    return returned
