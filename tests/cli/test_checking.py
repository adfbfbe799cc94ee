"""What a probe says of checking: the time of a token, the break-even, and what was seen of the pair."""

from __future__ import annotations

from dataclasses import replace

from hybrid.assemble.probing import ProbeReport
from hybrid.cli.probe import break_evens, told_of_probe
from hybrid.cloud.probe_result import ProbeResult
from hybrid.pairs.profile import JudgedTokens
from hybrid.spend import Price

BEST = "with drafts of the best length after"
FOUND = ProbeResult("http://there", "m", "sglang", same_words=True, scoring_method="one request", keeps_cache=True)


def said(found, price=None, **seen):
    return "\n".join(told_of_probe(ProbeReport(found, None, 0.025, price=price, seen=seen)))


TIMED = replace(FOUND, written_ms=10.0, scored_ms=2.0, check_ms=30.0)


def test_what_a_token_takes_is_told_as_a_ratio_with_the_round_trip_apart():
    """What is free has a cost in time: where nothing is charged, the break-even is that of the time."""
    for price in (None, Price.parse("free")):
        text = said(TIMED, price=price)
        assert "what a token takes: 2 ms scored, 10 ms written (0.2 : 1); a check takes 30 ms besides" in text
        assert f"in time, {BEST} 100 tokens of text checking is faster than the cloud alone where 83.1 %" in text
    text = said(replace(TIMED, reread_ms=0.5))
    assert "; a check takes 0.5 ms for each token before its draft, and 30 ms besides" in text
    slow = said(replace(TIMED, keeps_cache=False, scored_ms=3.0))
    assert f"in time, {BEST} 1000 tokens of text checking is never faster than the cloud alone" in slow
    assert "what a token takes" not in said(FOUND)
    assert "checking is" not in said(FOUND)


def test_at_a_price_the_break_even_is_that_of_the_money_under_its_tariff():
    text = said(TIMED, price=Price.parse("1/0.1/4"))
    assert f"at 1/0.1/4, {BEST} 100 tokens of text checking is cheaper than the cloud alone where 87.8 %" in text
    cold = said(replace(FOUND, keeps_cache=False), price=Price.parse("1/0.1/4"))
    assert f"at 1/0.1/4, {BEST} 1000 tokens of text checking is never cheaper than the cloud alone" in cold
    text = said(FOUND, price=Price.parse("1/0.1/4:new"))
    assert "after 1000 tokens of text checking is cheaper than the cloud alone, however few drafted tokens are" in text
    assert "checking is" not in said(replace(FOUND, scoring_method=None), price=Price.parse("1/0.1/4"))


def test_what_was_seen_of_the_pair_stands_beside_the_break_even():
    price = Price.parse("1/0.1/4")
    dear = said(FOUND, price=price, kl=JudgedTokens(30, 60), js=JudgedTokens(3, 6), exact=JudgedTokens(599, 600))
    assert "seen of this pair under kl: 60 drafted tokens, 50 % were kept\nunder kl checking costs more than" in dear
    assert "seen of this pair under js: 6 drafted tokens, too few to say" in dear
    assert "seen of this pair under exact: 600 drafted tokens, 99.8 % were kept" in dear
    assert dear.count("than the cloud here") == 1
    assert "under kl checking takes longer than the cloud here" in said(TIMED, kl=JudgedTokens(30, 60))


def test_an_object_holds_the_same_shares():
    found = break_evens(FOUND.check_rates(Price.parse("1/0.1/4")))
    assert {length: round(share, 3) for length, share in found.items()} == {"100": 0.878, "1000": 0.984}
    assert break_evens(None) is None
