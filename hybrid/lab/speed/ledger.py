"""``hybrid bench ledger``: the cost of keeping a cap, durably."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hybrid.lab.speed.measure import BenchmarkReport, Measurement, Spread, milliseconds, ratio, run_in_turn
from hybrid.spend import Account, Denial, MaxCost, Price, Settlement, SpendScope
from hybrid.spend.durable import FileLedger, LedgerAdmin
from hybrid.types import CloudUsage

PRICE = Price.parse("1/0.1/4")
CAP_NANOUSD = 10**12
ROUND_TRIP_S = 0.080
# An answer as ``kl`` writes it: a prompt of 200 tokens, a check every 16; the server has the prefix cached.
CHECKS, PROMPT, SPAN = 8, 200, 16
PAGE = b"\0" * 4096


def run(folder: Path, report_progress: Callable[[str], None], repetitions: int) -> BenchmarkReport:
    """Time reserving and settling on the file system of ``folder``, beside one page written and flushed there."""
    with tempfile.TemporaryDirectory(prefix="ledger-", dir=folder) as own:
        ledger = FileLedger(Path(own) / "ledger.sqlite")
        LedgerAdmin(ledger).set_cap("total", CAP_NANOUSD)
        report_progress("reserve, mark and settle, in turn with a page that is written and flushed")
        figures = _plain(ledger, Path(own) / "page", repetitions)
        report_progress(f"answers of {CHECKS} checks")
        figures += asyncio.run(_answers(ledger, repetitions))
        ledger.close()
    setting = f"SQLite's log flushed before a reservation is granted; answers of {CHECKS} checks, the prefix cached"
    return BenchmarkReport("ledger", setting, tuple(figures))


def _plain(ledger: FileLedger, page: Path, repetitions: int) -> list[Measurement]:
    spender, claim = SpendScope("http://bench", "question", "conversation", "client"), MaxCost(PRICE, PROMPT, 1)
    file = os.open(page, os.O_CREAT | os.O_WRONLY, 0o600)

    def transaction(_: int) -> None:
        reserved = ledger.reserve(claim, spender)
        assert not isinstance(reserved, Denial)
        ledger.mark_sent(reserved)
        ledger.settle(Settlement(reserved, claim.worst_nanousd // 2))

    def flush(_: int) -> None:
        os.write(file, PAGE)
        os.fsync(file)

    kept, bare = run_in_turn(transaction, flush, repetitions)
    os.close(file)
    note = f"{ratio(kept, bare).median:.1f} times one page written and flushed ({milliseconds(bare).median:.2f} ms)"
    return [Measurement("reserve, mark as sent and settle, durable", milliseconds(kept), "ms", "<= 6", note)]


async def _answers(ledger: FileLedger, repetitions: int) -> list[Measurement]:
    account = Account(PRICE, ledger, "http://bench")
    waits = []
    for i in range(repetitions + 1):
        began, waited = time.perf_counter(), await _answer(account)
        if i:
            waits.append((waited, time.perf_counter() - began))
    share = Spread.of([100 * whole / CHECKS / ROUND_TRIP_S for _, whole in waits])
    checks = Spread.of([100 * waited / CHECKS / ROUND_TRIP_S for waited, _ in waits])
    name = f"of an {1000 * ROUND_TRIP_S:.0f} ms round trip, the ledger of a check"
    return [
        Measurement(name, share, "%", None, "reserving, marking as sent and settling, over the answer's checks"),
        Measurement(f"{name}, waited for before it leaves", checks, "%", "<= 5", "the rest is not in the way"),
    ]


async def _answer(account: Account) -> float:
    """Pay for an answer's checks; return the seconds in which they waited for leave."""
    waited = 0.0
    async with account.open_budget() as purse:
        for i in range(CHECKS):
            began = time.perf_counter()
            grant = await purse.reserve(PROMPT + SPAN * i, 1)
            assert not isinstance(grant, Denial)
            await purse.mark_sent(grant)
            waited += time.perf_counter() - began
            purse.settle(grant, CloudUsage(grant.prompt_tokens, 1, grant.prompt_tokens - SPAN))
    return waited
