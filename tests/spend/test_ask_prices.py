"""A forecast of what asking costs is the bill of the price, of the experiments and of the break-even."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest
from cases import each, each_of

from hybrid.lab.experiments.frame import PRICES, SETTINGS, CountedRequest, ask_prices, cost
from hybrid.spend import TARIFFS, AskPrices, CheckRates, LongContext, Price, TokenTimes
from hybrid.types import CloudUsage

TIMES = TokenTimes(written_ms=20.0, scored_ms=0.5, reread_ms=0.01, check_ms=30.0)


def test_the_forecast_is_the_bill_of_the_experiments_in_every_setting():
    """Every small request behind every prefix that is known."""
    for setting, prices, prefix, count in each_of(product(SETTINGS, PRICES, (1, 2, 7, 40), (1, 3, 9))):
        ask = ask_prices(setting, prices)
        for known in each_of(range(prefix + 1)):
            check = CountedRequest("check", prefix + count, count, known, 1)
            write = CountedRequest("write", prefix, 0, known, count)
            assert ask.check(prefix, count, known) == pytest.approx(cost([check], setting, prices), abs=1e-9)
            assert ask.write(prefix, count, known) == pytest.approx(cost([write], setting, prices), abs=1e-9)


def told(prefix, known, shared):
    """The tokens that a server with a prefix cache tells: all it knows but the last, whose row is wanted."""
    return min(max(known, shared), prefix - 1)


@each("stated", [None, *TARIFFS])
@each("keeps_cache", [False, True])
def test_the_forecast_is_the_cost_of_the_price_up_to_its_rounding(stated, keeps_cache):
    price = Price.parse("0.7/0.3/0.7/3.1/0.000001" + (f":{stated}" if stated else ""))
    for prefix, count, shared in product((1, 2, 9), (1, 5), (0, 1, 4, 20)):
        ask = AskPrices.of(price, keeps_cache=keeps_cache, shared=shared)
        assert ask.unit == "nanousd"
        for known in each_of(range(prefix + 1)):
            cached = told(prefix, known, shared)
            if stated == "new":  # a session gives all that it has; earlier questions are told
                cached, repeated = min(max(known, shared), prefix), known
            else:
                repeated = min(known, prefix - 1)
            read = cached if stated in {"cached", "new"} or (stated is None and keeps_cache) else 0
            again = repeated if stated in {"cached", "new"} else 0
            check = CloudUsage(prefix + count, 1, read, 1, again, check_requests=1)
            write = CloudUsage(prefix, count, cached, 1, repeated)
            assert price.cost(check) - 1 < ask.check(prefix, count, known) <= price.cost(check) + 1e-6
            assert price.cost(write) - 1 < ask.write(prefix, count, known) <= price.cost(write) + 1e-6


TERMS = Price(
    *(700_000_000, 300_000_000, 3_100_000_000, 1_000),
    cache_write=900_000_000,
    cache_min_tokens=6,
    long_context=LongContext(12, 1_100_000_000, 400_000_000, 4_000_000_000, 1_300_000_000),
)


@each("stated", [None, *TARIFFS])
@each("keeps_cache", [False, True])
def test_the_forecast_knows_minimum_prefixes_cache_writes_and_long_contexts(stated, keeps_cache):
    """Of a prefix below six tokens nothing is cached or written; above twelve the whole request is dearer."""
    price, seen = replace(TERMS, repeated=stated), 0
    for prefix, count, shared in product((1, 2, 5, 6, 7, 9, 11, 12, 13, 20), (1, 4), (0, 4, 7)):
        ask = AskPrices.of(price, keeps_cache=keeps_cache, shared=shared)
        for known in each_of(range(prefix + 1)):
            most = min(max(known, shared if shared >= 6 else 0), prefix - (stated != "new"))
            cached = most if most >= 6 else 0
            repeated = {"cached": min(known, prefix - 1), "new": known}.get(stated, 0)
            reads = stated in {"cached", "new"} or (stated is None and keeps_cache)
            for asked, prompt, written in (("check", prefix + count, 1), ("write", prefix, count)):
                told = cached if asked == "write" or reads else 0
                told = min(told, repeated) if stated == "new" and told <= known else told
                fresh = prompt - max(told, repeated if stated == "new" else 0)
                writes = fresh if prompt >= 6 else 0
                checks = int(asked == "check")
                usage = CloudUsage(prompt, written, told, 1, repeated, checks, cache_write_tokens=writes)
                forecast = getattr(ask, asked)(prefix, count, known)
                assert price.cost(usage) - 1 < forecast <= price.cost(usage) + 1e-6, (asked, prefix, count, known)
                seen += 1
    assert seen > 500


def test_prices_with_bands_come_back_from_json_and_those_of_older_traces_too():
    ask = AskPrices.of(TERMS, keeps_cache=True, shared=7)
    assert AskPrices.from_json(json.loads(json.dumps(asdict(ask)))) == ask
    older = {name: value for name, value in asdict(AskPrices()).items() if name not in {"longer", "cache_min_tokens"}}
    assert AskPrices.from_json(older) == AskPrices()


def test_where_a_server_tells_no_cache_and_no_tariff_is_stated_nothing_is_forecast_as_cached():
    ask = AskPrices.of(Price.parse("1/0.1/4"), keeps_cache=True, tells_cache=False, shared=30)
    assert ask.write(40, 2, 35) == 40_000 + 8_000
    stated = AskPrices.of(Price.parse("1/0.1/4:cached"), tells_cache=False, shared=30)
    assert stated.write(40, 2, 35) == pytest.approx(5_000 + 3_500 + 8_000)


@each("stated", TARIFFS)
@each("in_one_request", [True, False])
def test_a_check_costs_what_the_break_even_is_computed_from(stated, in_one_request):
    """The prefix is known up to its last token, which corrected the span before."""
    price = Price.parse(f"1/0.1/1/4/0.000002:{stated}")
    ask = AskPrices.of(price, in_one_request=in_one_request)
    rates = CheckRates.of_price(price, in_one_request=in_one_request)
    for before, span in product((2, 70, 500), (1, 8)):
        from_rates = rates.reread * before + rates.drafted * span + rates.once
        row_wanted = 900 if stated == "cached" else 0  # the token whose row is wanted is computed
        assert ask.check(before, span, before - 1) == pytest.approx(from_rates + row_wanted)


def test_where_nothing_is_charged_time_decides_and_where_nothing_was_measured_one_to_a_tenth_to_four():
    """Whoever is not told by what choices are made cannot judge them."""
    for price, why in ((Price.parse("free"), "nothing is charged"), (None, "the price is not known")):
        measured, assumed = AskPrices.of(price, times=TIMES), AskPrices.of(price)
        assert (measured.unit, assumed.unit) == ("ms", "tokens")
        assert measured.note == (
            f"{why}: choices are made by the time that was measured, 0.5 ms a scored token and 20 ms a written one"
        )
        assert assumed.note == f"{why}: choices are made as if tokens read, cached and written cost 1 : 0.1 : 4"
        assert measured.check(101, 8, 101) == pytest.approx(100 * 0.01 + 9 * 0.5 + 30)
        assert measured.write(1, 8, 0) == pytest.approx(0.5 + 160 + 30)
        assert assumed.check(50, 8, 0) == 62
        assert assumed.write(50, 8, 41) == pytest.approx(4.1 + 9 + 32)
    assert AskPrices.of(Price.parse("1/0.1/4"), times=TIMES).note is None


def test_a_prefix_that_takes_as_long_as_a_scored_token_is_not_cached_for_checks():
    slow = AskPrices.of(None, times=TIMES._replace(reread_ms=0.45), keeps_cache=True)
    assert slow.check(100, 8, 100) == pytest.approx(108 * 0.5 + 30)
    assert slow.write(101, 8, 101) == pytest.approx(100 * 0.05 + 0.5 + 160 + 30)


def test_arrays_are_priced_place_by_place():
    at = np.arange(1, 30)
    terms = AskPrices.of(replace(TERMS, repeated="cached"), shared=7)
    for ask in (terms, *(ask_prices(setting, PRICES[0]) for setting in SETTINGS)):
        assert np.array_equal(ask.write(at, 3, 7), [ask.write(int(i), 3, 7) for i in at])
        assert np.array_equal(ask.check(at, 3, 7), [ask.check(int(i), 3, 7) for i in at])
