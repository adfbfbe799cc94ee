"""Several requests of one answer under way at once: they share its money, and wait for what the others give back."""

from __future__ import annotations

import asyncio
import threading

from hybrid.spend import Account, MemoryLedger, Price, SpendScope
from hybrid.types import NO_USAGE, CloudUsage

PRICE = Price.parse("1/0.1/4")  # 1000 nano-dollars a prompt token, 4000 a completion token


def with_budget(ledger, body):
    """Run ``body(budget)`` with a budget of this ledger and return what it returned."""

    async def go():
        async with Account(PRICE, ledger, "http://gpu").open_budget() as budget:
            return await body(budget)

    return asyncio.run(go())


def test_several_requests_at_once_share_a_budget(make_ledger):
    ledger = make_ledger(total=10**9)

    async def one(budget, i):
        grant = await budget.reserve(10 + i, 5)
        await asyncio.sleep(0.001 * i)
        budget.settle(grant, CloudUsage(10 + i, 5))
        return PRICE.cost(CloudUsage(10 + i, 5))

    async def spend(budget):
        return sum(await asyncio.gather(*(one(budget, i) for i in range(20))))

    spent = with_budget(ledger, spend)
    (total,) = ledger.cap_statuses(SpendScope("http://gpu", "q", "t", "c"))
    assert (total.spent_nanousd, total.reserved_nanousd) == (spent, 0)


class Held:
    """A durable ledger over one in memory; each settlement is written once its gate is opened."""

    durable = True

    def __init__(self, cap):
        self.under, self.gates = MemoryLedger(cap), [threading.Event(), threading.Event()]
        self.reserve, self.mark_sent = self.under.reserve, self.under.mark_sent

    def settle(self, settlement):
        assert self.gates[settlement.reservation.id - 1].wait(30)
        self.under.settle(settlement)


def test_a_request_waits_for_a_settlement_that_came_while_it_waited_for_another():
    """Else it would be lowered or denied for the money that its own answer is just giving back."""
    ledger = Held(cap=60_000)

    async def spend(budget):
        first, second = await budget.reserve(10, 5), await budget.reserve(10, 5)
        budget.settle(first, NO_USAGE)
        third = asyncio.create_task(budget.reserve(10, 12))
        await asyncio.sleep(0)  # it waits for the first
        budget.settle(second, NO_USAGE)
        ledger.gates[0].set()
        await asyncio.wait([third], timeout=0.1)
        ledger.gates[1].set()
        grant = await third
        budget.settle(grant, None)
        return grant.limit

    assert with_budget(ledger, spend) == 12
    assert ledger.under.reserved_nanousd == 58_000
