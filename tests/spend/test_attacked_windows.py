"""A ledger of which one thing was changed, in a long life: no window grants beyond its cap, given what was truly spent.

Several clients, conversations, days and months; two processes in turn; clocks that go on and back. Beside the file
stands the truth, which knows neither totals nor SQLite. Left out is what no ledger has ever noticed: a cap or a closed
endpoint that is gone, and an entry that became the unsent one of a dead process.
"""

from __future__ import annotations

import copy
import random
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from cases import each_of
from money import Clock, max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import STORED_CAP_LEVELS, Denial, Reservation, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.spend.durable import ledger as durable_ledger

DAY = 86_400
START = 1_801_000_000  # 26 January 2027
CLIENTS = "abc"


@dataclass
class Spent:
    """What one reservation truly counts for, and where."""

    reservation: Reservation
    names: dict[str, str]
    owner: str
    amount: int
    state: str = "reserved"


@dataclass
class World:
    """The truth of a ledger, and who acts on it."""

    caps: dict[str, int] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    spent: list[Spent] = field(default_factory=list)
    latest: int = 0

    def scope(self, rng):
        client = rng.choice(CLIENTS)
        return SpendScope(
            "http://gpu", f"q{rng.randrange(6)}", f"talk {rng.randrange(4)}", client, self.own.get(client)
        )

    def counted(self, level, scope, now):
        window = names_of(scope, now)[level]
        later = level in {"day", "month"}
        return sum(
            one.amount
            for one in self.spent
            if one.names[level] == window or (later and one.names[level] > window)
        )  # fmt: skip

    def left(self, scope, now):
        caps = self.caps | ({} if scope.cap_nanousd is None else {"client": scope.cap_nanousd})
        return min((cap - self.counted(level, scope, now) for level, cap in caps.items()), default=2**40)

    def add(self, reservation, scope, now, owner):
        self.latest = max(self.latest, int(now))
        self.spent.append(Spent(reservation, names_of(scope, self.latest), owner, reservation.nanousd))

    def bury(self):
        for one in self.spent:
            if one.owner == "dead" and one.state == "reserved":
                one.amount, one.state = 0, "returned"


def names_of(scope, at):
    date = datetime.fromtimestamp(at, UTC).isoformat()
    return {
        "client": scope.client, "request": scope.request, "conversation": scope.conversation,
        "day": date[:10], "month": date[:7], "total": "",
    }  # fmt: skip


@pytest.fixture
def acting(monkeypatch):
    """Who acts: every entry names it as its owner. ``dead`` is dead once it is among ``gone``."""
    who = {"owner": "A", "gone": set()}
    monkeypatch.setattr(durable_ledger, "owner", lambda: who["owner"])
    monkeypatch.setattr(durable_ledger, "is_dead", lambda name: name in who["gone"])
    return who


def written(path, seed, acting):
    """A ledger with a past, with none to three caps, and some clients with caps of their own."""
    rng, world, clock = random.Random(seed), World(), Clock(START)
    for old in path.parent.glob("ledger.sqlite*"):
        old.unlink()
    acting["gone"] = set()
    ledger = FileLedger(path, clock)
    for _ in range(rng.choice([4, 12, 30])):
        acting["owner"], scope = rng.choice(["A", "A", "B", "dead"]), world.scope(rng)
        world.add(ledger.reserve(max_cost_of(rng.randrange(1, 1000)), scope), scope, clock.now, acting["owner"])
        one, fate = world.spent[-1], rng.random()
        if fate < 0.8:
            ledger.mark_sent(one.reservation)
            one.state = "sent"
        if fate < 0.7:
            one.amount, one.state = rng.randrange(one.amount + 1), "settled"
            ledger.settle(settled(one.reservation, one.amount))
        clock.now += rng.choice([0, 0, 0, 3600, DAY, -DAY])
    scopes = [world.scope(rng) for _ in range(20)]
    for level in rng.sample(STORED_CAP_LEVELS, rng.choice([0, 1, 2, 2, 3])):
        world.caps[level] = max(world.counted(level, one, clock.now) for one in scopes) + rng.randrange(3000)
        LedgerAdmin(ledger).set_cap(level, world.caps[level])
    for client in CLIENTS:
        if not world.caps or rng.random() < 0.6:
            spent = world.counted("client", SpendScope("", "", "", client), 0)
            world.own[client] = spent + rng.randrange(2500)
    ledger.close()
    return world, clock.now


