"""What is recorded is never below what was charged and never above a cap: under crashes, clocks and many writers."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from money import Clock, max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import STORED_CAP_LEVELS, Denial, MaxCost, Price, Reservation, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import ledger as durable_ledger
from hybrid.spend.durable.schema import check_totals, rebuild_totals
from hybrid.spend.ledger import windows

DAY = 86_400
AMOUNTS = st.integers(0, 60)
WRITERS = st.integers(0, 2)
SOMEBODY = SpendScope("", "", "", "")


class Writer:
    """One process of several: its name, its connection, and what it knows of its requests."""

    def __init__(self, path, clock, name):
        self.ledger = FileLedger(path, clock)
        self.name, self.answers = name, 0
        self.waiting, self.sent = [], []

    def scope(self):
        return SpendScope("http://gpu", f"{self.name}-{self.answers}", f"talk {self.answers % 2}", self.name)


class Spending(RuleBasedStateMachine):
    """Three writers reserve, send, settle, crash and come back on one file, while clocks jump.

    Beside the ledger stands the truth: what an honest server has charged, which it does as soon as a request leaves.
    """

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory(prefix="hybrid-machine-")
        self.path = Path(self.folder.name) / "ledger.sqlite"
        self.clock, self.crashed, self.true_charge = Clock(), [], 0
        self.writers = [Writer(self.path, self.clock, f"writer {i}") for i in range(3)]
        self.by_question, self.by_talk = {}, {}
        self.num_open, self.acting = 0, ""
        self.patches = [
            patch.object(durable_ledger, "owner", lambda: self.acting),
            patch.object(durable_ledger, "is_dead", lambda name: name in {writer.name for writer in self.crashed}),
        ]
        for each in self.patches:
            each.start()

    def teardown(self):
        for each in self.patches:
            each.stop()
        admin = LedgerAdmin(self.writers[0].ledger)
        assert all(entry.charged_nanousd + entry.reserved_nanousd <= entry.granted_nanousd for entry in admin.log(999))
        for writer in [*self.writers, *self.crashed]:
            writer.ledger.close()
        with sqlite3.connect(self.path) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        db.close()
        self.folder.cleanup()

    @initialize(
        caps=st.dictionaries(st.sampled_from(STORED_CAP_LEVELS), st.integers(0, 200)), total=st.integers(50, 400)
    )
    def open(self, caps, total):
        self.caps = {"total": total} | caps
        for level, nanousd in self.caps.items():
            LedgerAdmin(self.writers[0].ledger).set_cap(level, nanousd)

    def reserve(self, writer, max_cost, scope):
        self.acting = writer.name
        return writer.ledger.reserve(max_cost, scope)

    @rule(which=WRITERS, worst=AMOUNTS, min_limit=AMOUNTS)
    def ask(self, which, worst, min_limit):
        """A denial tells the truth: not even the least would have fitted, with the money of the dead given back."""
        writer = self.writers[which]
        reserved = self.reserve(writer, max_cost_of(max(worst, min_limit + 1), min_limit + 1), writer.scope())
        if isinstance(reserved, Denial):
            assert reserved.left_nanousd < min_limit + 1
        else:
            writer.waiting.append((reserved, writer.scope()))

    @rule(which=WRITERS, number=st.integers(0, 9), share=st.integers(0, 4))
    def send(self, which, number, share):
        """The server charges what it likes of what was reserved."""
        writer = self.writers[which]
        if not writer.waiting:
            return
        reserved, scope = writer.waiting.pop(number % len(writer.waiting))
        writer.ledger.mark_sent(reserved)
        charge = reserved.nanousd * share // 4
        self.true_charge += charge
        self.by_question[scope.request] = self.by_question.get(scope.request, 0) + charge
        self.by_talk[scope.conversation] = self.by_talk.get(scope.conversation, 0) + charge
        writer.sent.append((reserved, charge))

    @rule(which=WRITERS, number=st.integers(0, 9))
    def usage_comes(self, which, number):
        writer = self.writers[which]
        if writer.sent:
            reserved, charge = writer.sent.pop(number % len(writer.sent))
            writer.ledger.settle(settled(reserved, charge))

    @rule(which=WRITERS, number=st.integers(0, 9))
    def a_request_does_not_leave(self, which, number):
        writer = self.writers[which]
        if writer.waiting:
            writer.ledger.settle(settled(writer.waiting.pop(number % len(writer.waiting))[0], 0))

    @rule(which=WRITERS)
    def answer_ends(self, which):
        """What nobody told of stays reserved for good."""
        writer = self.writers[which]
        writer.sent = []
        writer.answers += 1

    @rule(which=WRITERS)
    def crash(self, which):
        """Whatever was only in memory is gone; what the file holds is what there is."""
        writer = self.writers[which]
        self.crashed.append(writer)
        self.writers[which] = Writer(self.path, self.clock, f"{writer.name}'")

    @rule(which=WRITERS)
    def restart(self, which):
        """The last connection to go writes the log back."""
        self.writers[which].ledger.close()

    @rule(seconds=st.sampled_from([1, 3600, DAY, 31 * DAY]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(days=st.sampled_from([-400, -31, -1, 1, 31, 400]), worst=AMOUNTS, which=WRITERS)
    def the_clock_jumps_and_is_set_right_again(self, days, worst, which):
        """Meanwhile somebody spends. Afterwards as much is gone from every cap as before, and that besides.

        Only what is spent under a clock set back to before anything the ledger has seen in this window is told late.
        """
        writer = self.writers[which]
        moments = [entry.at for entry in LedgerAdmin(writer.ledger).log(1)]
        today, last = windows(SOMEBODY, int(self.clock.now)), windows(SOMEBODY, max(moments, default=0))
        known = {level for level in ("day", "month", "total") if days > 0 or last[level] >= today[level]}
        self.give_back()
        before = self.gone()
        self.clock.now += days * DAY
        reserved = self.reserve(
            writer, max_cost_of(worst), replace(writer.scope(), request="jump", conversation="jump")
        )
        more = 0 if isinstance(reserved, Denial) else worst
        self.clock.now -= days * DAY
        after = self.gone()
        for level, spent in before.items():
            assert after[level] >= spent + more * (level in known), f"{level}: {spent} + {more} became {after[level]}"

    @precondition(lambda self: self.num_open)
    @rule(which=WRITERS, number=st.integers(0, 99))
    def reconcile_as_charged(self, which, number):
        admin = LedgerAdmin(self.writers[which].ledger)
        entries = admin.open_entries()
        entry = entries[number % len(entries)]
        admin.reconcile(entry.id, None)
        for writer in self.writers:  # the process that tells later what it was would be believed
            writer.waiting = [known for known in writer.waiting if known[0].id != entry.id]
            writer.sent = [known for known in writer.sent if known[0].id != entry.id]

    def give_back(self):
        with self.writers[0].ledger.file.transaction(flushed=False) as db:
            durable_ledger.give_back_unsent(db)

    def gone(self):
        rows = {row.level: row for row in LedgerAdmin(self.writers[0].ledger).rows()}
        return {name: rows[name].spent_nanousd + rows[name].reserved_nanousd for name in ("day", "month", "total")}

    @invariant()
    def what_is_recorded_is_no_less_than_the_true_charge_no_more_than_a_cap_and_the_sum_of_the_entries(self):
        """Looked at in one go: every look takes the file's locks, and there are 25,000 steps."""
        total = self.gone()["total"]
        assert self.true_charge <= total <= self.caps["total"]
        for charges, level in ((self.by_question, "request"), (self.by_talk, "conversation")):
            if level in self.caps:
                assert max(charges.values(), default=0) <= self.caps[level]
        with self.writers[0].ledger.file.transaction(flushed=False) as db:
            assert [(total,)] == db.execute("SELECT coalesce(sum(charged + reserved), 0) FROM entries").fetchall()
            ((self.num_open,),) = db.execute("SELECT count(*) FROM entries WHERE state IN ('reserved', 'sent')")
            check_totals(db)
            kept = db.execute("SELECT * FROM totals WHERE spent OR reserved ORDER BY level, window").fetchall()
            db.execute("SAVEPOINT summed")
            rebuild_totals(db)
            assert kept == db.execute("SELECT * FROM totals WHERE spent OR reserved ORDER BY level, window").fetchall()
            db.execute("ROLLBACK TO summed")


