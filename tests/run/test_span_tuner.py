"""What ``--span auto`` learns, and that it is used from the second answer on."""

from __future__ import annotations

from dataclasses import replace

from cases import each

from hybrid.pairs.timings import Timings, best_length
from hybrid.record.events import Finished, RequestSent, RequestSettled, SpanDrafted
from hybrid.spend import TARIFFS, Price
from hybrid.types import CloudUsage

PROMPT = "a b c"


def test_nothing_is_known_before_both_have_been_measured():
    pace = Timings()
    assert pace.span() is None
    pace.observe(SpanDrafted(0, (1, 2, 3, 4), ms=40.0))
    assert pace.span() is None
    pace.observe(RequestSettled("r", "write", CloudUsage(1, 1), 0, 500.0))
    assert pace.span() is None, "a write takes as long as it writes"
    pace.observe(RequestSettled("r", "check", None, 0, 500.0))
    assert pace.span() is None, "a broken check tells nothing of a whole one"
    pace.observe(RequestSettled("r", "check", CloudUsage(1, 1), 0, 100.0))
    assert pace.span() == best_length(1.0 / 2.0, 100.0, 10.0)


def test_tokens_that_were_decoded_ahead_took_no_time_now():
    pace = Timings()
    pace.observe(SpanDrafted(0, (1, 2, 3, 4), num_ready=4, ms=0.1))
    pace.observe(RequestSettled("r", "check", CloudUsage(1, 1), 0, 100.0))
    assert pace.span() is None
    pace.observe(SpanDrafted(0, (1, 2, 3, 4), num_ready=3, ms=10.0))
    assert pace.span() == best_length(0.5, 100.0, 10.0)


def test_acceptance_is_what_stood_of_what_was_judged_whoever_wrote_instead(house, run):
    """A rejection counts once: by the token recovered, or by the first one that the cloud then wrote."""
    for choices in ({}, {"temperature": 1.0}):
        pace = Timings()
        pace.observe(SpanDrafted(0, (1, 2, 3, 4), ms=40.0))
        pace.observe(RequestSettled("r", "check", CloudUsage(1, 1), 0, 100.0))
        answer = run(house().client.generate(PROMPT, raw=True, max_tokens=80, policy="kl", threshold=0.6, **choices))
        pace.observe(Finished(answer))
        kept = sum(token.how == "accepted" for token in answer.tokens)
        rejections = len(answer.handoffs)
        assert min(kept, rejections) > 2
        assert pace.span() == best_length((1.0 + kept) / (2.0 + kept + rejections), 100.0, 10.0)


def test_a_far_cloud_and_a_good_draft_make_long_spans(house, run):
    h = house()
    score = h.cloud.score

    async def far(question, *attempt):
        import asyncio

        await asyncio.sleep(0.02)
        return await score(question, *attempt)

    h.cloud.score = far

    def checked(**choices):
        run(h.client.generate(PROMPT, raw=True, max_tokens=30, policy="kl", threshold=float("inf"), **choices))
        spans = [len(question.span) for question in h.cloud.questions if hasattr(question, "span")]
        h.cloud.questions.clear()
        return max(spans)

    assert checked(span="auto") == 30, "kl's own span, 32, before anything is measured"
    assert checked(span=4) == 4
    assert checked(span="auto") > 4


PRICE = Price.parse("1/0.1/4")


def test_a_check_that_reads_no_cache_is_worth_a_longer_draft():
    """The text so far is paid for again with every check: in full, or at a tenth."""
    pace = Timings()
    bare, cached = (pace.cheap(PRICE, 2000, keeps_cache=kept) for kept in (False, True))
    assert bare > cached > 1
    assert pace.cheap(PRICE, 20_000, keeps_cache=False) >= bare


def test_the_cheapest_draft_length_has_the_fewest_usd_a_token():
    """Against every other length, priced request by request as the bill does; half of what is drafted stands."""
    pace = Timings()

    def usd(length):
        check = PRICE.cost(CloudUsage(500 + length, 1, cached_tokens=0))
        return check / sum(0.5**i for i in range(length + 1))

    assert pace.cheap(PRICE, 500, keeps_cache=False) == min(range(1, 65), key=usd)


def test_what_costs_nothing_or_nobody_knows_what_has_no_cheapest_length():
    assert Timings().cheap(None, 500, keeps_cache=True) is None
    assert Timings().cheap(Price.parse("free"), 500, keeps_cache=True) is None