def lived_on(path, world, now, seed, acting, exactly):
    """Two processes spend on, days pass and come back. Returns how often they were granted something, and refused."""
    rng, clock, granted, refused = random.Random(seed), Clock(now), 0, 0
    ledgers, mine = {name: FileLedger(path, clock) for name in "AB"}, []
    acting["gone"] = {"dead"}
    for _ in range(20):
        name = acting["owner"] = rng.choice("AB")
        ledger, step, scope = ledgers[name], rng.random(), world.scope(rng)
        try:
            if step < 0.6:
                worst, least = rng.choice([1, 10, 500, 1500, 3000]), rng.choice([None, 1])
                found = ledger.reserve(max_cost_of(worst, least), scope)
                world.bury()
                left = world.left(scope, clock.now)
                fitting = min(worst, left) if left >= (least or worst) else 0
                amount = 0 if isinstance(found, Denial) else found.nanousd
                assert amount <= fitting, f"granted {amount} with {left} left"
                assert amount == fitting or not exactly, f"granted {amount} instead of {fitting}"
                if amount:
                    granted += 1
                    world.add(found, scope, clock.now, name)
                    mine.append(world.spent[-1])
            elif step < 0.75 and mine:
                one = mine.pop(rng.randrange(len(mine)))
                charged = rng.choice([0, one.amount // 2, one.amount])
                ledgers[one.owner].mark_sent(one.reservation)
                ledgers[one.owner].settle(settled(one.reservation, charged))
                one.amount, one.state = charged, "settled"
            elif step < 0.9:
                clock.now += rng.choice([3600, DAY, DAY, 5 * DAY, 31 * DAY, -DAY, -2 * DAY])
            else:
                ledger.close()
        except LedgerError:
            refused += 1
    for ledger in ledgers.values():
        ledger.close()
    admin = LedgerAdmin(FileLedger(path, clock))
    try:
        total = admin.rows()[-1]
    except LedgerError:
        return granted, refused
    assert total.spent_nanousd + total.reserved_nanousd >= sum(one.amount for one in world.spent), "it forgot money"
    return granted, refused


AMOUNTS = (
    ("entries", "charged"), ("entries", "reserved"), ("entries", "granted"), ("entries", "at"),
    ("totals", "spent"), ("totals", "spent"), ("totals", "reserved"), ("caps", "nanousd"), ("caps", "checksum"),
)  # fmt: skip
NAMED = (
    ("totals", "window"), ("totals", "level"), ("caps", "level"),
    ("entries", "request"), ("entries", "conversation"), ("entries", "client"), ("entries", "state"),
)  # fmt: skip
KEYS = {"entries": "id", "totals": "level || ' ' || window", "caps": "level"}


def change(path, rng):
    """Change one thing of the ledger, and say what; None where there is none of its kind."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        kind = rng.choice(["amount", "amount", "name", "type", "gone", "twice"])
        table, column = rng.choice(NAMED if kind == "name" else AMOUNTS)
        table = "entries" if kind == "twice" else "totals" if (kind, table) == ("gone", "caps") else table
        key = KEYS[table]
        # An impossible date of an unsent entry is left to the report: it is met before anything is proven.
        dated = " WHERE state <> 'reserved'" if column == "at" else ""
        rows = db.execute(f"SELECT {key} FROM {table}{dated} ORDER BY 1").fetchall()
        if not rows:
            return None
        (which,) = rng.choice(rows)
        of_it = f"{table} WHERE {key} = ?"
        if kind == "gone":
            db.execute(f"DELETE FROM {of_it}", (which,))
        elif kind == "twice":
            fields = ", ".join(row[1] for row in db.execute("PRAGMA table_info(entries)") if row[1] != "id")
            db.execute(f"INSERT INTO entries ({fields}) SELECT {fields} FROM {of_it}", (which,))
        else:
            (before,) = db.execute(f"SELECT {column} FROM {of_it}", (which,)).fetchone()
            after = changed(before, kind, rng)
            try:
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (after, which))
            except sqlite3.IntegrityError:
                return None  # another row has this name
            column = f"{column} {before!r} -> {after!r}"
    return f"{kind}: {column} of {table} {which}"


def changed(before, kind, rng):
    """The value with one bit flipped, or of another type."""
    if kind == "type":
        return rng.choice([str(before).encode(), f"{before}x", 0.5])
    if isinstance(before, str):
        at = rng.choice([max(len(before) - 1, 0), rng.randrange(len(before) or 1)])
        return before[:at] + chr(ord(before[at : at + 1] or " ") ^ (1 << rng.randrange(7))) + before[at + 1 :]
    after = before ^ (1 << rng.choice([rng.randrange(12), rng.randrange(64)]))
    return after - ((after >> 63) << 64)


def overwrite(path, rng):
    """Damage pages of the file as a disk does, and say how."""
    content, page = bytearray(path.read_bytes()), 4096
    one, other = (rng.randrange(len(content) // page) * page for _ in range(2))
    at, kind = rng.randrange(1, len(content)), rng.choice(["run", "sector", "cut", "copied", "cut page"])
    if kind == "run":
        content[at : at + 32] = rng.randbytes(len(content[at : at + 32]))
    elif kind == "sector":
        content[at - at % 512 : at - at % 512 + 512] = bytes(512)
    elif kind == "copied":
        content[one : one + page] = content[other : other + page]
    else:
        del content[at if kind == "cut" else max(one, page) :]
    path.write_bytes(content)
    return f"{kind}: {at} {one} {other}"


def test_an_undamaged_ledger_grants_exactly_what_is_left_and_refuses_nothing(tmp_path, acting):
    path, total = tmp_path / "ledger.sqlite", 0
    for seed in each_of(range(28, 38)):  # 30 and 35 turn the clock back under the cap of a day
        world, now = written(path, seed, acting)
        granted, refused = lived_on(path, world, now, seed + 1000, acting, exactly=True)
        assert not refused
        total += granted
    assert total > 30


@pytest.mark.parametrize(("damage", "num"), [(change, 16), (overwrite, 8)])
def test_no_damage_lets_any_window_grant_beyond_its_cap(tmp_path, acting, damage, num):
    """Each ledger is damaged in many ways, each alone. What is refused is refused in a sentence."""
    path, granted, refused = tmp_path / "ledger.sqlite", 0, 0
    for seed in each_of(range(6)):
        rng = random.Random(seed)
        written_world, now = written(path, seed, acting)
        content = path.read_bytes()
        for _ in range(num):
            world = copy.deepcopy(written_world)
            for left in path.parent.glob("ledger.sqlite*"):
                left.unlink()
            path.write_bytes(content)
            if (what := damage(path, rng)) is None:
                continue
            try:
                counted = lived_on(path, world, now, rng.random(), acting, exactly=False)
            except Exception as error:
                error.add_note(f"ledger {seed}, {what}")
                raise
            granted, refused = granted + counted[0], refused + (counted[1] > 0)
    assert granted > num, "nothing was granted, so nothing could be exceeded"
    assert refused > num


def test_threads_of_one_ledger_share_what_was_proven_and_the_caps(tmp_path):
    ledger, found = FileLedger(tmp_path / "ledger.sqlite", Clock(START), 60), []
    LedgerAdmin(ledger).set_cap("total", 2000)
    LedgerAdmin(ledger).set_cap("conversation", 300)
    ledger.close()

    def spend(name):
        for number in range(20):
            scope = SpendScope("http://gpu", f"{name} {number}", f"talk {number % 10}", "client")
            found.append((scope.conversation, ledger.reserve(max_cost_of(100), scope)))

    threads = [threading.Thread(target=spend, args=(name,)) for name in "ABC"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    granted = [talk for talk, reserved in found if isinstance(reserved, Reservation)]
    assert (len(found), len(granted)) == (60, 20)
    assert all(granted.count(talk) <= 3 for talk in granted)
    ledger.close()
