"""A request leaves only with its worst case reserved; cancelled at any moment, an answer leaves the books right."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import LedgerError
from hybrid.spend import TARIFFS, Account, Denial, Grant, MemoryLedger, Price, as_usd
from hybrid.types import NO_USAGE, CloudUsage

RATES = st.integers(0, 3_000_000)
PRICES = st.builds(Price, RATES, RATES, RATES, st.integers(0, 1000), repeated=st.sampled_from([None, *TARIFFS]))
PRICE = Price.parse("1/0.1/4")  # 1000 nano-dollars a prompt token, 4000 a completion token


def with_budget(account, body):
    """Run ``body(budget)`` with a budget of the account and return what it returned."""

    async def go():
        async with account.open_budget() as budget:
            return await body(budget)

    return asyncio.run(go())


def total(ledger):
    """What is spent and reserved in all, of either kind of ledger."""
    if isinstance(ledger, MemoryLedger):
        return ledger.settled_nanousd, ledger.reserved_nanousd
    from hybrid.spend.durable import LedgerAdmin

    found = LedgerAdmin(ledger).rows()[-1]
    return found.spent_nanousd, found.reserved_nanousd


# ---- what is granted -----------------------------------------------------------------------------------------------


@given(PRICES, st.integers(0, 50), st.integers(1, 60), st.integers(1, 300))
def test_the_limit_is_lowered_to_what_fits_and_that_is_reserved(price, prompt_tokens, limit, cap):
    ledger = MemoryLedger(cap)

    async def ask(budget):
        answer = await budget.reserve(prompt_tokens, limit)
        return answer, ledger.reserved_nanousd

    answer, reserved = with_budget(Account(price, ledger), ask)
    fitting = [n for n in range(1, limit + 1) if price.worst_case(prompt_tokens, n) <= cap]
    if fitting:
        assert answer.limit == max(fitting)
        assert answer.reservation.nanousd == reserved == price.worst_case(prompt_tokens, max(fitting))
    else:
        assert isinstance(answer, Denial)
        assert reserved == 0


@given(
    PRICES, st.integers(1, 2000), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=20), st.data()
)
def test_the_cap_holds_over_any_run_of_requests_within_their_limits(price, cap, questions, data):
    """Whatever servers cache, cut short or never tell."""
    ledger = MemoryLedger(cap)

    async def spend(budget):
        told = unknown = 0
        for prompt_tokens, limit in questions:
            grant = await budget.reserve(prompt_tokens, limit)
            if isinstance(grant, Denial):
                continue
            if data.draw(st.booleans()):
                budget.settle(grant, None)
                unknown += grant.reservation.nanousd
            else:
                cached = data.draw(st.integers(0, prompt_tokens))
                repeated, check = data.draw(st.integers(0, prompt_tokens)), data.draw(st.integers(0, 1))
                usage = CloudUsage(prompt_tokens, data.draw(st.integers(0, grant.limit)), cached, 1, repeated, check)
                assert budget.settle(grant, usage) is None
                told += price.cost(usage)
            assert told + unknown <= ledger.settled_nanousd + ledger.reserved_nanousd <= cap
            assert budget.charged_nanousd == told
        return told, unknown

    assert with_budget(Account(price, ledger), spend) == (ledger.settled_nanousd, ledger.reserved_nanousd)


def test_an_unknown_usage_keeps_its_part_and_a_known_one_frees_what_was_not_spent(make_ledger):
    """A request that nobody told of may have been served and charged: to free its money would be to spend it twice."""
    ledger = make_ledger()

    async def spend(budget):
        budget.settle(await budget.reserve(10, 5), None)
        budget.settle(await budget.reserve(10, 5), CloudUsage(10, 1, cached_tokens=5))
        budget.settle(await budget.reserve(10, 5), NO_USAGE)

    with_budget(Account(PRICE, ledger), spend)
    assert total(ledger) == (5 * 1000 + 5 * 100 + 4000, 30_000)


def test_the_books_are_right_after_every_answer(make_ledger):
    ledger = make_ledger(total=10**9)
    account = Account(PRICE, ledger)
    spent = 0
    for num_requests in (0, 1, 2, 7, 30):

        async def spend(budget, num_requests=num_requests):
            for i in range(num_requests):
                grant = await budget.reserve(10 + 8 * i, 1)
                assert grant.reservation.nanousd == (10 + 8 * i) * 1000 + 4000
                budget.settle(grant, CloudUsage(10 + 8 * i, 1, 8 * i))

        with_budget(account, spend)
        spent += sum(10 * 1000 + 8 * i * 100 + 4000 for i in range(num_requests))
        assert total(ledger) == (spent, 0)


def test_what_the_last_request_has_left_does_not_stand_in_the_way_of_the_next(file_ledger):
    """Its settlement is on record before the next is reserved: else an answer would be denied by its own money."""
    from hybrid.spend.durable import LedgerAdmin

    ledger = file_ledger()
    LedgerAdmin(ledger).set_cap("total", 100_000)

    async def spend(budget):
        budget.settle(await budget.reserve(10, 20), CloudUsage(10, 1))
        return await budget.reserve(10, 100)

    assert with_budget(Account(PRICE, ledger), spend).limit == (100_000 - 14_000 - 10_000) // 4000


def test_what_was_sent_and_never_told_is_kept_as_sent(file_ledger):
    """Else it would look like what never left, once this process is dead."""
    from hybrid.spend.durable import LedgerAdmin

    ledger = file_ledger()

    async def spend(budget):
        sent = await budget.reserve(10, 5)
        assert await budget.mark_sent(sent) is None
        budget.settle(sent, None)
        await budget.reserve(10, 5)

    with_budget(Account(PRICE, ledger), spend)
    assert [entry.state for entry in LedgerAdmin(ledger).log(9)] == ["reserved", "sent"]


def test_a_price_that_becomes_known_in_the_middle_of_an_answer_is_that_of_what_follows(file_ledger):
    """An endpoint that is reached late says late which model it serves: what is asked then is paid from the ledger."""
    from hybrid.spend.durable import LedgerAdmin

    ledger = file_ledger()
    account = Account(None, ledger, "http://gpu")

    async def spend(budget):
        budget.settle(await budget.reserve(10, 5), CloudUsage(10, 5))
        account.set_price(PRICE)
        grant = await budget.reserve(10, 5)
        account.set_price(Price.parse("free"))
        budget.settle(grant, CloudUsage(10, 1))
        return budget.price.free, grant.reservation.nanousd

    assert with_budget(account, spend) == (True, 30_000)
    assert (total(ledger), len(LedgerAdmin(ledger).log(9))) == ((14_000, 0), 1)


def test_a_request_whose_leaving_cannot_be_recorded_does_not_leave():
    ledger = Slow(mark_sent=True)

    async def spend(budget):
        return await budget.mark_sent(await budget.reserve(10, 5)), await budget.reserve(10, 5)

    assert with_budget(Account(PRICE, ledger), spend) == (Denial("the ledger is in trouble: mend it"),) * 2


# ---- prices that are not -------------------------------------------------------------------------------------------


def test_a_cap_without_a_price_is_refused_and_says_what_to_state(make_ledger):
    """Nothing can be kept under a cap whose requests cost nobody knows what."""
    ledger = make_ledger(day=1)
    denial = with_budget(Account(None, ledger), lambda budget: budget.reserve(10, 5))
    assert "there is a cap but no price" in denial.why
    assert "--price" in denial.why
    assert total(ledger) == (0, 0)
    assert isinstance(
        with_budget(Account(None, MemoryLedger(), cap_nanousd=1), lambda budget: budget.reserve(10, 5)), Denial
    )


@pytest.mark.parametrize("price", [Price.parse("free"), PRICE, None], ids=["free", "priced", "unknown"])
def test_a_cap_of_zero_refuses_everything_even_what_is_free(price, file_ledger):
    for ledger in (MemoryLedger(), file_ledger()):
        denial = with_budget(Account(price, ledger, cap_nanousd=0), lambda budget: budget.reserve(1, 1))
        needed = f", {as_usd(PRICE.worst_case(1, 1))} needed" if price is PRICE else ""
        assert denial.why == f"the cap of 0 USD does not allow another request (0 USD left{needed})"


def test_what_is_free_fits_under_any_cap_above_zero_with_its_whole_limit():
    async def spend(budget):
        for _ in range(3):
            grant = await budget.reserve(100_000, 4096)
            assert grant.limit == 4096
            budget.settle(grant, CloudUsage(100_000, 4096))

    with_budget(Account(Price.parse("free"), MemoryLedger(1)), spend)


@pytest.mark.parametrize("price", [Price.parse("free"), None], ids=["free", "unknown"])
def test_what_moves_no_total_writes_no_file(file_ledger, price):
    """The demonstration is free, and leaves nothing on anybody's disk."""
    ledger = file_ledger()

    async def spend(budget):
        grant = await budget.reserve(10, 5)
        budget.settle(grant, CloudUsage(10, 5))
        return grant

    assert with_budget(Account(price, ledger), spend).limit == 5
    assert list(ledger.file.path.parent.iterdir()) == []


