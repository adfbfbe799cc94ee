"""What a chat service charges, tells or leaves untold, asked by the client and relayed by ``hybrid serve``.

``counting_chat`` computes, charges and lies as its kind says; it and these laws were written from the promises, not
from the code. For each request: charged by the service <= booked in the ledger <= reserved before it left.
"""

from __future__ import annotations

import itertools
import random

import pytest
from asked_money import LIMIT, QUESTIONS, Asker, RelayCaller, books
from cases import each, each_of
from chat_kinds import BROKEN, HONEST, KINDS, MISSING, NAN, Kind, Tariff, usage_of
from counting_chat import CountingChat

ROUTES = [(Asker, {}), (RelayCaller, {}), (RelayCaller, {"stream": True})]
QUICK = {"honest", "high"}
WRITES = {"tariff": Tariff(write="1.25"), "price": "1/0.1/1.25/4"}
BY_KIND = {"writes": WRITES, "writes, minimum": WRITES}
USD = 10**9
# Characters whose normal forms have more bytes: composed Greek and Hangul, musical signs, ligatures of words.
LONGER = "\U0001d160\u0958\u2adc\ud55c\uad6d\u0390\u1f82\ufdfa\ufdfb\ufb03\u3300\u00e9e\u0301 a"


@pytest.fixture
def money(tmp_path):
    """Hold conversations with a service of a kind; return its books."""
    numbers = itertools.count()

    def ask(kind, conversations=(QUESTIONS,) * 2, route=(Asker, {}), **settings):
        known = BY_KIND.get(kind, {}) if isinstance(kind, str) else {}
        tariff = settings.pop("tariff", known.get("tariff"))
        settings = {name: value for name, value in known.items() if name != "tariff"} | settings
        caller, body = route
        with CountingChat(kind, tariff) as cloud:
            path = tmp_path / f"ledger-{next(numbers)}.sqlite"
            body = settings.pop("body", {}) | body
            return books(cloud, path, conversations, caller=caller, body=body, **settings)

    return ask


def alternating(kinds):
    """Each of them by the client, and by one of the two ways to relay."""
    return [(kind, route) for i, kind in enumerate(kinds) for route in (ROUTES[0], ROUTES[1 + i % 2])]


def per_prompt(kind):
    """Nano-USD a prompt token may cost at most."""
    return 1250 if kind in BY_KIND else 1000


def check_honest(found, kind):
    assert found.served
    assert len(found.bookings) == len(found.served)
    for booking, served in zip(found.bookings, found.served, strict=True):
        assert served.nanousd <= booking.booked <= booking.reserved, (kind, served.number)
    assert found.spent == sum(booking.booked for booking in found.bookings)


def check_prompt_part(found, kind):
    """Item 4: what the service has counted already is reserved as counted."""
    check_honest(found, kind)
    assert found.median_ratio(per_prompt(kind)) <= 3.0, kind


@each(("kind", "route"), [("honest", ROUTES[0]), ("high", ROUTES[0]), ("honest", ROUTES[1])])
def test_a_conversation_is_reserved_within_three_times_what_it_is_told(money, kind, route):
    check_prompt_part(money(kind, route=route), kind)


@pytest.mark.slow
@each(("kind", "route"), alternating(sorted({*HONEST, "high"} - QUICK - {"429 first", "reset first"})))
def test_a_conversation_with_any_honest_service_is_reserved_within_three_times(money, kind, route):
    check_prompt_part(money(kind, [QUESTIONS, QUESTIONS[:2]], route), kind)


@each(("kind", "route"), [("absent", ROUTES[0]), ("absent", ROUTES[1]), ("cut", ROUTES[0]), ("cut", ROUTES[2])])
def test_what_is_not_told_is_booked_as_its_bound(money, kind, route):
    check_bound(money, kind, route)


@pytest.mark.slow
@each(("kind", "route"), alternating(["null", *BROKEN[1:]]))
def test_what_is_told_in_no_way_is_booked_as_its_bound(money, kind, route):
    check_bound(money, kind, route)


def check_bound(money, kind, route):
    found = money(kind, [(question,) for question in QUESTIONS[:2]], route)
    assert found.served
    for booking, served in zip(found.bookings, found.served, strict=True):
        assert served.nanousd <= booking.booked == booking.reserved, kind