def test_recorded_spend_lies_between_the_true_charge_and_the_caps_in_every_history():
    run_state_machine_as_test(Spending, settings=settings(max_examples=40, stateful_step_count=25))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_recorded_spend_lies_between_the_true_charge_and_the_caps_in_400_histories():
    run_state_machine_as_test(Spending, settings=settings(max_examples=400, stateful_step_count=25))


def test_a_ledger_remembers_when_it_is_opened_again(file_ledger, scope):
    first = file_ledger()
    LedgerAdmin(first).set_cap("day", 100)
    first.reserve(max_cost_of(60), scope)
    first.settle(settled(first.reserve(max_cost_of(20), scope), 5))
    first.close()
    again = file_ledger()
    assert again.reserve(max_cost_of(36), scope).left_nanousd == 35
    assert [entry.state for entry in LedgerAdmin(again).log(9)] == ["settled", "reserved"]


def test_many_ledgers_on_one_file_share_its_caps(file_ledger, scope):
    ledgers = [file_ledger() for _ in range(5)]
    LedgerAdmin(ledgers[0]).set_cap("total", 100)
    granted = [ledger.reserve(max_cost_of(30), scope) for ledger in ledgers]
    assert [isinstance(found, Denial) for found in granted] == [False, False, False, True, True]