def test_no_cap_and_no_price_lets_everything_leave_and_knows_no_cost():
    async def spend(budget):
        grant = await budget.reserve(10, 5)
        assert (grant, grant.reservation, budget.cost(CloudUsage(10, 5))) == (Grant(10, 5), None, None)
        assert budget.settle(grant, CloudUsage(10, 5)) is None

    with_budget(Account(None, MemoryLedger()), spend)


# ---- a server that charges more ------------------------------------------------------------------------------------


def test_a_charge_above_the_worst_case_is_written_in_full_at_once_and_shuts_the_endpoint(make_ledger):
    ledger = make_ledger(total=10**9)
    account = Account(PRICE, ledger, "http://gpu")

    async def spend(budget):
        unknown = await budget.reserve(10, 5)
        said = budget.settle(await budget.reserve(10, 5), CloudUsage(10, 500))
        await asyncio.sleep(0.2)
        assert total(ledger) == (2_010_000, unknown.reservation.nanousd), "before the answer ends"
        return said, await budget.reserve(1, 1)

    said, denial = with_budget(account, spend)
    assert said == denial.why
    assert said.startswith("http://gpu is closed (it charged 0.00201 USD for a request that may cost 0.00003 USD at m")
    assert total(ledger) == (2_010_000, 30_000)
    other = Account(PRICE, ledger, "http://gpu")
    assert with_budget(other, lambda budget: budget.reserve(1, 1)).why == denial.why
    assert isinstance(with_budget(Account(PRICE, ledger, "http://b"), lambda budget: budget.reserve(1, 1)), Grant)


