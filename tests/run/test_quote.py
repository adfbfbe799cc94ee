"""What a question would cost, before anything is sent."""

from __future__ import annotations

import json
from dataclasses import replace

from cases import each

from hybrid.pairs.profile import JudgedTokens
from hybrid.pairs.quote import UNPROBED, PriceQuote
from hybrid.policy import PRESETS, PolicyOptions, preset
from hybrid.spend import Price

KL = preset("kl", PolicyOptions())
QUOTE = PriceQuote(Price.parse("1/0.1/4"), KL, prompt_tokens=38, answer_tokens=64)  # 70 tokens before a draft
TIMED = replace(UNPROBED, written_ms=10.0, scored_ms=2.0, check_ms=30.0, keeps_cache=True)
HALF, MOST, FEW = JudgedTokens(30, 60), JudgedTokens(599, 600), JudgedTokens(0, 49)


def test_the_bills_are_those_of_the_requests_that_would_be_sent():
    assert QUOTE.num_before == 70
    assert QUOTE.cloud_only() == 38 * 1000 + 64 * 4000
    assert QUOTE.cloud_only(cached=True) == 38 * 100 + 64 * 4000
    assert QUOTE.check == (70 + 32) * 1000 + 4000
    assert replace(QUOTE, probed=replace(UNPROBED, keeps_cache=True)).check == 70 * 100 + 32 * 1000 + 4000
    assert replace(QUOTE, answer_tokens=8).check == (42 + 8) * 1000 + 4000, "no draft is longer than the answer"


@each(("stated", "check"), [("uncached", 106_000), ("cached", 43_000), ("new", 32_000)])
def test_a_check_is_quoted_as_its_tariff_charges_it(stated, check):
    assert replace(QUOTE, price=Price.parse(f"1/0.1/4:{stated}")).check == check


@each(
    ("change", "break_even", "verdict"),
    [
        ({}, 0.987, None),
        ({"seen": FEW}, 0.987, None),
        ({"seen": HALF}, 0.987, "more"),
        ({"policy": replace(KL, span=8), "seen": MOST}, None, "more"),
        ({"policy": replace(KL, span=256), "seen": MOST}, 0.978, "less"),
        ({"seen": MOST}, 0.987, "less"),
        ({"price": Price.parse("1/0.1/4:cached"), "seen": HALF}, 0.912, "more"),
        ({"price": Price.parse("1/0.1/4:new"), "seen": HALF}, 0.881, "more"),
        ({"price": Price.parse("1/0.1/4:new"), "policy": replace(KL, span=1), "seen": FEW}, 0.0, "less"),
        ({"price": Price.parse("4/4/4")}, None, "more"),
        ({"prompt_tokens": 5000, "seen": MOST}, None, "more"),
        ({"probed": replace(UNPROBED, scoring_method="forced"), "seen": MOST}, None, "more"),
        ({"probed": replace(UNPROBED, scoring_method=None), "seen": MOST}, None, None),
        ({"price": Price.parse("free"), "seen": MOST}, None, None),
        ({"price": Price.parse("free"), "probed": TIMED, "seen": HALF}, 0.897, "more"),
        ({"price": Price.parse("free"), "probed": TIMED, "seen": MOST}, 0.897, "less"),
        ({"policy": preset("doubt", PolicyOptions()), "seen": HALF}, None, None),
    ],
)
def test_it_says_more_or_less_only_where_that_is_known(change, break_even, verdict):
    quote = replace(QUOTE, **change)
    assert (None if quote.break_even is None else round(quote.break_even, 3)) == break_even
    assert quote.verdict == verdict
    told = {"more": ("costs more", "takes longer"), "less": ("costs less", "takes less time"), None: ()}
    last = quote.lines()[-1]
    assert last in [f"checking {words} than the cloud here" for words in told[verdict]] or verdict is None
    assert ("than the cloud here" in last) == (verdict is not None)
    assert json.loads(json.dumps(quote.to_json()))["checking"] == verdict


@each("name", list(PRESETS))
def test_every_policy_is_quoted_for_a_long_answer(name):
    quote = replace(QUOTE, policy=preset(name, PolicyOptions()), answer_tokens=512)
    assert quote.lines()
    assert json.loads(json.dumps(quote.to_json()))["policy"] == str(quote.policy)


def test_it_is_read_in_a_few_lines():
    beside = "what the cloud writes after a rejected one is another request, not in this"
    assert replace(QUOTE, seen=HALF).lines() == [
        "price: 1/0.1/4 (stated by --price)",
        "the cloud alone: 0.000294 USD for 38 tokens and an answer of 64 (0.0002598 USD with its prompt cached)",
        "a check after 70 tokens, of a draft of 32: 0.000106 USD",
        f"checking pays where 98.7 % of the drafted tokens are kept; {beside}",
        "with drafts of the best length (--span cheap) where 97.8 % are kept",
        "seen of this pair under kl:0.5: 60 drafted tokens, 50 % were kept",
        "checking costs more than the cloud here",
    ]


@each(
    ("change", "words"),
    [
        ({"policy": preset("cloud", PolicyOptions())}, "policy cloud asks for no check"),
        ({"price": Price.parse("free")}, "nothing is charged; hybrid probe measures what a check takes in time"),
        ({"probed": replace(UNPROBED, scoring_method=None)}, "the endpoint cannot score a draft"),
        (
            {"price": Price.parse("4/4/4")},
            "with such drafts checking never pays, however many of their tokens are kept",
        ),
        (
            {"price": Price.parse("1/0.1/4:new")},
            "with drafts of the best length (--span cheap) however few are kept",
        ),
        ({"price": Price.parse("free"), "probed": TIMED}, "checking is faster where 89.7 % of the drafted tokens are"),
    ],
)
def test_what_cannot_be_told_is_told_as_plainly(change, words):
    assert words in "\n".join(replace(QUOTE, **change).lines())