def test_a_file_that_is_taken_away_is_not_written_to_any_more(file_ledger, scope):
    """Two processes with two files of one name would each have the whole cap."""
    first, second = file_ledger(), file_ledger()
    first.reserve(max_cost_of(30), scope)
    for path in first.file.path.parent.glob("ledger.sqlite*"):
        if path.suffix != ".lock":
            path.unlink()
    second.reserve(max_cost_of(7), scope)
    first.reserve(max_cost_of(5), scope)
    assert [entry.granted_nanousd for entry in LedgerAdmin(second).log(9)] == [5, 7]


def test_a_ledger_that_is_taken_away_with_its_caps_lets_nothing_leave(file_ledger, scope):
    """Whoever was bound by a cap is not set free by a file that vanished."""
    ledger = file_ledger()
    LedgerAdmin(ledger).set_cap("total", 100)
    ledger.reserve(max_cost_of(30), scope)
    for path in ledger.file.path.parent.glob("ledger.sqlite*"):
        if path.suffix != ".lock":
            path.unlink()
    for _ in range(2):
        for ask in (lambda: ledger.cap_statuses(scope), lambda: ledger.reserve(max_cost_of(30), scope)):
            with pytest.raises(LedgerError, match="was taken away, and with it the caps"):
                ask()
    LedgerAdmin(ledger).set_cap("total", 20)
    assert ledger.reserve(max_cost_of(30, 7), scope).nanousd == 20


def test_what_a_process_that_is_alive_tells_replaces_what_was_reconciled_by_hand(file_ledger, scope):
    ledger = file_ledger()
    reservation = ledger.reserve(max_cost_of(30), scope)
    LedgerAdmin(ledger).reconcile(reservation.id, 0)
    ledger.settle(settled(reservation, 20))
    assert LedgerAdmin(ledger).rows()[-1].spent_nanousd == 20


def test_only_its_owner_may_read_a_ledger(file_ledger, scope):
    ledger = file_ledger("own/ledger.sqlite")
    ledger.reserve(max_cost_of(1), scope)
    assert ledger.file.path.stat().st_mode & 0o077 == 0
    assert ledger.file.path.parent.stat().st_mode & 0o077 == 0 or os.name == "nt"


def test_a_price_of_four_parts_in_an_older_ledger_is_not_read_as_one_with_cache_writes(file_ledger):
    """It was P/C/O/R; what is written now has three parts or five."""
    ledger = file_ledger()
    for text in ("1/0.1/1/4/0.002:new", "2/0.1/2.5/10", "1/0.1/4", "free"):
        assert isinstance(ledger.reserve(MaxCost(Price.parse(text), 1, 1), SOMEBODY), Reservation)
    with ledger.file.transaction(flushed=True) as db:
        kept = [price for (price,) in db.execute("SELECT price FROM entries ORDER BY id")]
        db.execute("UPDATE entries SET price = '1/0.1/4/0.002:new, a page' WHERE id = 3")
    assert [price.split(", ")[0] for price in kept] == ["1/0.1/1/4/0.002:new", "2/0.1/2.5/10/0", "1/0.1/4", "free"]
    log = {entry.id: entry.price for entry in LedgerAdmin(ledger).log(9)}
    assert log[3] == "1/0.1/1/4/0.002:new, a page"
    assert log[2].startswith("2/0.1/2.5/10/0, stated by")
