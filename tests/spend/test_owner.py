"""Only a process that is known to be dead is dead: what cannot be told is alive, and keeps its money."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types

import psutil
import pytest
from cases import each
from money import max_cost_of, settled

from hybrid.errors import LedgerError
from hybrid.spend import Denial
from hybrid.spend.durable import LedgerAdmin
from hybrid.spend.durable import file as owners
from hybrid.spend.durable import ledger as durable_ledger

CHILD = "from hybrid.spend.durable.file import owner; print(owner(), flush=True); input()"


@pytest.fixture
def child():
    """Start another process; return its name and how to end it."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip(), lambda: (process.kill(), process.wait())
    process.kill()
    process.communicate()


def test_a_process_is_alive_until_it_has_ended(child):
    name, end = child
    assert name != owners.owner()
    assert not owners.is_dead(name)
    assert not owners.is_dead(owners.owner())
    end()
    assert owners.is_dead(name)


def test_another_process_that_got_the_pid_is_another(child):
    """Pids are used again: the one that reserved is dead although its pid is not."""
    name, _ = child
    *place, pid, started = name.split(" ")
    assert owners.is_dead(" ".join([*place, pid, str(int(started) - 1)]))


@each("part", [0, 1, 2, 3], ids=["host", "boot", "pid namespace", "time namespace"])
def test_a_process_of_another_machine_boot_or_container_is_alive(child, part):
    """There is no telling from here; a pid that is free here may be at work there."""
    name, end = child
    end()
    parts = name.split(" ")
    parts[part] += "x"
    assert not owners.is_dead(" ".join(parts))


@each("name", ["", "nonsense", "a b c d e", "host boot ns 12"])
def test_a_name_that_says_nothing_is_alive(name):
    """An entry of version 1 has no owner at all."""
    assert not owners.is_dead(name)


def test_a_process_whose_start_is_not_told_is_alive(child, monkeypatch):
    """Some systems hide the processes of others; and one without a free descriptor cannot read its own start."""
    started = owners._start_time
    monkeypatch.setattr(owners, "_start_time", lambda _: None)
    assert not owners.is_dead(child[0])
    mine = owners.owner()
    monkeypatch.setattr(owners, "_start_time", started)
    assert not owners.is_dead(mine)
    assert owners.owner() != mine, "it is told again as soon as it can be read"


def test_a_proc_that_shows_other_processes_tells_nothing(child, monkeypatch):
    """A container that was given its host's: the pids in it are another namespace's."""

    class Elsewhere(type(owners.Path())):
        def readlink(self):
            return "1" if str(self) == "/proc/self" else super().readlink()

    name, end = child
    monkeypatch.setattr(owners, "Path", Elsewhere)
    assert owners._start_time(int(name.split(" ")[-2])) is None
    assert not owners.is_dead(name)
    end()
    assert owners.is_dead(name)