PARTS = [
    f"{kind}_{side}_tokens"
    for kind in ("cloud_told", "cloud_known", "cloud_assumed")
    for side in ("prompt", "completion")
]


@each(
    ("kind", "told", "known", "assumed"),
    [
        ("honest", True, False, False),
        ("high", True, False, False),
        ("low", True, True, False),
        ("absent", False, True, True),
        ("cut", False, True, True),
        ("reset", False, False, True),
        ("zero", True, False, True),
    ],
)
def test_a_usage_says_what_was_told_what_is_known_and_what_is_assumed(money, kind, told, known, assumed):
    found = money(kind, [QUESTIONS[:1]], body={"max_tokens": 40})
    usage, served, booking = found.answers[0].usage, found.served[0], found.bookings[0]
    parts = {name: getattr(usage, name) for name in PARTS}
    sums = [sum(parts[name] for name in PARTS if side in name) for side in ("prompt", "completion")]
    assert sums == [usage.cloud_prompt_tokens, usage.cloud_completion_tokens]
    assert booking.booked == 1000 * sums[0] + 4000 * sums[1]
    assert bool(parts["cloud_told_prompt_tokens"] + parts["cloud_told_completion_tokens"]) == told
    assert bool(parts["cloud_assumed_prompt_tokens"] + parts["cloud_assumed_completion_tokens"]) == assumed
    said = served.told if isinstance(served.told, dict) else {}
    assert parts["cloud_told_prompt_tokens"] <= said.get("prompt_tokens", 0)
    assert parts["cloud_told_completion_tokens"] <= said.get("completion_tokens", 0)
    assert parts["cloud_known_completion_tokens"] <= len(served.deltas)
    assert bool(parts["cloud_known_completion_tokens"]) == known


@each("route", ROUTES)
def test_a_total_that_cannot_be_leaves_the_endpoint_open(money, route):
    beyond = Kind(tell=lambda served: {**usage_of(served), "total_tokens": 9999})
    assert len(money(beyond, [QUESTIONS[:2]], route).served) == 2


def test_an_answer_that_the_cap_has_shortened_says_so(money):
    found = money("honest", [(f"What is {number} + 86?",) for number in range(20)], cap=1_500_000)
    limits = [served.body["max_tokens"] for served in found.served]
    assert len(limits) == 20
    assert min(limits) < max(limits) == LIMIT
    for limit, answer in each_of(zip(limits, found.answers, strict=True)):
        assert any("short" in note or str(limit) in note for note in answer.notes) == (limit < LIMIT)


@each("route", ROUTES[::2])
def test_a_usage_below_the_deltas_that_came_is_raised_to_them(money, route):
    limits = {"body": {"max_tokens": 40}}
    found = money("low", [QUESTIONS[:2]], route, **limits)
    assert [len(served.deltas) for served in found.served] == [31, 31]
    for booking, served in each_of(zip(found.bookings, found.served, strict=True)):
        assert booking.booked >= 1000 * served.prompt + 4000 * 31
        assert booking.booked <= booking.reserved


@each(("form", "route"), [("NFC", ROUTES[0]), ("NFKD", ROUTES[1])])
def test_an_honest_tokenizer_that_normalises_stays_within_what_was_reserved(money, form, route):
    check_form(money, form, route)


@pytest.mark.slow
@each(("form", "route"), [*alternating(["NFD", "NFKC"]), ("NFKD", ROUTES[0]), ("NFC", ROUTES[2])])
def test_an_honest_tokenizer_of_any_form_stays_within_what_was_reserved(money, form, route):
    check_form(money, form, route)


def check_form(money, form, route):
    """A token a byte, of a normal form that has more bytes than the text that was sent."""
    draw = random.Random(form)
    texts = [("".join(draw.choice(LONGER) for _ in range(size)),) for size in (8, 90)]
    texts.append((max(LONGER, key=lambda sign: KINDS[form].count(sign) / len(sign.encode())) * 180,))
    found = money(form, texts, route)
    check_honest(found, form)
    assert all(served.prompt > len(text.encode()) for served, (text,) in zip(found.served, texts, strict=True))


