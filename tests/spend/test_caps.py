"""What is afforded is never more than what the tightest cap has left, and as much as there is room for."""

from __future__ import annotations

import datetime as dt

from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.spend import TARIFFS, CapStatus, Denial, MaxCost, Price, SpendScope, as_usd
from hybrid.spend.ledger import CAP_LEVELS, NAMES, TIMED, Allowance, allow, windows

AMOUNTS = st.integers(0, 10**6) | st.integers(0, 10**15)
STATUSES = st.lists(st.builds(CapStatus, st.sampled_from(CAP_LEVELS), AMOUNTS, AMOUNTS, AMOUNTS), max_size=4)
RATES = st.integers(0, 3_000_000)
PRICES = st.builds(Price, RATES, RATES, RATES, st.integers(0, 1000), repeated=st.sampled_from([None, *TARIFFS]))
# A limit below the least that is of use is not raised to that.
LEAST = st.sampled_from([1, 1, 5, 300]) | st.integers(1, 400)
MAX_COSTS = st.builds(MaxCost, PRICES, st.integers(0, 1000), st.integers(1, 300), LEAST, st.integers(1, 3))


def left(cap_statuses):
    return min((status.left_nanousd for status in cap_statuses), default=None)


def largest_that_fits(max_cost, room):
    """Try every limit, one after the other."""
    least = min(max_cost.min_limit, max_cost.limit)
    costs = {n: cost_of(max_cost, n) for n in range(least, max_cost.limit + 1)}
    return max((n for n, cost in costs.items() if room is None or cost <= room), default=None)


def cost_of(max_cost, limit):
    return max_cost.price.worst_case(max_cost.prompt_tokens, limit, max_cost.requests)


@given(MAX_COSTS, STATUSES)
def test_what_is_afforded_fits_the_tightest_cap_and_covers_the_claim(max_cost, cap_statuses):
    found, room = allow(max_cost, cap_statuses), left(cap_statuses)
    expected = None if room is not None and room <= 0 else largest_that_fits(max_cost, room)
    if expected is None:
        assert isinstance(found, Denial)
        assert found.left_nanousd == max(0, room)
    else:
        assert found.max_cost.limit == expected
        assert found.left_nanousd == room
        assert room is None or found.max_cost.worst_nanousd <= room


@given(MAX_COSTS, st.integers(0, 10**6), st.integers(1, 300), st.integers(-2, 2))
def test_the_limit_is_lowered_to_the_largest_that_fits(max_cost, any_room, limit, more):
    """Lower, and money that could be spent is not; higher, and the cap is passed.

    Of rooms drawn from all amounts hardly one lies between the least and the most that a request may cost.
    """
    needed = cost_of(max_cost, min(limit, max_cost.limit))
    for room in (any_room, max(0, needed + more)):
        fitted = max_cost.fit_to(room)
        assert (None if fitted is None else fitted.limit) == largest_that_fits(max_cost, room)


@each("level", CAP_LEVELS)
def test_a_denial_says_which_cap_what_is_left_and_what_is_needed(level):
    status = CapStatus(level, 30_000, 20_000, 6_000)
    denial = allow(MaxCost(Price.parse("1/0.1/4"), 3, 9), [CapStatus("total", 10**9, 0, 0), status])
    assert denial == Denial(
        f"{NAMES[level]} of 0.00003 USD does not allow another request (0.000004 USD left, 0.000007 USD "
        "needed for a first token, 0.000039 USD for up to 9)",
        level,
        30_000,
        4_000,
    )


@given(MAX_COSTS)
def test_the_amount_that_a_denial_names_is_the_least_that_allows_the_request(max_cost):
    needed = cost_of(max_cost, min(max_cost.min_limit, max_cost.limit))
    assume(needed > 0)
    denial = allow(max_cost, [CapStatus("total", needed - 1, 0, 0)])
    assert f", {as_usd(needed)} needed" in denial.why
    assert isinstance(allow(max_cost, [CapStatus("total", needed, 0, 0)]), Allowance)


@given(MAX_COSTS)
def test_a_denial_names_the_amount_that_allows_the_whole_answer_where_that_is_another(max_cost):
    """Whoever gave the amount that one token needs bought a few tokens of an answer, and then none of use."""
    least, whole = cost_of(max_cost, min(max_cost.min_limit, max_cost.limit)), cost_of(max_cost, max_cost.limit)
    assume(least > 0)
    denial = allow(max_cost, [CapStatus("total", least - 1, 0, 0)])
    assert (f"{as_usd(whole)} for up to {max_cost.limit})" in denial.why) == (whole > least)
    assert allow(max_cost, [CapStatus("total", whole, 0, 0)]).max_cost.limit == max_cost.limit


def test_money_spent_above_a_cap_leaves_nothing_rather_than_less_than_nothing():
    assert "(0 USD left)" in CapStatus("day", 10, 30, 5).denial().why


def test_a_cap_with_nothing_left_affords_nothing_not_even_what_is_free():
    """A cap of zero means: send no request. A price of zero does not change what was asked for."""
    free = MaxCost(Price.parse("free"), 10, 10)
    assert isinstance(allow(free, [CapStatus("total", 0, 0, 0)]), Denial)
    assert allow(free, [CapStatus("total", 1, 0, 0)]).max_cost == free


def test_an_amount_that_no_ledger_could_add_up_is_not_sent():
    assert "is not sent" in allow(MaxCost(Price(10**30, 0, 0), 10, 1), []).why
    assert allow(MaxCost(Price(10**12, 0, 0), 1000, 1), []).max_cost.worst_nanousd <= 2**53


@given(st.integers(0, 2**33), st.integers(0, 2**33))
def test_windows_are_utc_days_and_months_and_later_ones_sort_later(first, second):
    """By their names alone a ledger tells which windows are over."""
    scope = SpendScope("e", "q", "c", "me")
    names = windows(scope, first), windows(scope, second)
    for level in each_of(TIMED):
        if first <= second:
            assert names[0][level] <= names[1][level]
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=first)
    assert names[0]["day"] == moment.date().isoformat()
    assert names[0]["month"] == moment.date().isoformat()[:7]
    assert (names[0]["request"], names[0]["conversation"], names[0]["client"], names[0]["total"]) == (
        "q",
        "c",
        "me",
        "",
    )
