"""Whether a ledger file is what this project wrote. What is not is refused, in a sentence, before a cap is believed.

The law (``tests/spend/test_damage.py``): a file in which one bit of an amount was flipped grants nothing.
"""

from __future__ import annotations

import sqlite3

from hybrid.spend.caps import LEVELS
from hybrid.spend.durable.schema import checksum

# Every entry counts once at each level, so that one scan of the entries serves all of them. Comparing each window with
# its own entries takes some four times as long, and a hundred thousand entries are a second then.
_SUMS = "SELECT coalesce(sum(charged), 0), coalesce(sum(reserved), 0) FROM entries"
_BY_LEVEL = "SELECT level, sum(spent), sum(reserved) FROM totals GROUP BY level"


class Damaged(sqlite3.DatabaseError):
    """A ledger, but not as it was written."""


def hold_sound(db: sqlite3.Connection) -> None:
    """Raise Damaged where SQLite finds a fault, or a constraint does not hold."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged(found)


def hold_whole(db: sqlite3.Connection) -> None:
    """Raise Damaged where the file is not sound, a cap not what was set, or totals are not the sums of entries."""
    hold_sound(db)
    caps_of(db)
    sums = db.execute(_SUMS).fetchone()
    kept = {level: amounts for level, *amounts in db.execute(_BY_LEVEL)}
    if any(kept.get(level, [0, 0]) != [*sums] for level in LEVELS):
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
