"""A tariff is the user's statement of how scored tokens and repeated prefixes are charged; a second hand agrees."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from tariff_account import STATED, Asked, TariffAccount

from hybrid.errors import UsageError
from hybrid.spend import TARIFFS, LongContext, Price, PriceFile, usd_to_nanousd
from hybrid.types import CloudUsage, num_shared

RATES = st.integers(0, 3_000_000)


def priced(stated, prompt=7, cached=2, completion=31, request=0):
    """The same price twice, in USD a million: ours and the second hand's."""
    ours = Price.parse(f"{prompt}/{cached}/{prompt}/{completion}/{request}" + (f":{stated}" if stated else ""))
    return ours, TariffAccount(*map(Fraction, (prompt, cached, completion, request)), stated=stated)


def usage_of(asked, repeated):
    """What a client knows of a request, which is told as many cached tokens."""
    requests = asked.http_requests
    return CloudUsage(len(asked.prompt), asked.written, asked.told, requests, repeated, requests * asked.check)


def every_pair():
    """Every two requests in a row: an answered or failed one of 0 to 3 tokens, and one that shares some of them."""
    firsts = product((False, True), (True, False), range(4))
    seconds = product((False, True), range(4), range(4), range(3), (1, 2))
    for (check, answered, length), (again, shared, more, written, requests) in product(firsts, seconds):
        before = Asked((1,) * length, 1, check, answered=answered)
        prompt = (1,) * min(shared, length) + (2,) * more
        for told in range(len(prompt) + 1):
            yield before, Asked(prompt, written, again, told, http_requests=requests), min(shared, length) * answered


def test_every_request_after_any_other_is_charged_as_the_second_hand_says():
    """All pairs of small requests, under each tariff: 15,000 charges, none of them within a rounding of another."""
    pairs = list(every_pair())
    assert len(pairs) > 3_000
    for stated in each_of(STATED):
        for before, after, repeated in each_of(pairs):
            price, second_hand = priced(stated)
            assert price.cost(usage_of(before, 0)) == second_hand.charge(before)
            assert price.cost(usage_of(after, repeated)) == second_hand.charge(after), (stated, before, after)


@given(rates=st.tuples(RATES, RATES, RATES, RATES), data=st.data())
def test_only_what_is_new_costs_no_more_than_cached_and_that_no_more_than_what_is_told_or_uncached(rates, data):
    dearer, cheaper = max(rates[:2]), min(rates[:2])
    prompt = data.draw(st.integers(0, 50))
    count = st.integers(0, prompt)
    usage = CloudUsage(prompt, data.draw(st.integers(0, 9)), data.draw(count), 1, data.draw(count), data.draw(count))
    writes = data.draw(st.none() | st.integers(0, prompt - usage.cached_tokens))
    usage, written = replace(usage, cache_write_tokens=writes), dearer + data.draw(RATES)
    new, cached, told, uncached = (
        Price(dearer, cheaper, *rates[2:], repeated=each, cache_write=written).cost(usage)
        for each in ("new", "cached", None, "uncached")
    )
    assert new <= cached <= told <= uncached


@given(st.tuples(RATES, RATES, RATES, RATES), st.integers(0, 99), st.integers(0, 9), st.booleans())
def test_the_first_request_of_an_answer_costs_the_same_but_for_the_token_that_a_check_must_ask_for(
    rates, prompt, written, check
):
    """Nothing was sent before it, so nothing is repeated."""
    first = CloudUsage(prompt, written, check_requests=int(check))
    costs = {stated: Price(*rates, repeated=stated).cost(first) for stated in STATED}
    assert costs[None] == costs["uncached"] == costs["cached"]
    free = int(check and written > 0)
    assert costs["new"] == Price(*rates).cost(CloudUsage(prompt, written - free))


@given(st.integers(0, 99), st.integers(0, 9), st.integers(0, 99), st.data())
def test_without_a_tariff_the_client_s_own_knowledge_changes_no_charge(prompt, written, told, data):
    """Nobody stated how what is repeated is charged, so no less is charged than the server tells."""
    bare = CloudUsage(prompt, written, min(told, prompt))
    known = CloudUsage(prompt, written, min(told, prompt), 1, data.draw(st.integers(0, prompt)), 1)
    price = Price(7_000_000, 2_000_000, 11_000_000)
    assert price.cost(known) == price.cost(bare)


