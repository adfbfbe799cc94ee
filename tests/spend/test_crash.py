"""Killed at any step, on any of many tries: what is on record covers what was charged, and nothing needs repair."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import crashing
import pytest

from hybrid.assemble import BUNDLED_CLOUD
from hybrid.spend import Price
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.types import CloudUsage

SCRIPT = Path(crashing.__file__)
PRICE = Price.parse(crashing.PRICE)


class Spenders:
    """The process whose forks spend and die."""

    def __init__(self, process):
        self._process = process

    def end(self, ledger, charges, label, times, url=None):
        """Return how one ended: 0 or -SIGKILL."""
        self._process.stdin.write(json.dumps([str(ledger), str(charges), label, times, url]) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        assert code in {0, -signal.SIGKILL}, said
        return code


@pytest.fixture(scope="module")
def spenders():
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Spenders(process)
        process.stdin.close()


def recorded(path):
    """What counts as spent, read by a process that knows nothing of the dead one; the file must be whole."""
    ledger = FileLedger(path)
    row = LedgerAdmin(ledger).rows()[-1]
    ledger.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return row.spent_nanousd + row.reserved_nanousd


def charged_in(path):
    return sum(map(int, path.read_text().split())) if path.exists() else 0


def crash_often(spenders, tmp_path, num, cap, seed):
    """Let children spend from one ledger and die; return how many did, and how often the cap stood in the way."""
    ledger, charges, rng = tmp_path / "ledger.sqlite", tmp_path / "charges", random.Random(seed)
    LedgerAdmin(admin := FileLedger(ledger)).set_cap("total", cap)
    admin.close()
    died = 0
    for i in range(num):
        label = crashing.LABELS[i % len(crashing.LABELS)]
        died += spenders.end(ledger, charges, label, rng.randint(1, 5)) == -signal.SIGKILL
        assert charged_in(charges) <= recorded(ledger) <= cap
    return died


def test_killed_at_every_step_the_books_cover_what_was_charged(spenders, tmp_path):
    assert crash_often(spenders, tmp_path, len(crashing.LABELS), cap=10**9, seed=1) >= len(crashing.LABELS) - 1


def test_killed_near_the_cap_the_cap_holds(spenders, tmp_path):
    crash_often(spenders, tmp_path, 6, cap=300_000, seed=2)
    assert recorded(tmp_path / "ledger.sqlite") > 250_000, "it was not near"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_a_hundred_times_the_books_cover_what_was_charged(spenders, tmp_path):
    assert crash_often(spenders, tmp_path, 100, cap=50_000_000, seed=3) >= 90


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_real_client_killed_a_hundred_times_has_recorded_what_the_server_charged(spenders, tmp_path, start_server):
    """Against the server's own account of what it computed."""
    server = start_server("--enable-prompt-tokens-details", model=BUNDLED_CLOUD)
    ledger, rng, cap = tmp_path / "ledger.sqlite", random.Random(4), 10**9
    LedgerAdmin(admin := FileLedger(ledger)).set_cap("total", cap)
    admin.close()
    survived = []
    for i in range(100):
        label = crashing.LABELS[i % len(crashing.LABELS)]
        times = rng.randint(1, 3)
        if spenders.end(ledger, tmp_path / "none", label, times, server.url) == 0:
            survived.append((label, times))
        assert settled_charge(server) <= recorded(ledger) <= cap
    assert not survived, "every step is reached three times in six answers"


def settled_charge(server):
    """What the server charged in all, once it has noticed that nobody listens any more."""
    before = -1
    while True:
        found = server.client.get("/v1/charges").json()["data"]
        usages = [CloudUsage(each["prompt_tokens"], each["completion_tokens"], each["cached_tokens"]) for each in found]
        if (charge := sum(map(PRICE.cost, usages))) == before:
            return charge
        before = charge
        time.sleep(0.05)
