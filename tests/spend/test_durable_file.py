"""A ledger file that cannot be used is one sentence that says what to do; whoever touches it holds the lock."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from another_user import bound_by_mode_bits, bound_folder
from filelock import FileLock
from money import max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import file as durable_file
from hybrid.spend.durable.schema import APPLICATION_ID

SPENDER = SpendScope("http://gpu", "question", "talk", "client")


def fails(ledger, *words):
    """Reserving fails in one sentence that holds these words, the file's name and what to do."""
    with pytest.raises(LedgerError) as found:
        ledger.reserve(max_cost_of(1), SPENDER)
    said = str(found.value)
    assert all(word in said for word in (*words, str(ledger.file.path), "HYBRID_LEDGER")), said
    assert "\n" not in said


def test_a_file_that_is_no_database(file_ledger, tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"nonsense" * 1000)
    fails(
        file_ledger(),
        "is damaged",
        "restore a backup, or name another file with HYBRID_LEDGER or --ledger; what was spent is then forgotten",
    )


def test_a_file_that_was_cut_off(file_ledger, tmp_path):
    ledger = file_ledger()
    for _ in range(200):
        ledger.reserve(max_cost_of(1), SPENDER)
    ledger.close()
    os.truncate(tmp_path / "ledger.sqlite", 12_000)
    fails(file_ledger(), "is damaged")


def test_a_page_that_was_overwritten(file_ledger, tmp_path):
    ledger = file_ledger()
    for _ in range(200):
        ledger.reserve(max_cost_of(1), SPENDER)
    ledger.close()
    with (tmp_path / "ledger.sqlite").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 4096)
    fails(file_ledger(), "is damaged")


def test_totals_that_cannot_be(file_ledger, tmp_path):
    """The constraints hold whoever writes: here somebody has."""
    ledger = file_ledger()
    reservation = ledger.reserve(max_cost_of(9), SPENDER)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("UPDATE totals SET reserved = 3")
    db.close()
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.settle(settled(reservation, 1))


def test_a_database_of_something_else_is_left_alone(file_ledger, tmp_path):
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    db.close()
    fails(file_ledger(), "a database of something else")
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["recipes"]
    db.close()


def test_a_ledger_of_a_newer_version_is_left_alone(file_ledger, tmp_path):
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 99; CREATE TABLE x (y);")
    db.close()
    fails(file_ledger(), "newer version")


def test_a_file_of_two_names_is_refused_under_both(file_ledger, tmp_path):
    """Lock and log stand beside the name: under two names there would be two ledgers, and two times the cap."""
    first = file_ledger()
    first.reserve(max_cost_of(1), SPENDER)
    first.close()
    (tmp_path / "second.sqlite").hardlink_to(tmp_path / "ledger.sqlite")
    for name in ("ledger.sqlite", "second.sqlite"):
        fails(file_ledger(name), "has a second name")


def test_a_file_that_is_mounted_by_itself_is_refused(file_ledger, tmp_path, monkeypatch):
    """As a container is given one file of a folder."""
    inside = tmp_path / "in a box"
    inside.mkdir()
    there = str(inside).replace(" ", "\\040")
    told = f"29 1 254:1 /volumes/ledger.sqlite {there}/ledger.sqlite rw - ext4 /dev/vda rw"
    (tmp_path / "mountinfo").write_text(f"28 1 254:1 / {tmp_path} rw - ext4 /dev/vda rw\n{told}\n")
    (inside / "ledger.sqlite").touch()
    monkeypatch.setattr(durable_file, "MOUNTS", tmp_path / "mountinfo")
    fails(file_ledger("in a box/ledger.sqlite"), "has a second name")
    assert file_ledger("other.sqlite").reserve(max_cost_of(1), SPENDER).nanousd == 1


def test_a_folder_in_its_place(file_ledger, tmp_path):
    (tmp_path / "ledger.sqlite").mkdir()
    fails(file_ledger(), "cannot be used (Is a directory)")


def test_a_folder_that_cannot_be_made(file_ledger, tmp_path):
    (tmp_path / "own").write_text("a file")
    fails(file_ledger("own/ledger.sqlite"), "cannot be used")