def test_what_the_server_had_cached_beyond_what_was_repeated_keeps_the_cached_price():
    """Ten tokens: three were sent before, and the server says that it had five."""
    usage = CloudUsage(10, 0, cached_tokens=5, repeated_tokens=3)
    costs = {stated: priced(stated)[0].cost(usage) for stated in STATED}
    assert costs[None] == costs["cached"] == (5 * 7 + 5 * 2) * 1000
    assert costs["new"] == (5 * 7 + 2 * 2) * 1000


# ---- what is written to a cache, minimum prefixes, long contexts -----------------------------------------------------

USD = st.integers(0, 40)


@st.composite
def price_lists(draw):
    """A price with all terms that change a charge, ours and the second hand's; C <= P <= W, and no less beyond N."""

    def amounts():
        cached, prompt, write = sorted(draw(st.tuples(USD, USD, USD)))
        return prompt, cached, draw(USD), write

    here = amounts()
    there = tuple(map(sum, zip(here, amounts(), strict=True)))
    least, above, stated = draw(st.integers(0, 4)), draw(st.none() | st.integers(0, 5)), draw(st.sampled_from(STATED))
    stated_write = draw(st.booleans())
    here, there = (each if stated_write else (*each[:3], each[0]) for each in (here, there))
    nano = 10**9
    beyond = None if above is None else LongContext(above, *(usd * nano for usd in there))
    ours = Price(
        *(usd * nano for usd in here[:3]),
        request=3,
        repeated=stated,
        cache_write=here[3] * nano if stated_write else None,
        cache_min_tokens=least,
        long_context=beyond if stated_write or beyond is None else replace(beyond, cache_write=None),
    )
    write = Fraction(here[3]) if stated_write else None
    far = None if above is None else (above, tuple(map(Fraction, there)))
    return ours, TariffAccount(*map(Fraction, here[:3]), Fraction(3, 10**9), stated, write, least, far)


@st.composite
def requests(draw):
    prompt = tuple(draw(st.lists(st.integers(0, 1), max_size=7)))
    told = draw(st.integers(0, len(prompt)))
    writes = draw(st.none() | st.integers(0, len(prompt) - told))
    check, answered = draw(st.booleans()), draw(st.booleans())
    return Asked(prompt, draw(st.integers(0, 3)), check, told, answered, draw(st.integers(1, 2)), writes)


@given(price_lists(), st.lists(requests(), min_size=1, max_size=4))
def test_a_prompt_token_is_charged_as_cached_written_or_neither_as_the_second_hand_says(prices, answer):
    """Every term of a price with every tariff: minimum prefixes, writes that are told or not, a long context."""
    price, second_hand = prices
    before = []
    for asked in each_of(answer):
        repeated = max((num_shared(asked.prompt, each) for each in before), default=0)
        known = replace(usage_of(asked, repeated), cache_write_tokens=asked.writes)
        charge = second_hand.charge(asked)
        assert price.cost(known) == charge
        assert charge <= price.worst_case(len(asked.prompt), asked.written, asked.http_requests)
        before += [asked.prompt] * asked.answered


def test_a_prompt_that_was_written_to_the_cache_costs_a_quarter_more_and_a_server_that_does_not_tell_is_no_excuse():
    """49 tokens at 2/0.1/2.5/10: what is reserved covers what two large providers charge today."""
    price = Price.parse("2/0.1/2.5/10")
    told = {writes: price.cost(CloudUsage(49, 1, cache_write_tokens=writes)) for writes in (None, 49, 9, 0)}
    assert told == {None: 132_500, 49: 132_500, 9: 112_500, 0: 108_000}
    assert price.worst_case(49, 1) == 132_500
    assert price.cost(CloudUsage(49, 1, 40, cache_write_tokens=0)) == 18_000 + 4_000 + 10_000


def test_what_cannot_have_been_written_to_a_cache_is_not_charged_as_if_it_were():
    """Of a prompt below the minimum; one that an answer repeats counts whole, whatever is left to be charged."""
    price = replace(Price.parse("2/0.1/2.5/10:new"), cache_min_tokens=40)
    assert price.cost(CloudUsage(39, 0)) == 78_000
    assert price.cost(CloudUsage(40, 0)) == 100_000
    assert price.cost(CloudUsage(40, 0, repeated_tokens=38)) == 5_000
    assert price.worst_case(39, 0) == 97_500, "a server that writes it all the same charges for that"


