"""A ledger of version 1 becomes one of this version whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from money import max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import file as durable_file
from hybrid.spend.ledger import MOST_NANOUSD

# Written by version 0.1.0: two caps and one for each question, an entry of two requests of which one was never told,
# one of a process that died, one that was reconciled, and an endpoint that charged 10^36 and was closed.
RECORDED = Path(__file__).parent / "recorded" / "ledger-0.1.0.sql"
LAST = 1_791_728_000


def opened_and_killed(path, number):
    """Open a ledger in a fork that dies by SIGKILL at a statement; return how it ended."""
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seen, connect = [], sqlite3.connect

    def at(statement):
        seen.append(statement)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(*args, **named):
        connection = connect(*args, **named)
        connection.set_trace_callback(at)
        return connection

    try:
        durable_file.sqlite3.connect = watched
        LedgerAdmin(FileLedger(path)).rows()
    finally:
        os._exit(int(sys.exc_info()[0] is not None))


@pytest.fixture
def path(tmp_path):
    """A file of version 1, as it was left behind."""
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as db:
        db.executescript(RECORDED.read_text())
    return tmp_path / "ledger.sqlite"


def known(ledger):
    """All that a person can see of a ledger."""
    admin = LedgerAdmin(ledger)
    entries = [
        (e.id, e.client, e.granted_nanousd, e.reserved_nanousd, e.charged_nanousd, e.state) for e in admin.log(9)
    ]
    return admin.rows(), entries, [closed.endpoint for closed in admin.closed()]


def test_caps_charges_reservations_and_closed_endpoints_are_taken_over(path):
    ledger = FileLedger(path, clock=lambda: LAST)
    rows, entries, closed = known(ledger)
    assert {row.level: row.cap_nanousd for row in rows if row.cap_nanousd} == {
        "request": 10_000_000, "day": 500_000_000, "total": 20_000_000_000
    }  # fmt: skip
    assert entries == [
        (5, "laptop", 248_000, 0, MOST_NANOUSD, "disputed"),
        (4, "laptop", 248_000, 0, 77_000, "reconciled"),
        (3, "desk", 625_000, 625_000, 0, "sent"),
        (2, "laptop", 625_000, 248_000, 100_000, "sent"),
        (1, "laptop", 625_000, 0, 431_000, "settled"),
    ]
    assert [entry.num_requests for entry in LedgerAdmin(ledger).log(9)] == [1, 0, 0, 2, 5]
    assert closed == ["https://dear.example.com"]
    month = next(row for row in rows if row.level == "month")
    assert (month.spent_nanousd, month.reserved_nanousd) == (MOST_NANOUSD + 77_000, 625_000)
    ledger.close()


def test_what_one_absurd_charge_had_bricked_can_be_mended(path):
    ledger = FileLedger(path, clock=lambda: LAST)
    scope = SpendScope("http://gpu:8000", "q9", "talk", "laptop")
    assert "does not allow another request (0 USD left" in ledger.reserve(max_cost_of(5), scope).why
    LedgerAdmin(ledger).reconcile(5, 1_000_000)
    assert ledger.reserve(max_cost_of(5), scope).nanousd == 5
    assert "is closed" in ledger.reserve(max_cost_of(5), SpendScope("https://dear.example.com", "q", "t", "c")).why
    ledger.close()


@pytest.mark.slow
def test_killed_at_every_statement_nothing_is_lost_and_nothing_done_twice(path):
    content, expected = path.read_bytes(), None
    for number in range(1, 60):
        path.write_bytes(content)
        for left in path.parent.glob("ledger.sqlite-*"):
            left.unlink()
        ended = opened_and_killed(path, number)
        ledger = FileLedger(path, clock=lambda: LAST)
        found = known(ledger)
        ledger.close()
        expected = expected or found
        assert found == expected, f"killed at statement {number}"
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
    assert 20 < number < 59, "it was killed at every statement, and the last child lived"


def test_a_damaged_ledger_of_version_1_is_refused_and_left_as_it_is(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE entries SET reserved = -5 WHERE id = 3")
        db.commit()
    ledger = FileLedger(path)
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.reserve(max_cost_of(1), SpendScope("e", "q", "t", "c"))
    ledger.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)


# ---- version 2 -----------------------------------------------------------------------------------------------------

# Written by the code of 0.1.0's successor, before its classes were renamed: three caps, and an entry in each state.
VERSION_2 = Path(__file__).parent / "recorded" / "ledger-version-2.sql"


@pytest.fixture
def current(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as db:
        db.executescript(VERSION_2.read_text())
    ledger = FileLedger(tmp_path / "ledger.sqlite", clock=lambda: 1_791_727_600)
    yield ledger
    ledger.close()


def test_a_ledger_that_was_written_before_is_opened_charged_and_reconciled(current):
    """Names in the code are not names in the file: levels, states and columns are the user's."""
    rows, entries, closed = known(current)
    assert {row.level: row.cap_nanousd for row in rows if row.cap_nanousd} == {
        "request": 10_000_000, "day": 500_000_000, "total": 20_000_000_000
    }  # fmt: skip
    assert entries == [
        (5, "desk", 420_000, 420_000, 0, "reserved"),
        (4, "desk", 420_000, 0, 77_000, "reconciled"),
        (3, "desk", 420_000, 0, 900_000, "disputed"),
        (2, "laptop", 420_000, 420_000, 0, "sent"),
        (1, "laptop", 420_000, 0, 88_000, "settled"),
    ]
    assert closed == ["https://dear.example.com"]
    admin, scope = LedgerAdmin(current), SpendScope("http://gpu:8000", "q6", "talk", "laptop")
    reservation = current.reserve(max_cost_of(1_000), scope)
    current.mark_sent(reservation)
    current.settle(settled(reservation, 400))
    assert admin.reconcile(2, 300).state == admin.reconcile(5, None).state == "reconciled"
    admin.reopen("https://dear.example.com")
    total = admin.rows()[-1]
    assert (total.spent_nanousd, total.reserved_nanousd) == (88_000 + 300 + 900_000 + 77_000 + 420_000 + 400, 0)
    dear = replace(scope, endpoint="https://dear.example.com", request="q7")
    assert current.reserve(max_cost_of(10_000_001), dear).level == "request"
    assert current.reserve(max_cost_of(10_000_000), dear).nanousd == 10_000_000
    assert [entry.state for entry in admin.log(2)] == ["reserved", "settled"]
