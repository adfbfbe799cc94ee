"""The tables of a ledger file, the constraints that hold whoever writes to it, and its migration.

Amounts are nano-dollars. ``entries`` has every reservation: the amount ``granted``, the ``room`` that the tightest cap
then had, the part that is still ``reserved``, and the amount ``charged``. ``totals`` has their sums by window, as
``SUMS`` computes them. States of an entry:

    reserved    the request is not sent; the money is returned once the owner is dead
    sent        the request may have been sent: it counts in full until it is settled or reconciled
    settled     the charge is known
    disputed    the charge exceeds the grant; it counts in full, and the endpoint is closed
    reconciled  a person stated the charge
    returned    the request was never sent, and its owner died

The law of the migration (``tests/spend/test_migration.py``): it happens whole or not at all, and no cap, charge or
reservation is lost. The law of the checks (``tests/spend/test_damage.py``): where one bit of an amount was flipped that
a cap is held against, nothing is granted. Before a window's total is believed, it is compared with the sum over its
entries, once in a process (``check_windows``); whoever reads a whole ledger has all of it proven (``check_totals``).
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping

from hybrid.spend.ledger import MOST_NANOUSD, TIMED, CapScope

# "HYBL": how a ledger knows its own.
APPLICATION_ID = 0x4859424C
# 1: until 0.1.0; an entry was for several requests, and nobody knew who had made it.
VERSION = 2
# The end of the year 9999: no entry is later.
LATEST = 253402300799
# The largest of SQLite's integers.
MOST = 2**63 - 1

_CAPS = """CREATE TABLE caps (
    level TEXT PRIMARY KEY CHECK (level IN ('request', 'conversation', 'day', 'month', 'total')),
    nanousd INTEGER NOT NULL CHECK (typeof(nanousd) = 'integer' AND nanousd >= 0),
    checksum INTEGER NOT NULL
)"""
_ENTRIES = """CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL CHECK (typeof(at) = 'integer' AND at BETWEEN 0 AND 253402300799),
    endpoint TEXT NOT NULL,
    request TEXT NOT NULL,
    conversation TEXT NOT NULL,
    client TEXT NOT NULL,
    price TEXT NOT NULL,
    room INTEGER,
    granted INTEGER NOT NULL CHECK (typeof(granted) = 'integer' AND granted >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    charged INTEGER NOT NULL DEFAULT 0 CHECK (typeof(charged) = 'integer' AND charged >= 0),
    requests INTEGER NOT NULL DEFAULT 1 CHECK (requests >= 0),
    owner TEXT NOT NULL,
    nonce INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'reserved'
        CHECK (state IN ('reserved', 'sent', 'settled', 'disputed', 'reconciled', 'returned')),
    CHECK (room IS NULL OR granted <= room),
    CHECK (state IN ('reserved', 'sent') OR reserved = 0)
)"""
_UNSENT = "CREATE INDEX unsent ON entries (owner) WHERE state = 'reserved'"
_TOTALS = """CREATE TABLE totals (
    level TEXT NOT NULL,
    window TEXT NOT NULL,
    spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer' AND spent >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    PRIMARY KEY (level, window)
) WITHOUT ROWID"""
_CLOSED = """CREATE TABLE closed (
    endpoint TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    why TEXT NOT NULL,
    checksum INTEGER NOT NULL
)"""

# What ``totals`` must hold: for each window (``ledger.windows`` names them) the sums over its entries.
SUMS = " UNION ALL ".join(
    f"SELECT '{level}', {window}, sum(charged), sum(reserved) FROM entries GROUP BY {window}"  # noqa: S608
    for level, window in {
        "client": "client",
        "request": "request",
        "conversation": "conversation",
        "day": "strftime('%Y-%m-%d', at, 'unixepoch')",
        "month": "strftime('%Y-%m', at, 'unixepoch')",
        "total": "''",
    }.items()
)


def checksum(*row: str | int) -> int:
    """Return the checksum of a row of caps or closed endpoints, which no total covers."""
    return zlib.crc32(repr(row).encode())


def create(db: sqlite3.Connection) -> None:
    """Make the tables of an empty file."""
    for statement in (*_named(), _CAPS, _ENTRIES, _UNSENT, _TOTALS, _CLOSED):
        db.execute(statement)


def rebuild_totals(db: sqlite3.Connection) -> None:
    """Compute all totals anew from the entries."""
    db.execute("DELETE FROM totals")
    db.execute(f"INSERT INTO totals {SUMS}")


def from_version_1(db: sqlite3.Connection) -> None:
    """Migrate a ledger of version 1. Its open entries count as sent: their owner is not known.

    A charge that is too large to be added up becomes the largest one that is not.
    """
    db.execute("ALTER TABLE caps RENAME TO old_caps")
    db.execute("ALTER TABLE entries RENAME TO old_entries")
    db.execute("ALTER TABLE closed RENAME TO old_closed")
    for statement in (_CAPS, _ENTRIES, _UNSENT, _CLOSED):
        db.execute(statement)
    db.execute(
        "INSERT INTO entries SELECT id, at, endpoint, request, conversation, client, price, room, granted, reserved, "
        "min(charged, ?), requests, '', 0, CASE WHEN state = 'open' THEN 'sent' "
        "WHEN state = 'settled' AND charged > granted THEN 'disputed' ELSE state END FROM old_entries",
        (MOST_NANOUSD,),
    )
    for level, nanousd in db.execute("SELECT level, min(nanousd, ?) FROM old_caps", (MOST_NANOUSD,)).fetchall():
        db.execute("INSERT INTO caps VALUES (?, ?, ?)", (level, nanousd, checksum(level, nanousd)))
    rebuild_totals(db)
    db.execute("DROP TABLE old_caps")
    for row in db.execute("SELECT endpoint, at, why FROM old_closed").fetchall():
        db.execute("INSERT INTO closed VALUES (?, ?, ?, ?)", (*row, checksum(*row)))
    db.execute("DROP TABLE old_entries")
    db.execute("DROP TABLE old_closed")
    for statement in _named():
        db.execute(statement)


# Both ways: a missing window, and a window without entries. Half a second for 100,000 entries, 0.1 for 10,000.
_DIFFERING = f"""WITH sums(level, window, spent, reserved) AS ({SUMS}) SELECT 1 FROM (SELECT * FROM sums EXCEPT
    SELECT level, window, spent, reserved FROM totals) UNION ALL SELECT 1 FROM (SELECT level, window, spent, reserved
    FROM totals EXCEPT SELECT * FROM sums) LIMIT 1"""  # noqa: S608


NOT_THE_SUMS = "its totals are not the sums of its entries"


class DamagedLedger(sqlite3.DatabaseError):
    """A ledger whose content is not what was written."""


def check_sqlite(db: sqlite3.Connection, table: str | None = None) -> None:
    """Raise DamagedLedger if SQLite finds a fault, or a constraint does not hold.

    ``table``: in that one alone, but with the order of its keys, and its index beside it.
    """
    (found,) = db.execute(f"PRAGMA integrity_check({table})" if table else "PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedLedger(found)


def check_totals(db: sqlite3.Connection) -> None:
    """Raise DamagedLedger if SQLite finds a fault, a checksum differs, or totals are not the sums of entries."""
    check_sqlite(db)
    check_checksums(db)
    if db.execute(_DIFFERING).fetchone():
        raise DamagedLedger(NOT_THE_SUMS)


def check_checksums(db: sqlite3.Connection) -> None:
    """Raise DamagedLedger if a cap or a closed endpoint is not what was written, or SQLite finds a fault in them."""
    for table in ("caps", "closed"):
        check_sqlite(db, table)
    caps_of(db)
    for *row, written in db.execute("SELECT endpoint, at, why, checksum FROM closed"):
        if written != checksum(*row):
            raise DamagedLedger("a closed endpoint is not what was written")


def check_windows(db: sqlite3.Connection, names: Mapping[CapScope, str]) -> None:
    """Raise DamagedLedger if the total of one of these windows is not the sum of its entries.

    It reads each entry once: 100,000 in some 30 milliseconds. A name that is out of order among the totals hides others
    from a search, so their order is proven, too. Of a day and a month all later ones count; where a later one has a
    total, a clock was moved, or a name is wrong, and all is proven.
    """
    check_sqlite(db, "totals")
    timed = [(level, window) for level, window in names.items() if level in TIMED]
    if any(db.execute("SELECT 1 FROM totals WHERE level = ? AND window > ?", each).fetchone() for each in timed):
        check_totals(db)
        return
    begins = "at >= CAST(strftime('%s', substr(? || '-01', 1, 10)) AS INTEGER)"
    counted = [begins if level in TIMED else "'' = ?" if level == "total" else f"{level} = ?" for level in names]
    sums = [f"coalesce(sum({kind}) FILTER (WHERE {each}), 0)" for each in counted for kind in ("charged", "reserved")]
    fits = f"at BETWEEN 0 AND {LATEST} AND charged BETWEEN 0 AND {MOST} AND reserved BETWEEN 0 AND {MOST}"
    wrong = f"count(*) FILTER (WHERE ({fits}) IS NOT TRUE)"  # NULL is neither, and text and blobs are above all numbers
    repeated = [window for window in names.values() for _ in range(2)]
    found = db.execute(f"SELECT {', '.join([*sums, wrong])} FROM entries", repeated).fetchone()  # noqa: S608
    if [*found] != [*(amount for level, window in names.items() for amount in read_total(db, level, window)), 0]:
        raise DamagedLedger(NOT_THE_SUMS)


def read_total(db: sqlite3.Connection, level: CapScope, window: str) -> tuple[int, int]:
    """Return the amounts spent and reserved in a window.

    All days and months that are not over count. So a clock that was set forward and back again, or back and forward,
    frees nothing: an entry of a later date counts in every window until then.
    """
    counted = "window >= ?" if level in TIMED else "window = ?"
    spent, reserved = db.execute(
        f"SELECT coalesce(sum(spent), 0), coalesce(sum(reserved), 0) FROM totals WHERE level = ? AND {counted}",  # noqa: S608
        (level, window),
    ).fetchone()
    return spent, reserved


def caps_of(db: sqlite3.Connection) -> dict[str, int]:
    """Return the caps by level. Raises DamagedLedger for one whose checksum differs."""
    caps = {}
    for level, nanousd, written in db.execute("SELECT level, nanousd, checksum FROM caps"):
        if written != checksum(level, nanousd):
            msg = f"its {level} cap is not what was set"
            raise DamagedLedger(msg)
        caps[level] = nanousd
    return caps


def _named() -> tuple[str, str]:
    return f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {VERSION}"
