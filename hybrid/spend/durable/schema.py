"""The tables of a ledger file, and the constraints that hold whoever writes to it.

Amounts are nano-dollars. ``entries`` holds every reservation: what was ``granted``, within the ``room`` that the
tightest cap then had; what of it is still ``reserved``, and what was ``charged``. ``totals`` are their sums by window.
"""

from __future__ import annotations

# "HYBL": how a ledger knows its own.
APPLICATION_ID = 0x4859424C
VERSION = 1

TABLES = """
CREATE TABLE caps (
    level TEXT PRIMARY KEY CHECK (level IN ('request', 'conversation', 'day', 'month', 'total')),
    nanousd INTEGER NOT NULL CHECK (typeof(nanousd) = 'integer' AND nanousd >= 0)
);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL CHECK (typeof(at) = 'integer'),
    endpoint TEXT NOT NULL,
    request TEXT NOT NULL,
    conversation TEXT NOT NULL,
    client TEXT NOT NULL,
    price TEXT NOT NULL,
    room INTEGER,
    granted INTEGER NOT NULL CHECK (typeof(granted) = 'integer' AND granted >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    charged INTEGER NOT NULL DEFAULT 0 CHECK (typeof(charged) = 'integer' AND charged >= 0),
    requests INTEGER NOT NULL DEFAULT 0 CHECK (requests >= 0),
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'settled', 'reconciled')),
    CHECK (room IS NULL OR granted <= room),
    CHECK (state = 'open' OR reserved = 0)
);
CREATE TABLE totals (
    level TEXT NOT NULL,
    window TEXT NOT NULL,
    spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer' AND spent >= 0),
    reserved INTEGER NOT NULL CHECK (typeof(reserved) = 'integer' AND reserved >= 0),
    PRIMARY KEY (level, window)
) WITHOUT ROWID;
CREATE TABLE closed (
    endpoint TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    why TEXT NOT NULL
);
"""
