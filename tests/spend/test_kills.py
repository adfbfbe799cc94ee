"""Processes full of clients that are killed again and again under one cap: it holds, and only what left stays reserved.

The cloud is of another hand and keeps its own account (``counting_cloud``).
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time

import busy
import pytest
from cases import each_of
from counting_cloud import CountingCloud
from money import max_cost_of

from hybrid.spend import Reservation, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin

NUM_PROCESSES, NUM_CLIENTS, NUM_KILLS = 4, 6, 20


class Crew:
    """Processes that are started, killed and started again."""

    def __init__(self, command):
        self.command, self.processes = command, []

    def start(self):
        self.processes.append(subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def end(self, process, how):
        """Send a signal; return how long the process took to end."""
        self.processes.remove(process)
        began = time.monotonic()
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
        assert "Traceback" not in errors, errors
        return time.monotonic() - began


def recorded(path):
    """What counts as spent."""
    ledger = FileLedger(path)
    row = LedgerAdmin(ledger).rows()[-1]
    ledger.close()
    return row.spent_nanousd + row.reserved_nanousd


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_twenty_times_the_cap_holds_and_nothing_of_the_dead_that_never_left_stays_reserved(tmp_path, how):
    """Four processes of six clients each; after every kill what the cloud has charged is on record, under the cap."""
    path, rng, cap = tmp_path / "ledger.sqlite", random.Random(5), 25_000_000
    LedgerAdmin(ledger := FileLedger(path)).set_cap("total", cap)
    with CountingCloud(price=busy.PRICE, token_s=0.01) as cloud:
        crew = Crew([sys.executable, busy.__file__, str(path), cloud.url, str(NUM_CLIENTS)])
        try:
            for _ in range(NUM_PROCESSES):
                crew.start()
            crew.processes[0].stdout.readline()
            for _ in each_of(range(NUM_KILLS)):
                time.sleep(rng.uniform(0.1, 0.8))
                crew.end(rng.choice(crew.processes), how)
                crew.start()
                assert cloud.account()["total_nanousd"] <= recorded(path) <= cap
        finally:
            for process in [*crew.processes]:
                crew.end(process, how)
        charged = cloud.account()["total_nanousd"]
    assert 0 < charged <= recorded(path) <= cap
    LedgerAdmin(ledger).set_cap("total", 2 * cap)  # on a slow machine more was asked between the kills, up to the cap
    last = ledger.reserve(max_cost_of(0), SpendScope("http://nobody", "q", "t", "c", cap))
    assert isinstance(last, Reservation)
    states = [entry.state for entry in LedgerAdmin(ledger).log(10**6)]
    assert states.count("reserved") == 1, "of this process; the dead have none that never left"
    if how == signal.SIGTERM:
        assert "sent" not in states, "what was under way was settled"
    ledger.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to make pid namespaces")
@pytest.mark.timeout(600)
def test_two_pid_namespaces_share_a_ledger_and_neither_gives_back_what_is_the_others(tmp_path):
    """Two containers on one volume: the pids of one say nothing in the other, so that none may be taken for dead."""
    path, cap = tmp_path / "ledger.sqlite", 3_000_000
    LedgerAdmin(ledger := FileLedger(path)).set_cap("total", cap)
    apart = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make pid namespaces")
    script = (
        "import sys; from pathlib import Path\n"
        "from hybrid.spend import MaxCost, Price, SpendScope\n"
        "from hybrid.spend.durable import FileLedger\n"
        "ledger = FileLedger(Path(sys.argv[1]))\n"
        "claim = MaxCost(Price(1_000_000, 0, 0), int(sys.argv[2]), 1)\n"
        "print(ledger.reserve(claim, SpendScope('e', 'q', 't', 'c')), flush=True)\n"
        "input()\n"
    )

    def reserve(nanousd, *before):
        command = [*before, sys.executable, "-c", script, str(path), str(nanousd)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return process, process.stdout.readline()

    there, said = reserve(1_000_000, *apart)
    assert "nanousd=1000000" in said
    there.kill()
    there.communicate()
    here, said = reserve(1_000_000)
    assert "returned_nanousd=0)" in said
    here.kill()
    here.communicate()
    other, said = reserve(2_000_000, *apart)
    assert "does not allow another request" in said, "neither of the dead can be told from the living there"
    again, said = reserve(2_000_000)
    assert "returned_nanousd=1000000)" in said
    for process in (other, again):
        process.communicate("\n", timeout=20)
    assert recorded(path) == cap
    ledger.close()
