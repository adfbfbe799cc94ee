"""What asking costs depends on what this client has sent before, and on nothing that it has not seen."""

from __future__ import annotations

from hybrid.cloud import Capabilities
from hybrid.run.endpoint_terms import EndpointTerms, block_tokens
from hybrid.run.events import RequestSent, RequestSettled, Started
from hybrid.run.span_tuner import BLOCK
from hybrid.spend import Price
from hybrid.types import CloudUsage

CACHES, UNKNOWN = Capabilities("m", keeps_cache=True), Capabilities("m")
PRICE = Price.parse("1/0.1/4")


def ask(terms, prompt, *, sent=True, cached=0):
    terms.observe(Started(prompt, "auto"))
    if sent:
        terms.observe(RequestSent("r", "check", 0, 4, 100))
        terms.observe(RequestSettled("r", "check", CloudUsage(len(prompt), 1, cached), 100, 1.0))


def test_a_prefix_counts_as_cached_once_a_question_with_it_was_sent_and_the_cache_was_seen_to_be_read():
    first, second = tuple(range(3 * BLOCK)), (*range(2 * BLOCK + 5), 9999, 9998)
    terms = EndpointTerms()
    assert terms.shared(second, CACHES) == 0
    ask(terms, first, sent=False)
    assert terms.shared(second, CACHES) == 0, "it was answered without a request"
    ask(terms, first)
    assert terms.shared(second, CACHES) == 2 * BLOCK, "whole blocks"
    assert terms.shared(second, UNKNOWN) == terms.shared(second, None) == 0
    assert terms.shared((1, *second), CACHES) == 0
    ask(terms, (7, 8), cached=1)
    assert terms.shared(second, UNKNOWN) == 2 * BLOCK, "told by the charge of another question"


def test_the_prices_are_those_of_the_endpoint_with_what_is_shared():
    terms, prompt = EndpointTerms(), tuple(range(4 * BLOCK))
    ask(terms, prompt)
    found = terms.prices(prompt, PRICE, CACHES, None)
    assert (found.scoring, found.shared, found.unit, found.in_one_request) == ("cached", 4 * BLOCK, "nanousd", True)
    found = terms.prices(prompt, PRICE, Capabilities("m", scoring_method="forced"), None)
    assert (found.scoring, found.shared, found.in_one_request) == ("uncached", 0, False)
    assert terms.prices(prompt, None, None, None).note is not None


def test_a_block_is_what_is_drafted_in_the_time_and_a_little_noise_decides_nothing():
    for patience in (0.1, 1.0, 2.0, 10.0):
        for ms in (0.01, 1.0, 17.0, 400.0, 1e5):
            tokens = block_tokens(patience, ms)
            assert tokens == 1 or tokens * ms <= 1000 * patience
            assert tokens >= 2**20 or 2 * tokens * ms > 1000 * patience, "the longest of them"
            assert tokens.bit_count() == 1
