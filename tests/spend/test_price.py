"""Prices are whole nano-dollars, read exactly and rounded up; and the bill is their sum."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from cases import each
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.spend import TARIFFS, Bill, LongContext, Price, as_usd, bill, usd_to_nanousd
from hybrid.types import NO_USAGE, CloudUsage

RATES = st.integers(0, 10**12) | st.integers(0, 10)
TARIFF = st.sampled_from([None, *TARIFFS])
PLAIN = st.builds(Price, RATES, RATES, RATES, RATES, repeated=TARIFF)
PRICES = st.builds(
    lambda price, more: price if more is None else replace(price, cache_write=price.prompt + 1 + more),
    PLAIN,
    st.none() | RATES,
)


def with_long_context(price, above, more):
    """The same price, and one beyond ``above`` tokens that is higher by as much in every part."""
    parts = (price.prompt, price.cached_prompt, price.completion, price.written_nanousd)
    return replace(price, long_context=LongContext(above, *(part + more for part in parts)))


LONG = st.builds(with_long_context, PRICES, st.integers(0, 300_000), RATES) | PRICES


@st.composite
def usages(draw):
    prompt = draw(st.integers(0, 200_000))
    requests, count = draw(st.integers(0, 4)), st.integers(0, prompt)
    written, cached, repeated = draw(st.integers(0, 10_000)), draw(count), draw(count)
    writes = draw(st.none() | st.integers(0, prompt - cached))
    return CloudUsage(prompt, written, cached, requests, repeated, draw(st.integers(0, requests)), writes)


@each(
    ("text", "price"),
    [
        ("1/0.1/4", Price(1_000_000_000, 100_000_000, 4_000_000_000)),
        ("0.15/0.0375/0.6", Price(150_000_000, 37_500_000, 600_000_000)),
        ("0.000000001/0/1e-9", Price(1, 0, 1)),
        ("1/0.1/1/4/0.002", Price(1_000_000_000, 100_000_000, 4_000_000_000, 2_000_000)),
        ("0/0/0/0/1e-9", Price(0, 0, 0, 1)),
        ("2/0.1/2.5/10", Price(2 * 10**9, 10**8, 10**10, cache_write=2_500_000_000)),
        ("2/0.1/2.5/10/0.002", Price(2 * 10**9, 10**8, 10**10, 2_000_000, cache_write=2_500_000_000)),
        ("15/1.5/75", Price(15_000_000_000, 1_500_000_000, 75_000_000_000)),
        ("0/0/0", Price(0, 0, 0)),
        ("free", Price(0, 0, 0)),
    ],
)
def test_a_price_is_read_exactly(text, price):
    """0.0375 is not a double: read through one, a price would be off, and every bill with it."""
    assert Price.parse(text) == price


@given(PRICES)
def test_a_price_is_written_as_it_is_read(price):
    assert Price.parse(str(price)) == price
    assert Price.parse(price.in_full) == price
    assert len(price.in_full.split("/")) != 4, "what a file keeps is never an earlier version's P/C/O/R"
    assert price.free == str(price).startswith("free")


def test_a_price_says_who_stated_it():
    """A figure without a source cannot be checked; who said it does not change what it charges."""
    assert Price.parse("free").source == Price.parse("1/0.1/4").source == "stated by --price"
    assert Price(1, 2, 3, source="a page") == Price(1, 2, 3, source="another")


@each(
    "text",
    [
        "",
        "1",
        "1/2",
        "1/2/3/4/5/6",
        "1/2/3/-4",
        "1/2/3/",
        "1/2/",
        "//",
        "a/b/c",
        "1/0.1/four",
        "-1/0/0",
        "1/0.1/-0.000000001",
        "nan/0/0",
        "0/sNaN/0",
        "inf/0/0",
        "1/-inf/0",
        "1,5/0/0",
        "$1/0/0",
        "0.0000000001/0/0",
        "1e999999/0/0",
        "1e-999999/0/0",
        "1/0.1/4 per million",
        "Free",
        "unknown",
    ],
)
def test_what_is_no_price_is_refused_in_a_sentence_that_shows_one(text):
    with pytest.raises(UsageError, match=r"as 1/0\.1/4"):
        Price.parse(text)


@given(st.integers(0, 10**16))
def test_every_number_of_nano_dollars_can_be_written_and_read_back(nanousd):
    dollars, rest = divmod(nanousd, 10**9)
    assert usd_to_nanousd(f"{dollars}.{rest:09d}") == nanousd


@given(st.integers(0, 10**30), st.integers(1, 10**40))
def test_an_amount_is_read_exactly_or_not_at_all(whole, decimals):
    """Neither many digits before the point nor many after it may be rounded away in silence."""
    text = f"{whole}.{decimals}"
    exact = Fraction(text) * 10**9
    try:
        read = usd_to_nanousd(text)
    except UsageError:
        assume(exact.denominator != 1 or whole >= 10**15)  # what is whole and not absurd is never refused
        return
    assert read == exact


@given(PRICES, usages())
def test_a_request_costs_the_exact_sum_rounded_up_to_a_whole_nano_dollar(price, usage):
    usage = price.charged(usage)
    fresh = usage.prompt_tokens - usage.cached_tokens
    writes = fresh if usage.cache_write_tokens is None else usage.cache_write_tokens
    exact = (
        Fraction(fresh - writes) * price.prompt
        + Fraction(writes) * price.written_nanousd
        + Fraction(usage.cached_tokens) * price.cached_prompt
        + Fraction(usage.completion_tokens) * price.completion
    ) / 10**6
    cost = replace(price, repeated=None).cost(usage)
    assert type(cost) is int
    assert cost == math.ceil(exact) + price.request * usage.requests


def test_a_request_has_a_price_of_its_own_and_one_that_never_left_has_none():
    price = Price.parse("1/0.1/1/4/0.000003")
    assert price.cost(CloudUsage(1, 0)) == 1000 + 3000
    assert price.cost(CloudUsage(0, 1)) == 4000 + 3000
    assert price.cost(CloudUsage(1, 1, requests=3)) == 1000 + 4000 + 9000
    assert price.cost(NO_USAGE) == 0
    assert price.worst_case(1, 1) == 1000 + 4000 + 3000
    assert price.worst_case(1, 1, requests=3) == 1000 + 4000 + 9000


def test_a_price_that_charges_only_the_cache_writes_of_long_prompts_is_not_free():
    beyond = LongContext(100, 0, 0, 0, cache_write=1)
    assert not Price(0, 0, 0, long_context=beyond).free
    assert Price(0, 0, 0, long_context=LongContext(100, 0, 0, 0)).free


def test_a_single_token_of_the_cheapest_price_is_not_free():
    """Rounded down or to nearest, a million such requests would cost nothing."""
    assert Price(1, 0, 0).cost(CloudUsage(1, 0)) == 1
    assert Price(1, 0, 0).cost(CloudUsage(1_000_000, 0)) == 1
    assert Price(1, 0, 0).cost(CloudUsage(1_000_001, 0)) == 2
    assert Price(1, 0, 0).cost(CloudUsage(0, 0)) == 0


def test_prompt_cached_prompt_and_completion_have_their_own_prices():
    price = Price(7_000_000, 2_000_000, 11_000_000)
    assert price.cost(CloudUsage(100, 10, cached_tokens=60)) == 40 * 7 + 60 * 2 + 10 * 11


@given(LONG, usages(), st.integers(0, 1000), st.integers(0, 1000))
def test_no_request_within_its_limits_costs_more_than_the_worst_case(price, usage, more_prompt, more_limit):
    """Reserving the worst case is only safe if it is one, whatever the server cached."""
    prompt, limit = usage.prompt_tokens + more_prompt, usage.completion_tokens + more_limit
    worst = price.worst_case(prompt, limit, usage.requests)
    assert type(worst) is int
    assert price.cost(usage) <= worst


@given(LONG, st.integers(1, 100_000), st.integers(0, 10_000))
def test_the_worst_case_can_happen(price, prompt_tokens, limit):
    """Any higher, and money that could be spent would be held back."""
    dearest = (CloudUsage(prompt_tokens, limit, cached) for cached in (0, prompt_tokens))
    assert price.worst_case(prompt_tokens, limit) == max(map(price.cost, dearest))


@given(PRICES, st.lists(usages(), max_size=5), st.integers(0, 1000), st.integers(0, 1000))
def test_a_bill_adds_up_the_requests_beside_one_request_for_the_same_text(price, requests, prompt, answer):
    """With nothing of its prompt cached, and with all of it."""
    found = bill(price, requests, prompt, answer)
    assert found.nanousd == sum(price.cost(usage) for usage in requests)
    assert found.cloud_only_nanousd == price.cost(CloudUsage(prompt, answer, cached_tokens=0))
    assert found.cloud_only_cached_nanousd == price.cost(CloudUsage(prompt, answer, cached_tokens=prompt))
    assert found.price_source == price.source


@each(("prompt", "alone", "cached"), [(99, 99 * 2, 99 * 2), (100, 100 * 5, 100), (201, 201 * 7, 201 * 3)])
def test_the_cloud_alone_writes_its_prompt_to_the_cache_and_finds_it_there_where_it_is_long_enough(
    prompt, alone, cached
):
    """A comparison without the dearer writes would be no honest one."""
    prices = Price(2 * 10**6, 10**6, 10**7, cache_write=5 * 10**6, cache_min_tokens=100)
    long = LongContext(200, 4 * 10**6, 3 * 10**6, 10**7, 7 * 10**6)
    found = bill(replace(prices, long_context=long), [], prompt, 1)
    assert (found.cloud_only_nanousd, found.cloud_only_cached_nanousd) == (alone + 10, cached + 10)


def test_a_bill_without_a_price_is_unknown_and_not_zero():
    assert bill(None, [CloudUsage(10, 10)], 10, 10) == Bill(None, None)
    assert str(bill(None, [CloudUsage(10, 10)], 10, 10)) == "cost unknown: no price was stated"
    assert bill(Price.parse("free"), [CloudUsage(10, 10)], 10, 10) == Bill(0, 0, 0, "stated by --price")


def test_an_answer_that_asked_nothing_cost_nothing_at_any_price():
    assert bill(None, [], 10, 10) == Bill(0, None)
    assert str(bill(None, [], 10, 10)) == "0 USD (the cloud alone: unknown)"


def test_a_bill_is_read_with_what_the_cloud_alone_would_have_taken():
    paid = bill(Price.parse("1/0.1/4"), [CloudUsage(10, 1)], 10, 5)
    assert str(paid) == "0.000014 USD (the cloud alone: 0.00003 USD, with its prompt cached 0.000021 USD)"
    assert str(Bill(5, 7)) == "0.000000005 USD (the cloud alone: 0.000000007 USD)"


@given(st.integers(-(10**21), 10**21) | st.integers(-20, 20))
def test_an_amount_is_written_exactly_whatever_its_sign(nanousd):
    written = as_usd(nanousd).removesuffix(" USD")
    assert Fraction(written) * 10**9 == nanousd
    assert written.startswith("-") == (nanousd < 0)
