"""What asking costs depends on what this client has sent before, and on nothing that it has not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each

from hybrid.cloud import Capabilities
from hybrid.pairs.timings import BLOCK, PromptCacheTracker, block_tokens
from hybrid.spend import TARIFFS, Price, TokenTimes
from hybrid.types import CloudUsage

TELLS, UNKNOWN = Capabilities("m", keeps_cache=True, tells_cache=True), Capabilities("m")
PRICE = Price.parse("1/0.1/4")


def test_a_prefix_counts_as_cached_once_a_question_with_it_was_sent_to_an_endpoint_that_has_a_cache():
    first, second = tuple(range(3 * BLOCK)), (*range(2 * BLOCK + 5), 9999, 9998)
    terms = PromptCacheTracker()
    assert terms.shared(second, TELLS) == 0
    terms.add(first)
    assert terms.shared(second, TELLS) == 2 * BLOCK, "whole blocks"
    assert terms.shared(second, replace(UNKNOWN, tells_cache=True)) == 2 * BLOCK
    assert terms.shared(second, UNKNOWN) == terms.shared(second, None) == 0
    assert terms.shared((1, *second), TELLS) == 0


def test_a_prefix_that_is_too_short_for_the_cache_or_that_it_has_forgotten_is_not_cached():
    now = [0.0]
    terms, prompt = PromptCacheTracker(lambda: now[0]), tuple(range(5 * BLOCK))
    price = replace(PRICE, cache_min_tokens=3 * BLOCK, cache_lifetime_s=300)
    terms.add(prompt)
    assert terms.shared(prompt, TELLS, price) == 5 * BLOCK
    assert terms.shared((*prompt[: 3 * BLOCK], 9999), TELLS, price) == 3 * BLOCK
    assert terms.shared((*prompt[: 3 * BLOCK - 1], 9999), TELLS, price) == 0, "too short"
    assert terms.shared((*prompt[: 3 * BLOCK - 1], 9999), TELLS, PRICE) == 2 * BLOCK
    now[0] = 299.0
    assert terms.prices(prompt, price, TELLS, None).shared == 5 * BLOCK
    now[0] = 300.0
    assert terms.prices(prompt, price, TELLS, None).shared == 0, "forgotten"
    assert terms.prices(prompt, PRICE, TELLS, None).shared == 5 * BLOCK, "nobody says for how long it is kept"
    terms.add(prompt)
    now[0] = 599.0
    assert terms.shared(prompt, TELLS, price) == 5 * BLOCK, "read again at 300"


def test_the_prices_are_those_of_the_endpoint_with_what_is_shared():
    terms, prompt = PromptCacheTracker(), tuple(range(4 * BLOCK))
    terms.add(prompt)
    found = terms.prices(prompt, PRICE, TELLS, None)
    assert (found.scoring, found.shared, found.unit, found.in_one_request) == ("cached", 4 * BLOCK, "nanousd", True)
    found = terms.prices(prompt, PRICE, Capabilities("m", scoring_method="forced"), None)
    assert (found.scoring, found.shared, found.in_one_request) == ("uncached", 0, False)
    assert terms.prices(prompt, None, None, None).note is not None


@each("tells", [None, False, True])
@each("tariff", [None, *TARIFFS])
def test_a_token_that_was_sent_before_is_priced_in_full_unless_it_is_told_as_cached_or_a_tariff_says_so(tells, tariff):
    """The endpoint of the demonstration, and vLLM as it comes, tell nothing: a request pays for its whole prompt."""
    price, can = Price.parse("1/0.1/4" + (f":{tariff}" if tariff else "")), replace(TELLS, tells_cache=tells)
    terms, prompt = PromptCacheTracker(), tuple(range(2 * BLOCK))
    terms.add(prompt)
    for reachable in (can, None):
        told = bool(reachable and tells)
        found = terms.prices(prompt, price, reachable, None)
        for known in (0, 1, 200, 299):
            shared = min(max(known, 2 * BLOCK), 299) if told else 0
            repeated = known if tariff in {"cached", "new"} else 0
            cached = max(known if told else 0, shared)
            usage = CloudUsage(300, 8, cached, 1, repeated_tokens=repeated)
            assert found.write(300, 8, known) == pytest.approx(price.cost(usage), abs=1)


@each("price", [None, Price.parse("free")])
def test_time_is_saved_by_a_cache_whether_it_is_told_or_not(price):
    terms, times = PromptCacheTracker(), TokenTimes(20.0, 0.5, 0.01, 30.0)
    for measured in (times, None):
        silent, told = (
            terms.prices((1,), price, replace(TELLS, tells_cache=tells), measured) for tells in (False, True)
        )
        assert silent == told
        assert silent.write(100, 1, 99) < silent.write(100, 1, 0)


def test_a_block_is_what_is_drafted_in_the_time_and_a_little_noise_decides_nothing():
    for patience in (0.1, 1.0, 2.0, 10.0):
        for ms in (0.01, 1.0, 17.0, 400.0, 1e5):
            tokens = block_tokens(patience, ms)
            assert tokens == 1 or tokens * ms <= 1000 * patience
            assert tokens >= 2**20 or 2 * tokens * ms > 1000 * patience, "the longest of them"
            assert tokens.bit_count() == 1