def checked(pace, usage, prompt_tokens=400, position=100, span=16):
    pace.observe(RequestSent("r", "check", position, span, None), prompt_tokens)
    pace.observe(RequestSettled("r", "check", usage, None, 50.0), prompt_tokens)


def test_a_check_is_measured_by_its_own_text_whatever_is_sent_beside_it():
    """Two answers take turns: what the check of the long text was charged is no news of the short one."""
    alone, beside, usage = Timings(), Timings(), CloudUsage(516, 1, cached_tokens=500)
    checked(alone, usage)
    beside.observe(RequestSent("r", "check", 100, 16, None), 400)
    beside.observe(RequestSent("other", "check", 3, 8, None), 20)
    beside.observe(RequestSettled("r", "check", usage, None, 50.0), 400)
    assert beside.cheap(PRICE, 500, keeps_cache=False) == alone.cheap(PRICE, 500, keeps_cache=False)
    beside.observe(RequestSettled("other", "check", CloudUsage(31, 1), None, 50.0), 20)
    assert beside.cheap(PRICE, 500, keeps_cache=False) == alone.cheap(PRICE, 500, keeps_cache=False)


def test_what_checks_were_charged_goes_before_what_is_said_of_the_cache():
    """Whether a check reads the cache, its usage tells; what it is charged for nothing else, too."""
    cached, bare = CloudUsage(516, 1, cached_tokens=500), CloudUsage(516, 1)
    reads, reads_not = Timings(), Timings()
    checked(reads, cached)
    checked(reads_not, bare)
    assert reads.cheap(PRICE, 500, keeps_cache=False) == Timings().cheap(PRICE, 500, keeps_cache=True)
    assert reads_not.cheap(PRICE, 500, keeps_cache=True) == Timings().cheap(PRICE, 500, keeps_cache=False)


def test_a_stated_tariff_goes_before_what_checks_were_charged():
    """A server that tells of no cached token may charge the cached price all the same, or nothing: the user says so."""
    for keeps_cache in (False, True):
        tuner = Timings()
        checked(tuner, CloudUsage(516, 1))
        lengths = [tuner.cheap(Price.parse(f"1/0.1/4:{each}"), 500, keeps_cache=keeps_cache) for each in TARIFFS]
        expected = [Timings().cheap(PRICE, 500, keeps_cache=cached) for cached in (False, True)]
        assert lengths[:2] == expected
        assert lengths[2] == best_length(0.5, 1.0, 1.0) < lengths[1]


@each(
    "usage",
    [
        CloudUsage(1032, 2, cached_tokens=480, requests=2),
        CloudUsage(516, 60, cached_tokens=500),
        CloudUsage(516, 1, cached_tokens=500, requests=7),
    ],
    ids=["asked twice", "many tokens written", "many requests"],
)
def test_the_cheapest_draft_length_after_checks_has_the_fewest_usd_a_token(usage):
    """The text may be paid for more than once, and so are the requests and what each of them writes."""
    price, pace = Price.parse("1/0.1/1/4/0.0001"), Timings()
    checked(pace, usage)

    def usd(length):
        check = price.cost(replace(usage, prompt_tokens=usage.prompt_tokens - 16 + length))
        return check / sum(0.5**i for i in range(length + 1))

    assert pace.cheap(price, 500, keeps_cache=True) == min(range(1, 65), key=usd)
    assert pace.cheap(price, 500, keeps_cache=True) != Timings().cheap(price, 500, keeps_cache=True)


def test_a_short_text_shows_nothing_of_a_cache_that_keeps_whole_blocks():
    pace = Timings()
    checked(pace, CloudUsage(66, 1), prompt_tokens=40, position=10)
    assert pace.cheap(PRICE, 2000, keeps_cache=True) == Timings().cheap(PRICE, 2000, keeps_cache=True)


def test_newer_checks_outweigh_older_ones():
    """The first check after a text finds nothing in the cache; those after it do."""
    pace, cold, warm = Timings(), CloudUsage(516, 1), CloudUsage(516, 1, cached_tokens=500)
    checked(pace, cold)
    first = pace.cheap(PRICE, 500, keeps_cache=True)
    for _ in range(40):
        checked(pace, warm)
    warmed = pace.cheap(PRICE, 500, keeps_cache=True)
    assert first > warmed == Timings().cheap(PRICE, 500, keeps_cache=True)
    checked(pace, cold)
    assert first > pace.cheap(PRICE, 500, keeps_cache=True) > warmed, "one that was cold is not all"
