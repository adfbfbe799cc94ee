"""A tariff is the user's statement of how scored tokens and repeated prefixes are charged; a second hand agrees."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from tariff_account import STATED, Asked, TariffAccount

from hybrid.errors import UsageError
from hybrid.spend import TARIFFS, Price, PriceFile
from hybrid.types import CloudUsage

RATES = st.integers(0, 3_000_000)


def priced(stated, prompt=7, cached=2, completion=31, request=0):
    """The same price twice, in USD a million: ours and the second hand's."""
    ours = Price.parse(f"{prompt}/{cached}/{completion}/{request}" + (f":{stated}" if stated else ""))
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
    for stated in STATED:
        for before, after, repeated in pairs:
            price, second_hand = priced(stated)
            assert price.cost(usage_of(before, 0)) == second_hand.charge(before)
            assert price.cost(usage_of(after, repeated)) == second_hand.charge(after), (stated, before, after)


@given(rates=st.tuples(RATES, RATES, RATES, RATES), data=st.data())
def test_only_what_is_new_costs_no_more_than_cached_and_that_no_more_than_what_is_told_or_uncached(rates, data):
    dearer, cheaper = max(rates[:2]), min(rates[:2])
    prompt = data.draw(st.integers(0, 50))
    count = st.integers(0, prompt)
    usage = CloudUsage(prompt, data.draw(st.integers(0, 9)), data.draw(count), 1, data.draw(count), data.draw(count))
    new, cached, told, uncached = (
        Price(dearer, cheaper, *rates[2:], repeated=each).cost(usage) for each in ("new", "cached", None, "uncached")
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


# ---- how it is written -----------------------------------------------------------------------------------------------


@each("amounts", ["1/0.1/4", "1/0.1/4/0.002", "free"])
def test_a_tariff_is_read_behind_a_price_and_written_as_it_was_read(amounts):
    for stated in TARIFFS:
        price = Price.parse(f"{amounts}:{stated}")
        assert str(price) == f"{amounts}:{stated}"
        assert price.repeated == stated
        assert price != Price.parse(amounts)
    assert Price.parse(amounts).repeated is None


@each("text", ["1/0.1/4:", "1/0.1/4:warm", "1/0.1/4:new:new", ":new", "1/0.1:cached", "free:NEW"])
def test_what_is_no_tariff_is_refused_in_a_sentence_that_names_them(text):
    with pytest.raises(UsageError, match=r"as 1/0\.1/4\) or free, perhaps with :uncached, :cached, :new behind it"):
        Price.parse(text)


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
    for stated in TARIFFS:
        assert read(tmp_path / "prices.toml", f'repeated = "{stated}"') == Price.parse(f"1/0.1/4:{stated}")
    assert read(tmp_path / "prices.toml") == Price.parse("1/0.1/4")


@each("value", ['"warm"', '""', "true", "3", '["new"]'])
def test_what_is_no_tariff_in_a_price_file_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(UsageError, match=r"entry 1: repeated: .* is not uncached, cached or new"):
        read(tmp_path / "prices.toml", f"repeated = {value}")