# ---- waiting, cancellation, trouble --------------------------------------------------------------------------------


class Slow:
    """A durable ledger over one in memory, that takes its time or fails on cue."""

    durable = True

    def __init__(self, delay_s=0.0, **fails):
        self.under, self.delay_s, self.fails = MemoryLedger(), delay_s, fails
        self.lock, self.calls = threading.Lock(), []

    def _slowly(self, name, *args):
        with self.lock:
            self.calls.append(name)
            time.sleep(self.delay_s)
            if self.fails.get(name):
                raise LedgerError("the ledger is in trouble: mend it")
            return getattr(self.under, name)(*args)

    def reserve(self, *args):
        return self._slowly("reserve", *args)

    def settle(self, *args):
        return self._slowly("settle", *args)

    def mark_sent(self, *args):
        return self._slowly("mark_sent", *args)

    def cap_statuses(self, *args):
        return self._slowly("cap_statuses", *args)


def test_the_event_loop_goes_on_while_the_ledger_writes():
    ledger, ticks = Slow(delay_s=0.2), []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def spend(budget):
        ticking = asyncio.create_task(tick())
        budget.settle(await budget.reserve(10, 5), CloudUsage(10, 5))
        ticking.cancel()

    with_budget(Account(PRICE, ledger), spend)
    assert max(b - a for a, b in pairwise(ticks)) < 0.15


