"""What a token takes, scored and written: what is free has a cost in time."""

from __future__ import annotations

from dataclasses import replace

from cases import each
from probed_server import Server, probed

from hybrid.cloud.probe_result import ProbeResult
from hybrid.errors import MissingCapability
from hybrid.spend import CheckRates, Price

TIMES = ("written_ms", "scored_ms", "reread_ms", "check_ms")


def test_what_a_token_takes_is_measured_scored_and_written_where_it_is_asked_for():
    """The network and the prompt are in what a check takes besides, not in its tokens."""
    timed, _, _ = probed(Server(), timed=True)
    assert (timed.written_ms, timed.scored_ms, timed.reread_ms, timed.check_ms) == (10.0, 2.0, 1.0, 30.0)
    plain, _, _ = probed(Server())
    assert [getattr(plain, name) for name in TIMES] == [None] * 4
    assert replace(timed, **dict.fromkeys(TIMES), spent_tokens=plain.spent_tokens) == plain
    assert timed.spent_tokens > plain.spent_tokens


def test_no_draft_is_scored_twice_while_time_is_measured():
    """A server that keeps what it has scored would be timed at its cache."""
    plain, server = Server(), Server()
    probed(plain)
    probed(server, timed=True)
    scored = [question.span for question in server.questions[len(plain.questions) :] if hasattr(question, "span")]
    assert len(scored) == 9
    assert len(set(scored)) > 3
    drafts = [span for span in scored if len(span) > 1]
    assert len({span[:1] for span in drafts}) == len(drafts) == 3


def test_where_no_longer_text_fits_what_is_read_again_is_not_timed():
    server = Server()
    small = replace(server.dialect.can, model="m", max_context=100, same_words=True)
    found, _, _ = probed(server, said=small, timed=True)
    assert (found.prefix_tokens, found.reread_ms) == (None, None)
    assert (found.written_ms, found.scored_ms, found.check_ms) == (10.0, 2.0, 33.0)


@each("wrong", [{"fault": MissingCapability("no scores")}, {"drift": 1.0}])
def test_where_no_draft_is_scored_nothing_is_timed(wrong):
    found, heard, _ = probed(Server(**wrong), timed=True)
    assert found.scored_ms is None
    assert "what a scored token takes beside a written one" not in heard


PAID, FREE = Price.parse("7/2/31"), Price.parse("free")
TIMED = ProbeResult("u", "m", "d", scoring_method="one request", written_ms=10.0, scored_ms=2.0, check_ms=30.0)


@each(
    ("change", "price", "rates"),
    [
        ({}, FREE, (2.0, 2.0, 30.0, 10.0)),
        ({}, None, (2.0, 2.0, 30.0, 10.0)),
        ({"keeps_cache": True}, FREE, (0.0, 2.0, 30.0, 10.0)),
        ({"scored_ms": None}, FREE, None),
        ({"reread_ms": 0.5}, FREE, (0.5, 2.0, 30.0, 10.0)),
        ({"reread_ms": 0.5, "keeps_cache": True}, FREE, (0.5, 2.0, 30.0, 10.0)),
        ({}, PAID, (7e3, 7e3, 31e3, 31e3)),
        ({"keeps_cache": True, "scored_ms": None}, PAID, (2e3, 7e3, 31e3, 31e3)),
        ({"scoring_method": "prefixes"}, PAID, (7e3, 31e3, 31e3, 31e3)),
        ({"scoring_method": None}, PAID, None),
        ({"scoring_method": None}, FREE, None),
    ],
)
def test_what_checking_takes_is_money_where_it_costs_any_and_time_where_it_costs_none(change, price, rates):
    found = replace(TIMED, **change).check_rates(price)
    assert found == (None if rates is None else CheckRates(*rates))
    if change.get("scoring_method") == "prefixes":
        assert found.break_even(0) is None
