"""How likely a drafted token must be kept for checks to be cheaper than the cloud alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.policy import PolicyOptions, preset
from hybrid.spend import CheckRates, LongContext, Price, Spans, tokens_shown
from hybrid.spend.ask_prices import LONGEST_SPAN

# From a study with real texts: prompt tokens at 1, repeated ones at k, w a completion token; None: never.
PUBLISHED = [
    # k, L, and the break-even at w = 2, 4, 5, 8
    (0.1, 70, (0.965, 0.843, 0.785, 0.644)),
    (0.1, 570, (0.995, 0.973, 0.961, 0.923)),
    (0.1, 2000, (0.999, 0.992, 0.988, 0.976)),
    (1, 70, (0.996, 0.978, 0.968, 0.936)),
    (1, 570, (None, 0.998, 0.996, 0.991)),
    (0, 70, (0.811, 0.500, 0.400, 0.250)),
    (0, 2000, (0.811, 0.500, 0.400, 0.250)),
]
RATE = st.integers(0, 10)
EXACT = preset("greedy-exact", PolicyOptions())
PLAIN = {"cache_min_tokens": 0, "long_context": None}


def cheapest(rates, kept, before):
    """The least that a token of the text takes by checks, span by span; the naive sum of what is kept."""
    return min(
        (rates.reread * before + rates.drafted * span + rates.once) / sum(kept**i for i in range(span))
        for span in range(1, LONGEST_SPAN + 1)
    )


@given(st.floats(0.0, 1.0), st.integers(1, LONGEST_SPAN))
def test_a_token_is_shown_where_all_before_it_were_kept(kept, num):
    shown = tokens_shown(kept, num)
    assert len(shown) == num
    assert shown[-1] == pytest.approx(sum(kept**i for i in range(num)))
    assert shown[0] == 1.0, "the cloud's own, however few are kept"


@each(("reread", "before", "expected"), PUBLISHED)
def test_the_published_table_comes_out_within_its_rounding(reread, before, expected):
    found = [CheckRates(reread, 1, w, w).break_even(before) for w in (2, 4, 5, 8)]
    for ours, theirs in each_of(zip(found, expected, strict=True)):
        assert (ours is None) == (theirs is None)
        assert ours is None or abs(ours - theirs) <= 0.0006


@given(RATE, RATE, RATE, RATE, st.integers(0, 500))
def test_at_the_break_even_both_cost_the_same_below_it_checks_are_dearer_and_above_it_cheaper(k, d, c, w, before):
    rates = CheckRates(k, d, c, w)
    least = rates.break_even(before)
    if least is None:
        assert cheapest(rates, 1.0, before) >= w
        return
    assert 0.0 <= least <= 1.0
    assert cheapest(rates, min(1.0, least + 1e-6), before) < w
    if least > 1e-6:
        assert cheapest(rates, least - 1e-6, before) >= w * (1 - 1e-6)


@each(
    ("price", "keeps_cache", "rates"),
    [
        ("7/2/31", None, (7, 7, 31, 31)),
        ("7/2/31", False, (7, 7, 31, 31)),
        ("7/2/31", True, (2, 7, 31, 31)),
        ("7/2/31:uncached", True, (7, 7, 31, 31)),
        ("7/2/31:cached", False, (2, 7, 31, 31)),
        ("7/2/31:new", None, (0, 7, 7, 31)),
        ("7/2/7/31/0.000005:cached", None, (2, 7, 36, 31)),
    ],
)
def test_a_price_with_its_tariff_gives_the_rates_and_a_request_s_own_price_is_paid_for_every_check(
    price, keeps_cache, rates
):
    """Five nano-USD a thousand tokens' worth: a request's price counts once a check."""
    found = CheckRates.of_price(Price.parse(price), keeps_cache=keeps_cache)
    assert [each / 10**3 for each in (found.reread, found.drafted, found.once, found.written)] == list(rates)


def test_a_longer_text_and_a_dearer_tariff_ask_for_more_tokens_kept():
    at = [CheckRates.of_price(Price.parse(f"1/0.1/4:{each}")).break_even(70) for each in ("new", "cached", "uncached")]
    assert at == sorted(at)
    assert at[0] == 0.0 < at[1] < at[2] < 1.0
    rates = CheckRates.of_price(Price.parse("1/0.1/4"))
    assert rates.break_even(70) < rates.break_even(300)
    assert rates.break_even(5000) is None


def test_with_too_short_drafts_it_never_pays_and_with_too_long_ones_more_must_be_kept_than_with_the_best():
    """A check of eight tokens after seventy costs more than eight that the cloud writes."""
    rates = CheckRates.of_price(Price.parse("1/0.1/4"))
    lengths = (8, 26, 32, 64, 128, LONGEST_SPAN)
    shares = dict(zip(lengths, [rates.break_even(70, Spans(num)) for num in lengths], strict=True))
    assert shares[8] is None
    assert shares[26] > shares[32] > shares[64]
    assert rates.break_even(70, Spans(512)) > rates.break_even(70, Spans(256)), "a whole answer may be longer"
    best = rates.break_even(70)
    every = [rates.break_even(70, Spans(num)) for num in range(1, LONGEST_SPAN + 1)]
    assert best == pytest.approx(min(each for each in every if each is not None), abs=1e-9)
    new = CheckRates.of_price(Price.parse("1/0.1/4:new"))
    assert new.break_even(70) == new.break_even(70, Spans(2)) == 0.0
    assert new.break_even(70, Spans(64)) > 0.9, "what is drafted past a rejection is paid"


def test_below_the_minimum_prefix_nothing_is_cached_and_above_a_long_context_all_is_dearer():
    """The least share is that of the tariff without terms that holds at the length."""
    price = replace(Price.parse("2/0.1/2.5/10:cached"), cache_min_tokens=1024)
    price = replace(price, long_context=LongContext(9000, 4 * 10**9, 2 * 10**8, 20 * 10**9, 5 * 10**9))
    cold, warm = CheckRates.of_price(Price.parse("2/0.1/10:uncached")), CheckRates.of_price(replace(price, **PLAIN))
    long = CheckRates.of_price(Price.parse("4/0.2/5/20:cached"))
    found = CheckRates.of_price(price)
    for before, rates in ((70, cold), (1023, cold), (1024, warm), (9000, warm), (9001, long)):
        assert found.break_even(before) == rates.break_even(before), before
        parts = CheckRates.of_price(price, in_one_request=False)
        assert parts.break_even(before) is None, "each drafted token is written"
    assert found.break_even(1023) is None
    assert warm.reread == 100.0
    assert warm.drafted == 2500.0, "what is not cached is written"


def test_what_costs_nothing_is_never_beaten():
    assert CheckRates.of_price(Price.parse("free")).break_even(70) is None


# An exact rule's own, and one that halves what is turned down and never grows.
FOLLOWING = [
    Spans(EXACT.span, EXACT.next_span, EXACT.takes_bonus),
    Spans(32, lambda num, *, kept: 32 if kept else max(num // 2, 1)),
]


def played_out(rates, kept, before, spans, num=60_000):
    """What a token of a long text takes, check by check, as spans follow one another; each token kept by a coin."""
    coins, span, paid, shown = iter(np.random.default_rng(5).random(num) < kept), spans.first, 0.0, 0
    while True:
        told = list(itertools.islice(coins, span))
        if len(told) < span:
            return paid / shown
        num_kept = next((i for i, stands in enumerate(told) if not stands), span)
        paid += rates.reread * before + rates.drafted * span + rates.once
        shown += num_kept + (num_kept < span or spans.bonus)
        span = spans.following(span, kept=num_kept == span)


@each("spans", [Spans(4), Spans(16), Spans(64), Spans(64, bonus=True), *FOLLOWING])
def test_with_a_policy_s_spans_it_pays_as_a_text_played_out_does(spans):
    said = set()
    for reread, before, kept in each_of(
        itertools.product((0.0, 0.1, 1.0), (30, 300), (0.3, 0.6, 0.8, 0.9, 0.97, 0.995))
    ):
        rates = CheckRates(reread, 1, 4, 4)
        share = played_out(rates, kept, before, spans) / rates.written
        if abs(share - 1.0) > 0.03:
            pays = rates.pays(kept, before, spans)
            assert pays is (share < 1.0), (reread, before, kept, share)
            least = rates.break_even(before, spans)
            assert (least is not None and kept > least) is pays
            said.add(pays)
    assert said == {True, False}