@each("num_cancellations", [1, 2, 5])
@each("after_s", [0.0, 0.02, 0.12, 0.22, 0.28])
def test_an_answer_cancelled_at_any_moment_leaves_nothing_reserved_and_loses_no_settlement(after_s, num_cancellations):
    """Before, while and after it is reserved, and while it is settled; once, or by someone who insists."""
    ledger = Slow(delay_s=0.1)
    account, told = Account(PRICE, ledger), []

    async def answer():
        async with account.open_budget() as budget:
            grant = await budget.reserve(10, 5)
            budget.settle(grant, CloudUsage(10, 2))
            told.append(18_000)
            budget.settle(await budget.reserve(10, 500), NO_USAGE)
            await asyncio.sleep(1)

    async def cancel():
        task = asyncio.create_task(answer())
        await asyncio.sleep(after_s)
        for _ in range(num_cancellations):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert (ledger.under.settled_nanousd, ledger.under.reserved_nanousd) == (sum(told), 0)


@each("price", [PRICE, None], ids=["priced", "unknown"])
def test_a_ledger_in_trouble_lets_no_request_leave_says_what_to_do_and_is_not_asked_again(price):
    """A locked file costs seconds: once an answer is enough."""
    ledger = Slow(reserve=True, cap_statuses=True)

    async def spend(budget):
        return [await budget.reserve(10, 5) for _ in range(3)]

    assert with_budget(Account(price, ledger), spend) == [Denial("the ledger is in trouble: mend it")] * 3
    assert len(ledger.calls) == 1


def test_a_settlement_that_cannot_be_written_leaves_the_reservation():
    """Too much is on record then, never too little; and the answer is not lost over it."""
    ledger = Slow(settle=True)

    async def spend(budget):
        budget.settle(await budget.reserve(10, 5), CloudUsage(10, 1))

    with_budget(Account(PRICE, ledger), spend)
    assert ledger.under.settled_nanousd == 0
    assert ledger.under.reserved_nanousd >= 14_000


def test_an_excess_that_cannot_be_written_at_once_is_written_at_the_end():
    ledger = Slow(settle=True)

    async def spend(budget):
        budget.settle(await budget.reserve(10, 5), CloudUsage(10, 500))
        await asyncio.sleep(0.05)
        ledger.fails = {}

    with_budget(Account(PRICE, ledger, "http://gpu"), spend)
    assert ledger.under.settled_nanousd == 2_010_000
    assert "closed" in with_budget(Account(PRICE, ledger, "http://gpu"), lambda budget: budget.reserve(1, 1)).why


@given(st.integers(1, 100), st.integers(1, 4), st.integers(0, 200_000))
def test_what_takes_several_requests_is_reserved_and_fitted_with_the_price_of_each(limit, requests, cap):
    price = Price.parse("1/0.1/1/4/0.00002")
    account = Account(price, MemoryLedger(cap), "http://gpu")
    answer = with_budget(account, lambda budget: budget.reserve(10, limit, requests=requests))
    fitting = [n for n in range(1, limit + 1) if price.worst_case(10, n, requests) <= cap]
    if isinstance(answer, Denial):
        assert not fitting
    else:
        assert (answer.limit, answer.requests) == (max(fitting), requests)
        assert answer.reservation.nanousd == price.worst_case(10, max(fitting), requests)
