"""A price file with every field of today's tariffs, held against a chat service that charges by them.

For each request: charged by the service <= booked in the ledger <= reserved before it left (``test_counted_chat``).
"""

from __future__ import annotations

import itertools

import pytest
from asked_money import QUESTIONS, Asker, RelayCaller, books
from cases import each
from chat_kinds import Kind, Tariff, normalised, silent
from counting_chat import MODEL, CountingChat

ROUTES = [(Asker, {}), (RelayCaller, {"stream": True})]
CONVERSATIONS = (QUESTIONS, QUESTIONS[:2])
LEAST = 40  # tokens below which nothing is cached
FILE = """
[[price]]
endpoint = "{url}/v1"
model = "{model}"
prompt = 1
cached_prompt = 0.05
cache_write = 1.25
completion = 5
request = 0.00001
cache_min_tokens = 40
cache_lifetime_s = 300
batch = 0.5
long_context = {{above_tokens = {above}, prompt = 2, cached_prompt = 0.1, cache_write = 2.5, completion = 10}}
source = "invented for a test, 2026-11-24"
"""
SERVICES = {
    "writes are told": Kind(cache_from=LEAST),
    "writes are not told": Kind(cache_from=LEAST, tell=silent),
    "nothing is cached": Kind(),
    "thoughts": Kind(cache_from=LEAST, thoughts=9),
    "thoughts that leave no room": Kind(cache_from=LEAST, thoughts=10**6),
    "NFC": Kind(cache_from=LEAST, count=normalised("NFC")),
    "two prompts for two answers": Kind(prompt_per_choice=True),
}
ABOVE = [30, 70, 330, 10**6]  # short prompts, some turns, turns with tools, none


@pytest.fixture
def found(tmp_path):
    """Hold conversations with a service under a price file; return their books."""
    numbers = itertools.count()

    def ask(kind, above, route, **settings):
        caller, body = route
        tariff = Tariff("1", "0.05", "5", "1.25", request="0.00001", long=above)
        path = tmp_path / f"ledger-{next(numbers)}.sqlite"
        with CountingChat(kind, tariff) as cloud:
            prices = path.with_suffix(".toml")
            prices.write_text(FILE.format(url=cloud.url, model=MODEL, above=above))
            body = body | ({"n": 2} if kind.prompt_per_choice and body else {})
            return books(
                cloud, path, CONVERSATIONS, caller=caller, body=body, price=None, prices=str(prices), **settings
            )

    return ask


def check(books_of):
    assert len(books_of.served) == len(books_of.bookings) == len(QUESTIONS) + 2
    for booking, served in zip(books_of.bookings, books_of.served, strict=True):
        assert 10_000 < served.nanousd <= booking.booked <= booking.reserved, served.number


@each(("service", "route"), zip(["writes are told", "writes are not told"], ROUTES, strict=True))
def test_whatever_a_tariff_charges_was_reserved(found, service, route):
    check(found(SERVICES[service], ABOVE[1], route))


@pytest.mark.slow
@each("number", range(2 * len(SERVICES)))
def test_whatever_any_tariff_charges_was_reserved(found, number):
    """Each service twice: by the client and relayed, between them at every beginning of the dearer prices."""
    name = sorted(SERVICES)[number // 2]
    check(found(SERVICES[name], ABOVE[(number // 2 + number) % len(ABOVE)], ROUTES[number % 2]))


@each("above", [ABOVE[1], ABOVE[-1]])
def test_what_a_service_tells_whole_is_booked_to_the_nano_dollar(found, above):
    books_of = found(SERVICES["writes are told"], above, (Asker, {}))
    told = [booking.booked for booking in books_of.bookings]
    assert told == [served.nanousd for served in books_of.served]
    assert any(served.written for served in books_of.served)
    assert any(served.cached for served in books_of.served)


def test_no_cap_is_passed_where_the_prompt_crosses_into_long_context(found):
    for cap in (1_500_000, 6_000_000):
        books_of = found(SERVICES["thoughts that leave no room"], 60, (Asker, {}), cap=cap, together=True, parallel=8)
        assert books_of.truth <= books_of.spent <= cap