def test_a_fork_has_a_name_of_its_own():
    mine, (there, here) = owners.owner(), os.pipe()
    if (pid := os.fork()) == 0:
        os.write(here, owners.owner().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(there, 1000).decode() != mine


def test_without_proc_psutil_tells(monkeypatch, child):
    """macOS and Windows."""
    name, end = child
    monkeypatch.setattr(owners, "Path", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    pid = int(name.split(" ")[-2])
    monkeypatch.setattr(owners, "Path", type("NoProc", (), {"__init__": lambda *_: None, "exists": lambda _: False}))
    assert owners._start_time(pid) == repr(psutil.Process(pid).create_time())
    end()
    assert owners._start_time(pid) is None


class Registry:
    """What Windows keeps of itself."""

    HKEY_LOCAL_MACHINE = "HKLM"
    values = {"MachineGuid": "6f2a-1", "BootId": 17}  # noqa: RUF012

    @contextlib.contextmanager
    def OpenKey(self, root, path):  # noqa: N802
        assert root == "HKLM"
        yield path

    def QueryValueEx(self, key, name):  # noqa: N802
        if (
            not key.endswith({"MachineGuid": "Cryptography", "BootId": "PrefetchParameters"}[name])
            or name not in self.values
        ):
            raise FileNotFoundError(2, "The system cannot find the file specified")
        return self.values[name], 1


@pytest.fixture
def system(monkeypatch):
    """Be another system, in a boot of a name, at a moment by the clock; None: nothing tells one boot from another."""
    clock, boot, real = [1.7e9], ["4f1c-2"], subprocess.run

    def sysctl(command, **named):
        if command[0] == sys.executable:
            return real(command, **named)
        assert command[-1] == "kern.bootsessionuuid"
        if boot[0] is None:
            raise FileNotFoundError(2, "No such file or directory")
        return subprocess.CompletedProcess(command, 0, f"{boot[0]}\n", "")

    class Process(psutil.Process):
        """As psutil 7 is on macOS: the start is corrected by what the clock was moved."""

        def __init__(self, pid):
            super().__init__(pid)
            self._proc = types.SimpleNamespace(
                create_time=lambda monotonic=False: 1e9 + pid + (not monotonic) * clock[0]
            )

        def create_time(self):
            return self._proc.create_time()

    def be(name, boot_id="4f1c-2"):
        boot[0] = boot_id
        registry = Registry()
        registry.values = {"MachineGuid": "6f2a-1"} | ({"BootId": boot_id} if boot_id else {})
        monkeypatch.setattr(owners, "sys", types.SimpleNamespace(platform=name))
        monkeypatch.setattr(subprocess, "run", sysctl)
        monkeypatch.setitem(sys.modules, "winreg", registry)
        monkeypatch.setattr(psutil, "boot_time", lambda: clock[0])
        if name == "darwin":
            monkeypatch.setattr(psutil, "Process", Process)

        class NoProc(type(owners.Path())):
            def exists(self):
                return False

            def read_text(self, **_):
                raise FileNotFoundError(2, "No such file or directory")

            readlink = read_text

        monkeypatch.setattr(owners, "Path", NoProc)
        owners._host_id.cache_clear()
        return clock

    yield be
    owners._host_id.cache_clear()


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_a_clock_that_is_moved_makes_nobody_dead_and_hides_no_dead_one(system, name, child):
    """By the moment of its boot a machine was another one after each move, and on macOS a process another process."""
    clock = system(name)
    mine, (there, end) = owners.owner(), child
    pid = int(there.split(" ")[-2])
    theirs = " ".join([*mine.split(" ")[:4], str(pid), owners._start_time(pid)])
    for moved in (1.7e9 - 3600, 1.7e9 + 40):
        clock[0] = moved
        owners._host_id.cache_clear()
        assert owners.owner() == mine
        assert not owners.is_dead(theirs)
    end()
    assert owners.is_dead(theirs)
    system(name, "4f1c-3")
    assert not owners.is_dead(theirs), "that was in another boot"


@each("name", ["darwin", "win32", "freebsd14"])
def test_where_nothing_tells_one_boot_from_another_nobody_is_dead(system, name, child):
    system(name, None)
    there, end = child
    mine = owners.owner()
    end()
    assert mine.split(" ")[1] == owners.UNKNOWN
    assert not owners.is_dead(" ".join([*mine.split(" ")[:4], *there.split(" ")[-2:]]))


def test_who_was_named_by_the_moment_of_the_boot_is_dead_once_its_pid_is_free(system, child):
    """As 0.1.0 named processes on macOS; the start that it noted moves with the clock."""
    clock = system("darwin")
    there, end = child
    pid = there.split(" ")[-2]
    name = f"{owners._host()} {clock[0]:.0f} - - {pid} 1.5"
    assert not owners.is_dead(name)
    end()
    assert owners.is_dead(name)
    clock[0] += 2
    assert not owners.is_dead(name), "this may be another machine"


# ---- what becomes of the money -------------------------------------------------------------------------------------


@pytest.fixture
def named(monkeypatch):
    """Act under a name; some of them have died."""
    acting, dead = ["me"], set()
    monkeypatch.setattr(durable_ledger, "owner", lambda: acting[0])
    monkeypatch.setattr(durable_ledger, "is_dead", dead.__contains__)
    return acting, dead


def test_what_never_left_comes_back_with_the_next_reservation_once_its_process_is_dead(file_ledger, scope, named):
    """Sent, or settled, or of a process that lives, it stays."""
    acting, dead = named
    ledger = file_ledger()
    LedgerAdmin(ledger).set_cap("total", 100)
    acting[0] = "gone"
    unsent, sent, over = [ledger.reserve(max_cost_of(amount), scope) for amount in (40, 25, 10)]
    ledger.mark_sent(sent)
    ledger.settle(settled(over, 7))
    acting[0] = "alive"
    ledger.reserve(max_cost_of(5), scope)
    acting[0] = "me"
    assert ledger.reserve(max_cost_of(24), scope).left_nanousd == 100 - 40 - 25 - 7 - 5
    dead.add("gone")
    reserved = ledger.reserve(max_cost_of(63), scope)
    assert (reserved.nanousd, reserved.returned_nanousd) == (63, 40)
    states = {entry.id: entry.state for entry in LedgerAdmin(ledger).log(9)}
    assert (states[unsent.id], states[sent.id], states[over.id]) == ("returned", "sent", "settled")
    assert isinstance(ledger.reserve(max_cost_of(1), scope), Denial)


def test_what_was_reconciled_by_hand_before_it_left_does_not_leave(file_ledger, scope):
    """Its money may be another's by now."""
    ledger = file_ledger()
    reservation = ledger.reserve(max_cost_of(40), scope)
    LedgerAdmin(ledger).reconcile(reservation.id, 0)
    with pytest.raises(LedgerError, match="ask again"):
        ledger.mark_sent(reservation)


def test_what_was_reserved_in_a_file_that_was_replaced_touches_no_entry_of_the_new_one(file_ledger, scope):
    """A copy that is put in its place has entries of the same numbers, and they are others'."""
    first, second = file_ledger(), file_ledger()
    mine = first.reserve(max_cost_of(40), scope)
    for path in first.file.path.parent.glob("ledger.sqlite*"):
        if path.suffix != ".lock":
            path.unlink()
    theirs = second.reserve(max_cost_of(90), scope)
    assert theirs.id == mine.id
    for attempt in (lambda: first.mark_sent(mine), lambda: first.settle(settled(mine, 5))):
        with pytest.raises(LedgerError, match="ask again"):
            attempt()
    assert [(entry.state, entry.reserved_nanousd) for entry in LedgerAdmin(second).log(9)] == [("reserved", 90)]


def test_money_that_was_given_back_cannot_be_sent(file_ledger, scope, named):
    """Whoever was taken for dead must not spend what others have reserved meanwhile; a charge of it is recorded."""
    acting, dead = named
    ledger = file_ledger()
    acting[0] = "undead"
    reservation = ledger.reserve(max_cost_of(40), scope)
    dead.add("undead")
    acting[0] = "me"
    ledger.reserve(max_cost_of(1), scope)
    with pytest.raises(LedgerError, match="ask again"):
        ledger.mark_sent(reservation)
    ledger.settle(settled(reservation, 40))
    assert LedgerAdmin(ledger).rows()[-1].spent_nanousd == 40
