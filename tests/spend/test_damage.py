"""A ledger that was damaged grants nothing above its caps and forgets nothing: at worst a sentence refuses it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from cases import each_of
from money import max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import Denial, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import ledger as durable_ledger

SPENDER = SpendScope("http://gpu", "question", "talk", "client")
CAP, SPENT, RESERVED = 100_000, 31_000, 17_000
LEFT = CAP - SPENT - RESERVED


@pytest.fixture
def path(tmp_path):
    """A ledger with two caps, something spent and something that may have left."""
    ledger = FileLedger(tmp_path / "ledger.sqlite")
    LedgerAdmin(ledger).set_cap("total", CAP)
    LedgerAdmin(ledger).set_cap("conversation", 2 * CAP)
    for i in range(40):
        ledger.settle(settled(ledger.reserve(max_cost_of(1_000), SPENDER), SPENT // 40 + (i == 0) * (SPENT % 40)))
    ledger.mark_sent(ledger.reserve(max_cost_of(RESERVED), SPENDER))
    ledger.close()
    return tmp_path / "ledger.sqlite"


def granted_by(path):
    """What the file still grants, dollar by dollar; None where it is refused."""
    ledger, granted = FileLedger(path), 0
    try:
        for amount in (2**45, 2**30, 50_000, 20_000, 1_000, 200, 50, 10, 1):
            while not isinstance(ledger.reserve(max_cost_of(amount), SPENDER), Denial):
                granted += amount
                if granted > 2**50:
                    return granted
    except LedgerError as error:
        return None if "HYBRID_LEDGER" in str(error) and "\n" not in str(error) else str(error)
    finally:
        ledger.close()
    return granted


def test_undamaged_it_grants_what_is_left(path):
    assert granted_by(path) == LEFT


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("entries", "charged", "id = 1"),
        ("entries", "reserved", "id = 41"),
        ("totals", "spent", "level = 'total'"),
        ("totals", "reserved", "level = 'total'"),
        ("totals", "spent", "level = 'conversation'"),
        ("caps", "nanousd", "level = 'total'"),
    ],
)
def test_no_flipped_bit_of_an_amount_grants_more_than_the_cap(path, table, column, where):
    """Three hundred and eighty-four of them, each alone."""
    content = path.read_bytes()
    for bit in range(64):
        path.write_bytes(content)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            (before,) = db.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
            after = before ^ (1 << bit)
            after -= (after >> 63) << 64  # as two's complement has it
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (after,))
        assert granted_by(path) is None, f"bit {bit} of {table}.{column}"


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("totals", "window", "level = 'day'"), ("totals", "window", "level = 'conversation'"),
        ("closed", "endpoint", "true"), ("entries", "conversation", "id = 3"), ("entries", "client", "id = 3"),
    ],
)  # fmt: skip
def test_no_flipped_bit_of_a_name_opens_a_window_or_an_endpoint(path, table, column, where):
    """A day that became another day would have its whole cap again."""
    ledger = FileLedger(path)
    dear = replace(SPENDER, endpoint="http://dear")
    ledger.settle(settled(ledger.reserve(max_cost_of(1), dear), 2, excess="it charged 2"))
    ledger.close()
    content = path.read_bytes()
    for bit in range(3):
        path.write_bytes(content)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            (before,) = db.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
            after = before[:-1] + chr(ord(before[-1]) ^ (1 << bit))
            db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (after,))
        assert granted_by(path) is None, after


def test_a_date_that_no_calendar_has_is_damage(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE entries SET at = 1099511627776 WHERE id = 3")
    assert granted_by(path) is None


@pytest.mark.parametrize("where", ["level = 'total'", "level = 'day'", "true"])
def test_totals_that_are_gone_are_not_nothing_spent(path, where):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"DELETE FROM totals WHERE {where}")
    assert granted_by(path) is None


def damaged(path, statement, *values):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        assert db.execute(statement, values).rowcount == 1, "nothing was damaged"


def test_a_window_that_comes_later_in_a_process_is_proven_then(path):
    """Another conversation's total has lost what it spent: this one is answered, and that one is not."""
    other = replace(SPENDER, conversation="other")
    ledger = FileLedger(path)
    ledger.settle(settled(ledger.reserve(max_cost_of(900), other), 900))
    ledger.close()
    damaged(path, "UPDATE totals SET spent = 0 WHERE window = 'other'")
    ledger = FileLedger(path)
    assert not isinstance(ledger.reserve(max_cost_of(1), SPENDER), Denial)
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.reserve(max_cost_of(1), other)
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.reserve(max_cost_of(1), other)
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.cap_statuses(other)


def test_many_conversations_have_the_whole_ledger_proven_once(path, monkeypatch):
    """Each new one is read for in all entries: from some number on all totals are proven at once, and then none."""
    seen = []
    for name in ("check_totals", "check_windows"):
        real = getattr(durable_ledger, name)
        monkeypatch.setattr(
            durable_ledger, name, lambda *given, real=real, name=name: (seen.append(name), real(*given))
        )
    ledger = FileLedger(path)
    for number in range(100):
        assert not isinstance(ledger.reserve(max_cost_of(1), replace(SPENDER, conversation=f"talk {number}")), Denial)
    assert 10 < seen.count("check_windows") < 100
    assert seen[-1] == "check_totals" == seen[seen.count("check_windows")]
    assert seen.count("check_totals") == 1


