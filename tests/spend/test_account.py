"""A request leaves only with its worst case reserved, and an unknown charge keeps that reservation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.spend import Account, Denial, Grant, MemoryLedger, Price
from hybrid.types import CloudUsage

RATES = st.integers(0, 3_000_000)
PRICES = st.builds(Price, RATES, RATES, RATES)
PRICE = Price.parse("1/0.1/4")  # 1000 nano-dollars a prompt token, 4000 a completion token


def largest_that_fits(price, prompt_tokens, limit, left):
    """Try every limit, one after the other."""
    return max((n for n in range(1, limit + 1) if price.worst_case(prompt_tokens, n) <= left), default=None)


@given(PRICES, st.integers(0, 50), st.integers(1, 60), st.integers(1, 300))
def test_the_limit_is_lowered_to_the_largest_that_fits(price, prompt_tokens, limit, cap):
    """Lower, and money that could be spent is not; higher, and the cap is exceeded."""
    ledger = MemoryLedger(cap)
    answer = Account(price, ledger).ask(prompt_tokens, limit)
    fitting = largest_that_fits(price, prompt_tokens, limit, cap)
    if fitting is None:
        assert isinstance(answer, Denial)
        assert ledger.reserved_nanousd == 0
    else:
        assert isinstance(answer, Grant)
        assert (answer.prompt_tokens, answer.limit) == (prompt_tokens, fitting)
        assert answer.reservation.nanousd == ledger.reserved_nanousd == price.worst_case(prompt_tokens, fitting)


@given(
    PRICES, st.integers(1, 2000), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=20), st.data()
)
def test_the_cap_holds_over_any_run_of_requests_within_their_limits(price, cap, questions, data):
    """Whatever servers cache, cut short or never tell."""
    ledger = MemoryLedger(cap)
    account, told, unknown = Account(price, ledger), 0, 0
    for prompt_tokens, limit in questions:
        grant = account.ask(prompt_tokens, limit)
        if isinstance(grant, Denial):
            continue
        if data.draw(st.booleans()):
            account.settle(grant, None)
            unknown += grant.reservation.nanousd
        else:
            cached = data.draw(st.integers(0, prompt_tokens))
            usage = CloudUsage(prompt_tokens, data.draw(st.integers(0, grant.limit)), cached)
            account.settle(grant, usage)
            told += price.cost(usage)
        assert ledger.settled_nanousd == told
        assert ledger.reserved_nanousd == unknown
        assert told + unknown <= cap


def test_a_limit_that_fits_is_left_alone():
    assert Account(PRICE, MemoryLedger(1_000_000)).ask(10, 100).limit == 100
    assert Account(PRICE, MemoryLedger()).ask(10, 100).limit == 100


def test_without_a_cap_the_worst_case_is_still_reserved():
    """So that what a broken request may have cost is on record even where nothing limits it."""
    ledger = MemoryLedger()
    assert Account(PRICE, ledger).ask(10, 5).reservation.nanousd == 10 * 1000 + 5 * 4000
    assert ledger.reserved_nanousd == 30_000


def test_a_prompt_that_is_too_dear_is_denied_in_a_sentence_with_both_amounts():
    answer = Account(PRICE, MemoryLedger(20_000_000)).ask(20_000, 10)
    assert answer == Denial("the cap of 0.02 USD does not allow another request (0.02 USD left)")


def test_a_denial_tells_what_is_left_now():
    ledger = MemoryLedger(30_000)
    account = Account(PRICE, ledger)
    account.settle(account.ask(10, 5), CloudUsage(10, 4))
    assert account.ask(3, 1) == Denial("the cap of 0.00003 USD does not allow another request (0.000004 USD left)")


def test_money_spent_above_the_cap_leaves_nothing_rather_than_less_than_nothing():
    account = Account(PRICE, MemoryLedger(30_000))
    account.settle(account.ask(10, 5), CloudUsage(10, 500))
    assert account.ask(1, 1) == Denial("the cap of 0.00003 USD does not allow another request (0 USD left)")


def test_a_cap_without_a_price_is_refused_and_says_what_to_state():
    """Nothing can be kept under a cap whose requests cost nobody knows what."""
    ledger = MemoryLedger(1)
    answer = Account(None, ledger).ask(10, 5)
    assert answer == Denial("there is a cap but no price for this endpoint: state --price P/C/O, or --price free")
    assert ledger.reserved_nanousd == 0


@pytest.mark.parametrize("price", [Price.parse("free"), PRICE, None], ids=["free", "priced", "unknown"])
def test_a_cap_of_zero_refuses_everything_even_what_is_free(price):
    answer = Account(price, MemoryLedger(0)).ask(1, 1)
    assert answer == Denial("the cap of 0 USD does not allow another request (0 USD left)")


def test_what_is_free_fits_under_any_cap_above_zero_with_its_whole_limit():
    account = Account(Price.parse("free"), MemoryLedger(1))
    for _ in range(3):
        grant = account.ask(100_000, 4096)
        assert grant.limit == 4096
        account.settle(grant, CloudUsage(100_000, 4096))


def test_no_cap_and_no_price_lets_everything_leave_and_knows_no_cost():
    ledger = MemoryLedger()
    account = Account(None, ledger)
    grant = account.ask(10, 5)
    assert (grant.limit, grant.reservation.nanousd) == (5, 0)
    assert account.price is None
    assert account.cost(CloudUsage(10, 5)) is None
    account.settle(grant, CloudUsage(10, 5))
    assert repr(ledger) == "MemoryLedger(settled=0, reserved=0, cap=None)"


def test_an_unknown_usage_keeps_the_reservation():
    """The request may have been served and charged: to free its money would be to spend it twice."""
    ledger = MemoryLedger(30_000)
    account = Account(PRICE, ledger)
    account.settle(account.ask(10, 5), None)
    assert (ledger.settled_nanousd, ledger.reserved_nanousd, ledger.remaining_nanousd) == (0, 30_000, 0)
    assert isinstance(account.ask(1, 1), Denial)


def test_a_known_usage_frees_what_was_not_spent():
    ledger = MemoryLedger(30_000)
    account = Account(PRICE, ledger)
    account.settle(account.ask(10, 5), CloudUsage(10, 1, cached_tokens=5))
    assert (ledger.settled_nanousd, ledger.reserved_nanousd) == (5 * 1000 + 5 * 100 + 4000, 0)
    assert account.cost(CloudUsage(10, 1, cached_tokens=5)) == ledger.settled_nanousd
    assert account.price == PRICE


def test_a_usage_above_the_limit_is_recorded_in_full():
    ledger = MemoryLedger(30_000)
    account = Account(PRICE, ledger)
    account.settle(account.ask(10, 5), CloudUsage(10, 500))
    assert ledger.settled_nanousd == 10 * 1000 + 500 * 4000
    assert ledger.remaining_nanousd < 0
