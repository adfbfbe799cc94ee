"""Ledgers of both kinds, a spender, and a clock to set."""

from __future__ import annotations

import pytest
from money import Clock

from hybrid.spend import MemoryLedger, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def scope():
    return SpendScope("http://gpu", "question", "talk", "client")


@pytest.fixture(params=["memory", "file"])
def make_ledger(request, tmp_path, clock):
    """Make a ledger with caps, of either kind: every law of the port holds for both."""
    made = []

    def make(**caps):
        if request.param == "memory":
            return MemoryLedger(caps=caps, clock=clock)
        ledger = FileLedger(tmp_path / f"ledger-{len(made)}.sqlite", clock)
        made.append(ledger)
        for level, nanousd in caps.items():
            LedgerAdmin(ledger).set_cap(level, nanousd)
        return ledger

    yield make
    for ledger in made:
        ledger.close()


@pytest.fixture
def file_ledger(tmp_path, clock):
    """Open ledgers on one file; those that are left open are closed."""
    made = []

    def make(name="ledger.sqlite", **choices):
        made.append(FileLedger(tmp_path / name, **{"clock": clock, "patience_s": 5.0} | choices))
        return made[-1]

    yield make
    for ledger in made:
        ledger.close()