def test_a_file_that_may_not_be_written():
    with bound_folder() as folder:
        path = folder / "ledger.sqlite"
        (folder / "none").mkdir()
        fails(FileLedger(folder / "none"), "HYBRID_LEDGER")  # all is imported by then
        with bound_by_mode_bits():
            ledger = FileLedger(path)
            assert ledger.reserve(max_cost_of(1), SPENDER).nanousd == 1
            ledger.close()
        path.chmod(0o444)
        (folder / "other.sqlite").touch(mode=0o444)
        folder.chmod(0o555)
        with bound_by_mode_bits():
            fails(FileLedger(path), "cannot be used (attempt to write a readonly database)")
            fails(FileLedger(folder / "other.sqlite"), "cannot be used (Permission denied)")
        folder.chmod(0o700)


FULL = """
import resource, signal, sys
from pathlib import Path
from hybrid.errors import LedgerError
from hybrid.spend import MaxCost, Price, SpendScope
from hybrid.spend.durable import LedgerAdmin, FileLedger
ledger = FileLedger(Path(sys.argv[1]))
LedgerAdmin(ledger).set_cap("total", 10**15)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
granted = 0
try:
    while True:
        ledger.reserve(MaxCost(Price(1_000_000, 0, 0), 7, 1), SpendScope("e", "q", "t", "c"))
        granted += 7
except LedgerError as error:
    print(error)
    print(granted)
"""


def test_a_disk_that_fills_up_grants_nothing_more_and_forgets_nothing(tmp_path, file_ledger):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "ledger.sqlite")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said, granted = done.stdout.splitlines()
    assert "HYBRID_LEDGER" in said, done.stderr
    assert int(granted) > 0
    assert LedgerAdmin(file_ledger()).rows()[-1].reserved_nanousd >= int(granted)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_says_to_make_room(file_ledger, monkeypatch, number):
    def full(*_):
        raise OSError(number, "full")

    monkeypatch.setattr(durable_file.os, "open", full)
    fails(file_ledger(), "the disk is full: make room")


def test_sqlites_own_word_for_a_full_disk_is_understood(file_ledger):
    ledger = file_ledger()
    ledger.reserve(max_cost_of(1), SPENDER)
    with ledger.file.transaction(flushed=False) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
    ledger.file._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="the disk is full: make room"):
        any(ledger.reserve(max_cost_of(1), SPENDER) is None for _ in range(1000))


def test_a_file_that_another_process_holds_is_waited_for_and_then_given_up(file_ledger, tmp_path):
    ledger = file_ledger(patience_s=0.3)
    with FileLock(tmp_path / "ledger.sqlite.lock"):
        began = time.monotonic()
        fails(ledger, "is held by another process for more than 0.3 s", "end that process")
        assert 0.25 < time.monotonic() - began < 3
    assert ledger.reserve(max_cost_of(1), SPENDER).nanousd == 1


def test_a_file_system_without_locks(file_ledger, monkeypatch):
    """Without a lock nothing keeps two processes apart, so nothing is granted."""

    def acquire(*_, **__):
        raise RuntimeError("no flock here")  # what filelock says, or one of its kind

    monkeypatch.setattr(FileLock, "acquire", acquire)
    fails(file_ledger(), "cannot be used (no flock here)", "mend that")


def test_a_program_that_does_not_know_the_lock_is_waited_for_too(file_ledger, tmp_path):
    ledger = file_ledger(patience_s=0.3)
    ledger.reserve(max_cost_of(1), SPENDER)
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    with contextlib.closing(other):
        other.execute("BEGIN IMMEDIATE")
        fails(ledger, "is held by another process")
        other.execute("ROLLBACK")
    assert ledger.reserve(max_cost_of(1), SPENDER).nanousd == 1


def test_a_thread_that_holds_the_file_is_waited_for_and_then_given_up(file_ledger):
    ledger = file_ledger(patience_s=0.2)
    ledger.reserve(max_cost_of(1), SPENDER)
    held, done = threading.Event(), threading.Event()

    def hold():
        with ledger.file.transaction(flushed=False):
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    fails(ledger, "is held")
    done.set()
    thread.join()


