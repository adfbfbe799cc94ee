"""The ledger in a file: the port, over SQLite.

The law is the port's, under any number of processes and any crash (``tests/spend/test_durable_*.py``): a reservation is
on the disk before it is granted, and what is open counts as spent until it is settled or reconciled. A settlement need
not be there yet, unless it tells of more than was reserved: losing one can only overstate what was spent.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from hybrid.spend.caps import LEVELS, MOST_NANOUSD, TIMED, Denial, Level, Standing, afford, windows
from hybrid.spend.claim import Claim, Spender
from hybrid.spend.durable.file import PATIENCE_S, LedgerFile
from hybrid.spend.ledger import Reservation, Settlement, closed_denial


class FileLedger:
    """What every process that names the same file has spent."""

    durable = True

    def __init__(self, path: Path, clock: Callable[[], float] = time.time, patience_s: float = PATIENCE_S) -> None:
        """Name the file; it is made with the first reservation."""
        self.file = LedgerFile(path, patience_s)
        self.clock = clock

    def __repr__(self) -> str:
        """Name the file."""
        return f"FileLedger({self.file.path})"

    def reserve(
        self, claim: Claim, spender: Spender, spare: int = 1, first: Settlement | None = None
    ) -> Reservation | Denial:
        """See the port."""
        with self.file.transaction(flushed=True) as db:
            if first is not None:
                settle(db, first, self.clock())
            closed = db.execute("SELECT why FROM closed WHERE endpoint = ?", (spender.endpoint,)).fetchone()
            if closed:
                return closed_denial(spender.endpoint, closed[0])
            now = int(self.clock())
            afforded = afford(claim, standings(db, spender, now), spare)
            if isinstance(afforded, Denial):
                return afforded
            at = max(now, latest(db))  # time never runs backwards in a ledger
            price = f"{claim.price}, {claim.price.source}"
            room = afforded.room_nanousd
            amounts = (None if room is None else min(room, 4 * MOST_NANOUSD), afforded.nanousd, afforded.nanousd)
            cursor = db.execute(
                "INSERT INTO entries (at, endpoint, request, conversation, client, price, room, granted, reserved) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*(at, spender.endpoint, spender.request, spender.conversation, spender.client, price), *amounts),
            )
            add(db, windows(spender, at), 0, afforded.nanousd)
            assert cursor.lastrowid is not None
            return Reservation(cursor.lastrowid, afforded.nanousd, afforded.claim.limit)

    def settle(self, settlement: Settlement) -> None:
        """See the port."""
        with self.file.transaction(flushed=settlement.excess is not None) as db:
            settle(db, settlement, self.clock())

    def standings(self, spender: Spender) -> list[Standing]:
        """See the port. Where there is no file yet, none is made."""
        if not self.file.exists():
            return own_cap(spender, 0, 0)
        with self.file.transaction(flushed=False) as db:
            return standings(db, spender, int(self.clock()))

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def own_cap(spender: Spender, spent: int, reserved: int) -> list[Standing]:
    """Return the client's own cap, if it has one."""
    return [] if spender.cap_nanousd is None else [Standing("client", spender.cap_nanousd, spent, reserved)]


def latest(db: sqlite3.Connection) -> int:
    """Return the moment of the last entry, 0 where there is none."""
    found = db.execute("SELECT at FROM entries ORDER BY id DESC LIMIT 1").fetchone()
    return found[0] if found else 0


def standings(db: sqlite3.Connection, spender: Spender, now: int) -> list[Standing]:
    """Return the caps that bind a spender, with their present windows."""
    caps: dict[Level, int] = dict(db.execute("SELECT level, nanousd FROM caps"))
    if spender.cap_nanousd is not None:
        caps["client"] = spender.cap_nanousd
    names = windows(spender, now)
    return [Standing(level, caps[level], *total(db, level, names[level])) for level in LEVELS if level in caps]


def total(db: sqlite3.Connection, level: Level, window: str) -> tuple[int, int]:
    """Return what was spent and what is reserved in a window.

    Of days and months all that are not over count. So a clock that was set forward and back again, or back and forward,
    frees nothing: what was written under a later date counts in every window until then.
    """
    counted = "window >= ?" if level in TIMED else "window = ?"
    spent, reserved = db.execute(
        f"SELECT coalesce(sum(spent), 0), coalesce(sum(reserved), 0) FROM totals WHERE level = ? AND {counted}",  # noqa: S608
        (level, window),
    ).fetchone()
    return spent, reserved


def add(db: sqlite3.Connection, names: dict[Level, str], spent: int, reserved: int) -> None:
    """Add to the totals of some windows; either amount may be negative."""
    db.executemany(
        "INSERT INTO totals VALUES (?1, ?2, max(?3, 0), max(?4, 0)) ON CONFLICT (level, window) DO UPDATE SET "
        "spent = min(spent + ?3, ?5), reserved = min(reserved + ?4, ?5)",
        [(level, window, spent, reserved, 4 * MOST_NANOUSD) for level, window in names.items()],
    )


def settle(db: sqlite3.Connection, settlement: Settlement, now: float, state: str = "settled") -> None:
    """Replace what an entry holds. Raises KeyError for one that is over, unless it was reconciled by hand."""
    found = db.execute(
        "SELECT at, endpoint, request, conversation, client, reserved, charged, state FROM entries WHERE id = ?",
        (settlement.reservation_id,),
    ).fetchone()
    if found is None or found[-1] == "settled":
        raise KeyError(settlement.reservation_id)
    at, endpoint, request, conversation, client, reserved, charged, _ = found
    now_charged, kept = min(settlement.charged_nanousd, MOST_NANOUSD), settlement.kept_nanousd
    db.execute(
        "UPDATE entries SET reserved = ?, charged = ?, requests = ?, state = ? WHERE id = ?",
        (kept, now_charged, settlement.num_requests, "open" if kept else state, settlement.reservation_id),
    )
    spender = Spender(endpoint, request, conversation, client)
    add(db, windows(spender, at), now_charged - charged, kept - reserved)
    if settlement.excess is not None:
        db.execute("INSERT OR REPLACE INTO closed VALUES (?, ?, ?)", (endpoint, int(now), settlement.excess))