PROMPTS_TOLD = {"zero": 0, "text": "12", "nan": NAN, "null": None, "negative": -1, "fraction": 12.5, "true": True}


def odd_prompt(value, **more):
    return Kind(tell=lambda served: {"prompt_tokens": value, "completion_tokens": served.completion} | more)


@each("route", ROUTES[:2])
def test_a_prompt_told_as_nothing_does_not_eat_a_cap_of_one_usd(money, route):
    check_odd(money, "zero", route, 8)


@pytest.mark.slow
@each(("told", "route"), alternating(sorted(PROMPTS_TOLD.keys() - {"zero"})))
def test_a_prompt_told_as_no_number_does_not_eat_a_cap_of_one_usd(money, told, route):
    check_odd(money, told, route, 3)


def check_odd(money, told, route, num):
    found = money(odd_prompt(PROMPTS_TOLD[told]), [QUESTIONS[:1]] * num, route, cap=USD)
    assert len(found.served) == num
    assert {booking.reserved for booking in found.bookings} == {found.bookings[0].reserved}, "it learned"
    assert found.truth <= found.spent <= USD // 40
    check_honest(found, told)


@each("route", ROUTES)
def test_a_total_alone_leaves_the_endpoint_open(money, route):
    found = money("total-only", [QUESTIONS[:2]] * 2, route)
    assert len(found.served) == 4
    assert {booking.state for booking in found.bookings} <= {"settled", "sent"}
    check_honest(found, "total-only")


@each(("cap", "route"), [(2_000_000, ROUTES[0]), (20_000_000, ROUTES[1])])
def test_no_cap_is_passed_by_twenty_questions_at_once(money, route, cap):
    check_cap(money, "honest", route, cap)


@pytest.mark.slow
@each(("kind", "route"), alternating(["high", "writes", "thoughts to the limit"]))
def test_no_cap_is_passed_by_twenty_questions_at_once_at_any_service(money, kind, route):
    check_cap(money, kind, route, 5_000_000)


def check_cap(money, kind, route, cap):
    questions = [f"What is {number} + 86?" for number in range(20)]
    found = money(kind, [questions], route, cap=cap, together=True, parallel=20)
    assert len(found.answers) == 20
    assert found.truth <= found.spent <= cap, (kind, cap)


@each("route", ROUTES)
def test_a_try_that_was_turned_away_is_not_booked(money, route):
    found = money("429 first", [QUESTIONS[:1]], route, retries=2)
    assert len(found.served) == 1
    assert found.truth <= found.spent <= found.truth
    assert sum(booking.booked > 0 for booking in found.bookings) == 1


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
LONG = "x" * 6000
HIDDEN = {
    "a refusal in a text part": [{"type": "text", "text": "a", "refusal": LONG}],
    "a text in a refusal part": [{"type": "refusal", "refusal": "a", "text": LONG}],
    "a text in an image part": [{**IMAGE, "text": LONG}],
    "a refusal in an image part": [{**IMAGE, "refusal": LONG}],
}


@each("where", sorted(HIDDEN))
def test_every_text_of_a_part_counts(money, monkeypatch, where):
    """It is bounded, or the request is refused: an honest template may print any of them."""
    monkeypatch.setenv("HYBRID_RELAY_IMAGE_TOKENS", "1500")
    found = money(Kind(count=lambda text: len(text.encode())), [(HIDDEN[where],)], (RelayCaller, {}))
    if found.answers[0].status != 400:
        check_honest(found, where)


def test_the_service_charges_what_is_counted_by_hand(money):
    """What judges the client is judged here: 11 before the conversation, 4 for the turn, 4 words, " 2" and "?"."""
    found = money(Kind(answer=3), [("What is the sum 2?",)])
    assert [(served.prompt, served.completion, served.nanousd) for served in found.served] == [(22, 3, 34_000)]
    assert [len(served.deltas) for served in found.served] == [3]
    assert KINDS["NFKC"].count("\ufdfa") == 33
    assert KINDS["absent"].tell(None) is MISSING
    assert Tariff(write="1.25").nanousd(100, 40, 30, 10) == 30_000 + 4_000 + 37_500 + 40_000
    assert Tariff(long=99).nanousd(100, 0, 0, 10) == 2 * 140_000