def test_a_file_that_is_opened_again_is_proven_again(path):
    ledger = FileLedger(path)
    assert not isinstance(ledger.reserve(max_cost_of(1), SPENDER), Denial)
    LedgerAdmin(ledger).rows()
    ledger.close()
    damaged(path, "UPDATE totals SET spent = 0 WHERE level = 'total'")
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.reserve(max_cost_of(1), SPENDER)
    with pytest.raises(LedgerError, match="is damaged"):
        LedgerAdmin(ledger).rows()


def test_no_flipped_bit_of_a_level_hides_another_total_in_a_long_life(path):
    """Totals are searched by their order: one out of order hides others, once questions have moved the middle."""
    content = path.read_bytes()
    at = content.rindex(b"request" + SPENDER.request.encode())
    for bit in range(7):
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        path.write_bytes(flipped)
        assert life(path, 400) in {None, LEFT}, chr(flipped[at])


def life(path, num):
    """What a process grants to many questions, 500 each; None: it is refused in a sentence."""
    ledger, granted = FileLedger(path), 0
    try:
        for number in range(num):
            scope = replace(SPENDER, request=f"r{number:03}", conversation="c")
            granted += 500 * (not isinstance(ledger.reserve(max_cost_of(500), scope), Denial))
    except LedgerError:
        return None
    finally:
        ledger.close()
    return granted


def test_no_flipped_bit_of_the_index_of_unsent_reservations_gives_a_charge_back(path, monkeypatch):
    with monkeypatch.context() as other:
        other.setattr(durable_ledger, "owner", lambda: "dead")
        ledger = FileLedger(path)
        assert not isinstance(ledger.reserve(max_cost_of(10), SPENDER), Denial)
        ledger.close()
    monkeypatch.setattr(durable_ledger, "is_dead", lambda name: name == "dead")
    content = path.read_bytes()
    with closing(sqlite3.connect(path)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'unsent'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    written = [at for at in range((page - 1) * size, page * size) if content[at]]
    seen = set()
    for at in each_of(written):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            granted = granted_by(path)
            assert granted in {None, LEFT, LEFT - 10}, (at, bit)
            seen.add(granted)
    assert None in seen


@pytest.mark.parametrize("value", [None, b"\0", "soon"])
@pytest.mark.parametrize("column", ["at", "charged", "reserved"])
@pytest.mark.parametrize("number", [3, 41])
def test_an_amount_or_a_date_that_is_no_number_is_damage(path, column, value, number, monkeypatch):
    """Of the last entry too, and of one that would be given back: nothing is before it is proven."""
    monkeypatch.setattr(durable_ledger, "is_dead", lambda name: name != durable_ledger.owner())
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(f"UPDATE sqlite_master SET sql = replace(sql, '{column} INTEGER NOT NULL', '{column}')")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' STRICT', '')")
    damaged(path, f"UPDATE entries SET {column} = ?, state = 'reserved', owner = 'dead' WHERE id = ?", value, number)
    assert granted_by(path) is None


@pytest.mark.parametrize("look", ["rows", "open_entries", "disputed", "closed", "ahead_s"])
def test_a_person_who_looks_has_all_of_it_proven(path, look):
    """A question's total, which no cap asks for, is wrong: who spends is not kept from it, who looks is told."""
    damaged(path, "UPDATE totals SET spent = spent + 1 WHERE level = 'request'")
    assert granted_by(path) == LEFT
    with pytest.raises(LedgerError, match="is damaged"):
        getattr(LedgerAdmin(FileLedger(path)), look)()


@pytest.mark.parametrize("num_files", [80, pytest.param(300, marks=pytest.mark.slow)])
def test_random_corruption_is_a_sentence_or_does_no_harm(path, num_files):
    """Single bits, bytes, runs, zeroed sectors, and files that were cut off."""
    content, rng, refused = path.read_bytes(), random.Random(7), 0
    for _ in each_of(range(num_files)):
        damaged = bytearray(content)
        at = rng.randrange(len(damaged))
        match rng.randrange(5):
            case 0:
                damaged[at] ^= 1 << rng.randrange(8)
            case 1:
                damaged[at] = rng.randrange(256)
            case 2:
                damaged[at : at + 32] = rng.randbytes(len(damaged[at : at + 32]))
            case 3:
                damaged[at - at % 512 : at - at % 512 + 512] = bytes(512)
            case 4:
                del damaged[max(at, 1) :]
        path.write_bytes(damaged)
        for left in path.parent.glob("ledger.sqlite-*"):
            left.unlink()
        granted = granted_by(path)
        refused += granted is None
        assert granted in {None, LEFT}, "it grants more than is left, or less"
    assert refused > num_files / 6