def test_nothing_touches_the_database_without_the_lock(file_ledger, tmp_path, monkeypatch):
    """Reserving, settling, looking, checkpointing and closing: the WAL-reset bug needs two that do not wait."""
    seen = []

    class Watched(sqlite3.Connection):
        def _look(self, what):
            lock = FileLock(tmp_path / "ledger.sqlite.lock", timeout=0)
            try:
                lock.acquire()
            except TimeoutError:
                seen.append(what.split()[0])
            else:
                lock.release()
                seen.append(f"not locked: {what}")

        def execute(self, sql, *args):
            self._look(sql)
            return super().execute(sql, *args)

        def executemany(self, sql, *args):
            self._look(sql)
            return super().executemany(sql, *args)

        def close(self):
            self._look("close")
            super().close()

    connect = sqlite3.connect
    monkeypatch.setattr(
        durable_file.sqlite3, "connect", lambda *args, **named: connect(*args, factory=Watched, **named)
    )
    monkeypatch.setattr(durable_file, "CHECKPOINT_BYTES", 20_000)
    ledger = file_ledger()
    for _ in range(5):
        ledger.settle(settled(ledger.reserve(max_cost_of(9), SPENDER), 3))
    ledger.cap_statuses(SPENDER)
    LedgerAdmin(ledger).log(3)
    ledger.close()
    assert [what for what in seen if what.startswith("not")] == []
    assert {"PRAGMA", "BEGIN", "COMMIT", "INSERT", "close"} <= set(seen)


def test_the_log_is_written_back_before_it_grows_long(file_ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(durable_file, "CHECKPOINT_BYTES", 200_000)
    ledger, longest = file_ledger(), 0
    for _ in range(100):
        ledger.settle(settled(ledger.reserve(max_cost_of(9), SPENDER), 3))
        longest = max(longest, (tmp_path / "ledger.sqlite-wal").stat().st_size)
    assert 150_000 < longest < 300_000


def test_reservations_are_flushed_and_settlements_need_not_be(file_ledger):
    """Losing a settlement overstates what was spent; losing a reservation, or an excess, would understate it.

    That a request has left must outlive its process only: after a power failure nothing is given back.
    """
    ledger, modes = file_ledger(), []
    ledger.reserve(max_cost_of(1), SPENDER)
    transaction = ledger.file.transaction

    @contextlib.contextmanager
    def watched(*, flushed):
        with transaction(flushed=flushed) as db:
            modes.append(db.execute("PRAGMA synchronous").fetchone()[0])
            yield db

    ledger.file.transaction = watched
    first, second = ledger.reserve(max_cost_of(1), SPENDER), ledger.reserve(max_cost_of(1), SPENDER)
    ledger.mark_sent(first)
    ledger.settle(settled(first, 1))
    ledger.settle(settled(second, 5, excess="too much"))
    assert modes == [2, 2, 1, 1, 2]  # 2: FULL, 1: NORMAL


def test_what_fails_in_the_middle_changes_nothing(file_ledger):
    ledger = file_ledger()
    ledger.reserve(max_cost_of(5), SPENDER)

    def fail():
        with ledger.file.transaction(flushed=True) as db:
            db.execute("DELETE FROM entries")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(LedgerAdmin(ledger).log(9)) == 1


APART = """
import sys
from pathlib import Path
from hybrid.spend import MaxCost, Price, SpendScope
from hybrid.spend.durable import LedgerAdmin, FileLedger
ledger = FileLedger(Path(sys.argv[1]))
ledger.reserve(MaxCost(Price(1_000_000, 0, 0), 7, 1), SpendScope("e", "q", "t", "c"))
print(len(LedgerAdmin(ledger).log(99)))
ledger.close()
"""


def test_two_ledgers_of_one_process_and_one_of_another_that_is_closed_see_each_others_entries(file_ledger):
    """POSIX drops all of a process's locks on a file with the first descriptor that it closes there.

    SQLite minds that; whoever opens the file beside it, to make sure that it exists, does not. The other process then
    takes itself for the last one, removes the log, and what is written to it afterwards is nobody's.
    """
    first, second = file_ledger(), file_ledger()
    first.reserve(max_cost_of(1), SPENDER)
    second.reserve(max_cost_of(1), SPENDER)
    for number in (3, 6):
        command = [sys.executable, "-c", APART, str(first.file.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == f"{number}\n", done.stderr
        first.reserve(max_cost_of(1), SPENDER)
        second.reserve(max_cost_of(1), SPENDER)
    assert len(LedgerAdmin(file_ledger()).log(99)) == 8