def test_a_long_context_has_other_prices_for_the_whole_request():
    price = Price(2, 1, 10, cache_write=3, long_context=LongContext(100, 4, 2, 20, 6))
    million = 1_000_000
    assert price.cost(CloudUsage(100, 1, 40, cache_write_tokens=0)) == -(-(60 * 2 + 40 + 10) // million)
    assert price.at(100).written_nanousd == 3
    assert price.at(101) == Price(4, 2, 20, cache_write=6)
    assert price.worst_case(101 * million, million) == 101 * 6 + 20
    assert price.worst_case(100, million) == 11, "ten for the completion, and one begun by 100 tokens"


@given(price_lists(), st.integers(0, 12), st.integers(0, 9), st.integers(0, 5), st.integers(0, 5))
def test_no_bound_on_a_prompt_costs_less_than_a_lower_one(prices, prompt, limit, more, longer):
    price, _ = prices
    assert price.worst_case(prompt, limit) <= price.worst_case(prompt + more, limit + longer)


# ---- how it is written -----------------------------------------------------------------------------------------------


@each("amounts", ["1/0.1/4", "1/0.1/1/4/0.002", "2/0.1/2.5/10", "2/0.1/2.5/10/0.002", "free"])
def test_a_tariff_is_read_behind_a_price_and_written_as_it_was_read(amounts):
    for stated in each_of(TARIFFS):
        price = Price.parse(f"{amounts}:{stated}")
        assert str(price) == f"{amounts}:{stated}"
        assert price.repeated == stated
        assert price != Price.parse(amounts)
    assert Price.parse(amounts).repeated is None


@each("text", ["1/0.1/4:", "1/0.1/4:warm", "1/0.1/4:new:new", ":new", "1/0.1:cached", "free:NEW"])
def test_what_is_no_tariff_is_refused_in_a_sentence_that_names_them(text):
    with pytest.raises(UsageError, match=r"as 1/0\.1/4\) or free, perhaps with :uncached, :cached, :new behind it"):
        Price.parse(text)


@each(
    ("text", "spellings"),
    [
        ("1/0.1/4/0.002", ("1/0.1/1/4/0.002", "1/0.1/4/0.002/0")),
        ("0/0/0/0.5:new", ("0/0/0/0/0.5:new", "0/0/0/0.5/0:new")),
        ("3/0.15/3/15", ("3/0.15/3/3/15", "3/0.15/3/15/0")),
        ("3/0.15/2/15", ("3/0.15/3/2/15",)),
    ],
)
def test_four_parts_that_may_be_an_earlier_versions_fee_per_request_are_refused_with_both_spellings(text, spellings):
    """Read as P/C/W/O, a price with a fee of 0.002 USD would be a completion of 0.002: a cap would not hold."""
    with pytest.raises(UsageError, match=r"P/C/W/O.* may be P/C/O/R") as found:
        Price.parse(text)
    for spelling in each_of(spellings):
        assert spelling in str(found.value)
        assert Price.parse(spelling).repeated == ("new" if "new" in text else None)
    assert Price.parse(spellings[0]).request == usd_to_nanousd(text.split(":")[0].split("/")[3])


@given(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), st.integers(0, 30))
def test_no_price_of_an_earlier_version_is_read_as_another_unless_a_request_costs_as_much_as_a_million_tokens(old, fee):
    prompt, cached, completion = old
    text = f"{prompt}/{cached}/{completion}/{fee}"
    if fee >= completion > prompt > 0:
        price = Price.parse(text)
        assert (price.cache_write, price.completion, price.request) == (completion * 10**9, fee * 10**9, 0)
    else:
        with pytest.raises(UsageError, match=f"write {prompt}/{cached}/{prompt}/{completion}/{fee} if the last is USD"):
            Price.parse(text)


def test_a_price_of_writes_below_the_prompts_is_refused():
    with pytest.raises(UsageError, match=r"written to the cache \(0\.5\) costs no less than another"):
        Price.parse("1/0.1/0.5/4/0")


ENTRY = """
[[price]]
endpoint = "http://gpu:8000"
model = "large-1"
prompt = 1
cached_prompt = 0.1
completion = 4
source = "a page"
"""


def read(path, more=""):
    path.write_text(ENTRY + more, encoding="utf-8")
    return PriceFile.read(path).price("http://gpu:8000", "large-1")


def test_a_price_file_states_a_tariff_by_its_name_and_one_without_is_read_as_before(tmp_path):
    for stated in each_of(TARIFFS):
        assert read(tmp_path / "prices.toml", f'repeated = "{stated}"') == Price.parse(f"1/0.1/4:{stated}")
    assert read(tmp_path / "prices.toml") == Price.parse("1/0.1/4")


@each("value", ['"warm"', '""', "true", "3", '["new"]'])
def test_what_is_no_tariff_in_a_price_file_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(UsageError, match=r"entry 1: repeated: .* is not uncached, cached or new"):
        read(tmp_path / "prices.toml", f"repeated = {value}")
