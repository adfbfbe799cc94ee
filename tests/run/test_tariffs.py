"""What a tariff charges an answer: what was sent again is known from what was really sent, and really answered."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from tariff_account import STATED, Asked, TariffAccount

from hybrid.cloud import ScoreQuestion
from hybrid.errors import Unreachable
from hybrid.policy import PRESETS
from hybrid.run import RequestSent, RequestSettled
from hybrid.run.open_request import AnsweredPrompts
from hybrid.spend import MemoryLedger
from hybrid.types import CloudUsage

PROMPT = "a b c"
ASKING = [name for name in PRESETS if name != "local"]
TOKENS = st.lists(st.integers(0, 1), max_size=6).map(tuple)


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


def told_two(charged):
    """A server that had two tokens cached, whatever was sent."""
    return replace(charged, cached_tokens=min(2, charged.prompt_tokens))


def settled(events):
    return {event.request_id: event for event in events if isinstance(event, RequestSettled)}


def by_hand(h, events, stated):
    """What the second hand charges for the same requests: their prompts as the cloud has read them."""
    account = TariffAccount(*map(Fraction, ("1", "0.1", "4")), stated=stated)
    charges = {}
    for question, request_id in zip(h.cloud.questions, h.cloud.request_ids, strict=True):
        usage, check = settled(events)[request_id].usage, isinstance(question, ScoreQuestion)
        prompt = tuple(question.prefix) + (question.span if check else ())
        if usage is None:
            account.charge(Asked(prompt, 0, check, answered=False))
        else:
            charges[request_id] = account.charge(Asked(prompt, usage.completion_tokens, check, usage.cached_tokens))
    return charges


def asked(house, run, stated, policy, **cloud):
    h = house(price="1/0.1/4" + (f":{stated}" if stated else ""), cap=10**9, **cloud)
    events = run(gather(h.client, policy=policy, max_tokens=30, span=3, threshold=0.1))
    return h, events


@pytest.mark.parametrize("policy", ASKING)
def test_every_answer_is_charged_as_the_second_hand_says_under_every_tariff(house, run, policy):
    """Requests are the same, but for ``auto``; each costs no more under ``new`` than under ``cached`` than as told."""
    bills = {}
    for stated in each_of(STATED):
        h, events = asked(house, run, stated, policy, tells=told_two)
        expected = by_hand(h, events, stated)
        assert {request_id: event.nanousd for request_id, event in settled(events).items()} == expected
        assert events[-1].answer.bill.nanousd == sum(expected.values()) == h.ledger.settled_nanousd
        assert h.ledger.reserved_nanousd == 0
        bills[stated] = list(expected.values())
    if policy == "auto":
        return
    rows = list(zip(bills["new"], bills["cached"], bills[None], bills["uncached"], strict=True))
    assert all(new <= cached <= told <= uncached for new, cached, told, uncached in rows)


@pytest.mark.parametrize("stated", STATED)
def test_a_prefix_is_repeated_only_after_a_request_that_held_it_was_answered(house, run, stated):
    """What failed was sent, and may have been read; nobody knows."""
    for failing, policy in product(((1,), (1, 2), (2,), (3, 5)), ("kl", "greedy-exact", "cloud")):
        broken = lambda n, failing=failing: Unreachable("503", trouble="busy") if n in failing else None  # noqa: E731
        h, events = asked(house, run, stated, policy, fault=broken)
        assert len(h.cloud.questions) > (1 if policy == "cloud" else max(failing)) or failing[0] > 1
        known = {each.request_id: each.nanousd for each in settled(events).values() if each.usage is not None}
        assert known == by_hand(h, events, stated)
        assert sum(known.values()) == h.ledger.settled_nanousd


@pytest.mark.parametrize("stated", STATED)
def test_a_cap_holds_at_every_height_and_the_worst_case_knows_no_tariff(house, run, stated):
    """What is reserved for a request is what it costs with nothing repeated: another server may get it."""
    for cap, policy in product(range(2_000, 90_000, 11_000), ("kl", "greedy-exact", "cloud")):
        h = house(price="1/0.1/4" + (f":{stated}" if stated else ""), cap=cap)
        events = run(gather(h.client, policy=policy, max_tokens=30, span=3, threshold=0.1))
        assert h.ledger.settled_nanousd <= cap
        assert h.ledger.reserved_nanousd == 0
        sent = [event for event in events if isinstance(event, RequestSent)]
        for event, question in each_of(zip(sent, h.cloud.questions, strict=True), least=0):
            check = isinstance(question, ScoreQuestion)
            prompt = len(question.prefix) + (len(question.span) if check else 0)
            assert event.reserved_nanousd == 1000 * prompt + 4000 * (1 if check else question.limit)


@pytest.mark.parametrize("stated", STATED)
def test_what_a_server_tells_beyond_the_worst_case_is_charged_as_told_and_disputed(house, run, stated):
    """No tariff hides it: were the repeated tokens left out, the excess would be within what was reserved."""
    h = house(price="1/0.1/4" + (f":{stated}" if stated else ""), cap=10**9)
    score, told = h.cloud.score, []

    async def dear(question, *attempt):
        scores = await score(question, *attempt)
        more = len(h.cloud.questions) > 1
        told.append(CloudUsage(scores.usage.prompt_tokens + more, 1))
        return replace(scores, usage=told[-1])

    h.cloud.score = dear
    events = run(gather(h.client, policy="greedy-exact", max_tokens=30, span=3))
    assert len(told) == 2
    assert "is closed" in events[-1].answer.degraded
    assert list(settled(events).values())[1].nanousd == 1000 * told[1].prompt_tokens + 4000


def test_what_a_server_tells_beyond_the_worst_case_of_a_check_is_uncached_where_that_is_stated(house, run):
    """A token too many is no reason to charge all others at the cached price, and to see no excess in that."""
    h = house(price="1/0.1/4:uncached", cap=10**9)
    score, told = h.cloud.score, []

    async def dear(question, *attempt):
        scores = await score(question, *attempt)
        prompt = scores.usage.prompt_tokens + 1
        told.append(CloudUsage(prompt, 1, cached_tokens=prompt - 1))
        return replace(scores, usage=told[-1])

    h.cloud.score = dear
    events = run(gather(h.client, policy="greedy-exact", max_tokens=30, span=3))
    assert "is closed" in events[-1].answer.degraded
    assert next(iter(settled(events).values())).nanousd == 1000 * told[0].prompt_tokens + 4000


def test_a_check_that_is_not_one_request_has_not_read_its_draft(house, run):
    """A draft that the model was made to write, or that was sent in parts, was never read as one prompt."""
    costs = {}
    for method in ("one request", "prefixes", "forced"):
        h = house(price="1/0.1/4:new", can={"scoring_method": method})
        events = run(gather(h.client, policy="kl", max_tokens=12, span=3, threshold=float("inf")))
        costs[method] = [(each.usage.prompt_tokens, each.nanousd) for each in settled(events).values()]
    assert costs["one request"] == [(6 + 3 * n, 3_000 + 3_000 * (n == 0)) for n in range(4)]
    assert costs["prefixes"] == costs["forced"] == [(6 + 3 * n, 6_000) for n in range(4)]


def test_each_answer_begins_anew(house, run):
    """A cache may have forgotten by then what an earlier answer sent."""
    h = house(price="1/0.1/4:new")
    first, second = (run(h.client.generate(PROMPT, policy="kl", max_tokens=12, span=3)) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.bill == second.bill


@given(st.lists(TOKENS, max_size=8), TOKENS)
def test_the_longest_beginning_shared_with_any_prompt_that_was_answered_is_found(before, prompt):
    """Sorted, it is shared with a neighbour."""
    answered = AnsweredPrompts()
    for each_prompt in before:
        answered.add(each_prompt)
    beginnings = {known[:end] for known in before for end in range(len(known) + 1)} | {()}
    assert answered.repeated(prompt) == max(n for n in range(len(prompt) + 1) if prompt[:n] in beginnings)


@each("stated", STATED)
def test_what_we_close_early_is_charged_for_every_token_it_may_have_written_whatever_the_tariff(house, run, stated):
    """That a server runs ahead is no repetition."""

    async def leave(h):
        async for event in h.client.stream(PROMPT, policy="cloud", max_tokens=20):
            if getattr(event, "position", None) == 2 and not isinstance(event, RequestSent):
                break
        await h.client.aclose()

    h = house(price="1/0.1/4" + (f":{stated}" if stated else ""), ledger=MemoryLedger(10**9))
    run(leave(h))
    assert h.ledger.settled_nanousd == 3 * 1000 + 20 * 4000
