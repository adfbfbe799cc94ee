"""Whether a ledger file is what this project wrote. What is not is refused, in a sentence, before a cap is believed.

The law (``tests/spend/test_damage.py``): a file in which one bit of an amount was flipped grants nothing.
"""

from __future__ import annotations

import sqlite3

from hybrid.spend.durable.schema import SUMS, checksum

# Both ways: a window that is missing, and one that no entry is in. Half a second for 100,000 entries, 0.1 for 10,000.
_DIFFERING = f"""WITH sums(level, window, spent, reserved) AS ({SUMS}) SELECT 1 FROM (SELECT * FROM sums EXCEPT
    SELECT level, window, spent, reserved FROM totals) UNION ALL SELECT 1 FROM (SELECT level, window, spent, reserved
    FROM totals EXCEPT SELECT * FROM sums) LIMIT 1"""  # noqa: S608


class Damaged(sqlite3.DatabaseError):
    """A ledger, but not as it was written."""


def hold_sound(db: sqlite3.Connection) -> None:
    """Raise Damaged where SQLite finds a fault, or a constraint does not hold."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged(found)


def hold_whole(db: sqlite3.Connection) -> None:
    """Raise Damaged where the file is not sound, a row not as it was set, or totals are not the sums of entries."""
    hold_sound(db)
    caps_of(db)
    for *row, written in db.execute("SELECT endpoint, at, why, checksum FROM closed"):
        if written != checksum(*row):
            raise Damaged("a closed endpoint is not what was written")
    if db.execute(_DIFFERING).fetchone():
        raise Damaged("its totals are not the sums of its entries")


def caps_of(db: sqlite3.Connection) -> dict[str, int]:
    """Return the caps by level. Raises Damaged for one that is not as it was set."""
    caps = {}
    for level, nanousd, written in db.execute("SELECT level, nanousd, checksum FROM caps"):
        if written != checksum(level, nanousd):
            msg = f"its {level} cap is not what was set"
            raise Damaged(msg)
        caps[level] = nanousd
    return caps
