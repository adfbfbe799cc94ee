"""An answer while the cloud fails: what is asked again and reserved, when it is left alone, when it is back."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from cases import each

from hybrid.errors import AccessDenied, MissingCapability, Unreachable
from hybrid.run import CloudRecovered, Degraded, NoteAdded, RequestRetried, RequestSent, RequestSettled, TokenEmitted
from hybrid.types import CloudUsage

PROMPT = "a b c"


def ids(answer):
    return tuple(token.id for token in answer.tokens)


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


def failing(*numbers, **why):
    """A fault for the requests of these numbers, one that may pass."""
    return lambda n: Unreachable("503", **{"trouble": "busy", **why}) if n in numbers else None


@each("policy", ["greedy-exact", "cloud", "doubt"])
@each("numbers", [(1,), (1, 2), (2,)])
def test_a_hiccup_is_not_seen_in_the_answer(house, run, policy, numbers):
    whole = run(house().client.generate(PROMPT, policy=policy, max_tokens=40, span=3))
    h = house(fault=failing(*numbers))
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40, span=3))
    assert (answer.tokens, answer.degraded) == (whole.tokens, None)
    failed = sum(n <= len(h.cloud.questions) for n in numbers)
    assert answer.usage.cloud_requests == len(h.cloud.questions) == whole.usage.cloud_requests + failed


@each("policy", ["greedy-exact", "cloud"])
def test_each_retry_is_reserved_under_an_id_of_its_own(house, run, policy):
    h = house(fault=failing(1, 2))
    events = run(gather(h.client, policy=policy, max_tokens=10))
    asked = [event for event in events if isinstance(event, RequestSent)]
    assert len({event.request_id for event in asked}) == len(asked) == len(h.cloud.questions)
    assert h.cloud.request_ids == [event.request_id for event in asked]
    unknown = [event.request_id for event in events if isinstance(event, RequestSettled) and event.usage is None]
    assert unknown == [event.request_id for event in asked[:2]]
    why = [(event.failure, event.failure_kind) for event in events if isinstance(event, RequestSettled)]
    assert why == [("503", "unreachable")] * 2 + [(None, None)] * (len(asked) - 2), "each failed one has its reason"
    assert h.ledger.reserved_nanousd == sum(event.reserved_nanousd for event in asked[:2])
    assert len([event for event in events if isinstance(event, RequestRetried)]) == 2


def test_a_retry_that_the_cap_does_not_allow_does_not_leave(house, run):
    """What the first one cost is not known, so its worst case is spent."""
    h = house(fault=failing(1), cap=20_000)
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=40, span=8))
    assert ids(answer) == h.small(40)
    assert len(h.cloud.questions) == 1
    assert "cap of 0.00002 USD" in answer.degraded


def test_being_turned_away_unread_costs_nothing(house, run):
    h = house(fault=failing(1, 2, sent=False))
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10))
    assert answer.degraded is None
    assert h.ledger.reserved_nanousd == 0


def test_a_stream_is_not_asked_for_again_once_a_token_came(house, run):
    h = house(fault=failing(1, trouble="cut"), fault_after=2)
    answer = run(h.client.generate(PROMPT, policy="cloud", max_tokens=20))
    assert [token.source for token in answer.tokens[:3]] == ["cloud", "cloud", "local"]
    assert len(h.cloud.questions) == 1
    assert answer.degraded == "503"


@each("policy", ["greedy-exact", "cloud"])
def test_the_attempts_of_a_question_share_the_time_from_which_its_total_counts(house, run, policy):
    """Otherwise each retry would have a whole ``request_timeout_s`` of its own."""
    h = house(fault=failing(1, 2))
    run(h.client.generate(PROMPT, policy=policy, max_tokens=30))
    first, second, third, *later = [question.asked_at for question in h.cloud.questions]
    assert first == second == third
    assert None not in later
    assert all(earlier < after for earlier, after in pairwise([third, *later]))


def test_the_attempts_to_connect_share_it_too(house, run):
    h, asked_at = house(), []

    async def refuse(since):
        asked_at.append(since)
        raise Unreachable("refused", trouble="connect", sent=False)

    h.client._connection._connect = refuse
    run(h.client.generate(PROMPT, max_tokens=5))
    run(h.client.generate(PROMPT, max_tokens=5))
    assert [asked_at.count(one) for one in sorted(set(asked_at))] == [3, 2], "and then the breaker is open"


def test_retries_can_be_turned_off(house, run):
    h = house(fault=failing(1), retries=0)
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10)).degraded == "503"
    assert len(h.cloud.questions) == 1


def test_connecting_is_tried_again_too(house, run):
    h = house()
    connect, tries = h.client._connection._connect, []

    async def flaky(asked_at):
        tries.append(1)
        if len(tries) < 3:
            raise Unreachable("refused", trouble="connect", sent=False)
        return await connect(asked_at)

    h.client._connection._connect = flaky
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10)).degraded is None
    assert len(tries) == 3


# ---- outages: the endpoint is left alone, and asked again when it may be back --------------------------------------


def outage(house, fault):
    """A house whose texts do not end and whose requests fail as told; every token decoded here takes a second."""
    h = house(fault=fault, small=lambda at: tick(at))  # noqa: PLW0108  (the house is there only after it is built)

    def endless(scores):
        return [*scores[:-1], -50.0]

    def tick(at):
        h.clock.now += 1.0
        return endless(h.tables[0](at))

    h.cloud._scores = lambda at: endless(h.tables[1](at))
    return h


def gone(*numbers):
    return lambda n: Unreachable("gone") if n in numbers else None


def never(_):
    return None


@each("policy", ["greedy-exact", "kl", "doubt", "paper", "exact"])
def test_when_the_cloud_is_back_within_the_answer_it_is_asked_again(house, run, policy):
    h = outage(house, gone(2))
    events = run(gather(h.client, policy=policy, max_tokens=60, span=2, threshold=0.05, entropy=0.5))
    away = [event for event in events if isinstance(event, Degraded | CloudRecovered)]
    assert [type(event) for event in away] == [Degraded, CloudRecovered]
    assert away[0].why == events[-1].answer.degraded == "gone"
    at = events.index(away[1])
    assert any(isinstance(e, TokenEmitted) and e.token.source == "cloud" for e in events[at:]), "it helps again"
    assert any(isinstance(e, TokenEmitted) and e.token.how == "unchecked" for e in events[:at]), (
        "the local model went on"
    )


def test_every_outage_is_told_and_the_answer_keeps_the_first_reason(house, run):
    words = {2: "gone", 5: "gone again"}
    h = outage(house, lambda n: Unreachable(words[n]) if n in words else None)
    events = run(gather(h.client, policy="greedy-exact", max_tokens=80, span=2))
    away = [getattr(event, "why", "back") for event in events if isinstance(event, Degraded | CloudRecovered)]
    assert away == ["gone", "back", "gone again", "back"]
    assert events[-1].answer.degraded == "gone"


def test_a_cloud_that_stays_away_is_asked_ever_more_rarely(house, run):
    """Probes after 5, 10, 20 and 40 s, and each is one request, whatever may be retried."""
    h = outage(house, lambda _: Unreachable("503", trouble="busy"))
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=70, span=2))
    first_question = 3  # two retries
    assert first_question + 2 <= len(h.cloud.questions) <= first_question + 4
    assert len(answer.tokens) == 70


def test_what_took_long_to_fail_is_left_alone_for_longer(house, run):
    """A probe that waits in vain holds the answer up: at most a fifth of the time may go there."""
    h = outage(house, never)
    score = h.cloud.score

    async def silent(question, *attempt):
        await score(question, *attempt)
        h.clock.now += 20.0
        raise Unreachable("nothing came for 20 s", trouble="silent")

    h.cloud.score = silent
    run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=60, span=2))
    assert len(h.cloud.questions) == 1


def test_a_server_that_asks_to_be_left_alone_is(house, run):
    h = outage(house, lambda _: Unreachable("429", trouble="busy", retry_after_s=300.0, sent=False))
    run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=60, span=2))
    assert len(h.cloud.questions) == 1


def test_a_refusal_in_the_middle_is_for_good(house, run):
    h = outage(house, lambda n: AccessDenied("401") if n > 1 else None)
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=60, span=2))
    assert (answer.degraded, len(h.cloud.questions)) == ("401", 2)


def test_an_overcharge_after_an_outage_adds_its_sentence_and_leaves_the_kind(house, run):
    """The kind is that of the first reason, as the sentence begins with it."""
    h = outage(house, gone(1))
    score = h.cloud.score

    async def dear(question, *attempt):
        return replace(await score(question, *attempt), usage=CloudUsage(10**6, 1))

    h.cloud.score = dear
    answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=60, span=2))
    assert answer.degraded.startswith("gone; http://scripted is closed (it charged ")
    assert answer.degraded_kind == "unreachable"


def test_across_answers_the_breaker_opens_and_a_probe_closes_it(house, run):
    """Five failures in a row; then no request until the cool-down is over, and one then."""
    h = house(fault=lambda n: Unreachable("gone") if n <= 6 else None)

    def asked():
        before = len(h.cloud.questions)
        answer = run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10))
        return len(h.cloud.questions) - before, answer.degraded

    assert [asked() for _ in range(5)] == [(1, "gone")] * 5
    assert asked() == (0, "gone (it keeps failing, and is left alone for another 5 s)")
    h.clock.now += 5.0
    assert asked() == (1, "gone")
    assert asked() == (0, "gone (it keeps failing, and is left alone for another 10 s)")
    h.clock.now += 10.0
    requests, degraded = asked()
    assert requests > 1
    assert degraded is None


def test_while_the_breaker_is_open_nobody_connects_either(house, run):
    h = house()
    tries = []

    async def refused(_):
        tries.append(1)
        raise Unreachable("refused", sent=False)

    h.client._connection._connect = refused
    for _ in range(8):
        assert "refused" in run(h.client.generate(PROMPT, max_tokens=5)).degraded
    assert len(tries) == 5


def reached_late(house, **can):
    """A house whose endpoint is reached at the second try, and can do this."""
    h = outage(house, never)
    connect, tries = h.client._connection._connect, []

    async def late(asked_at):
        tries.append(1)
        if len(tries) < 2:
            raise Unreachable("refused", sent=False)
        cloud, capabilities = await connect(asked_at)
        return cloud, replace(capabilities, **can)

    h.client._connection._connect = late
    return h


def test_a_cloud_that_could_not_be_reached_at_first_is_connected_to_within_the_answer(house, run):
    h = reached_late(house)
    events = run(gather(h.client, policy="greedy-exact", max_tokens=60, span=2))
    assert [type(event) for event in events if isinstance(event, Degraded | CloudRecovered)] == [
        Degraded,
        CloudRecovered,
    ]
    assert events[-1].answer.usage.checks > 0
    assert events[-1].answer.degraded == "refused"


def test_what_an_endpoint_that_is_reached_late_cannot_do_is_minded_too(house, run):
    """Fewer log-probabilities than were wanted are asked for; and none at all are said to be missing."""
    h = reached_late(house, most_k=3)
    run(gather(h.client, policy="greedy-exact", max_tokens=60, span=2))
    assert {question.top_k for question in h.cloud.questions} == {3}
    deaf = reached_late(house, scoring_method=None, ids=False)
    deaf.cloud._rows = False
    events = run(gather(deaf.client, policy="doubt", entropy=0.0, max_tokens=60))
    assert [type(event) for event in events if isinstance(event, Degraded | NoteAdded)] == [Degraded, NoteAdded]
    assert "no log-probabilities" in events[-1].answer.notes[0]


def test_a_law_that_cannot_be_kept_with_what_is_shown_is_refused_late_as_at_first(house, run):
    """Five are drawn from where four are shown: at first the user is to mend it, later the answer is local."""
    drawn = {"policy": "exact", "temperature": 0.7, "top_k": 5}
    at_once = house()
    connect = at_once.client._connection._connect

    async def few(asked_at):
        cloud, capabilities = await connect(asked_at)
        return cloud, replace(capabilities, most_k=4)

    at_once.client._connection._connect = few
    with pytest.raises(MissingCapability, match="the last of 4 shown tokens may be tied"):
        run(at_once.client.generate(PROMPT, **drawn))
    h = reached_late(house, most_k=4)
    answer = run(gather(h.client, max_tokens=60, span=2, **drawn))[-1].answer
    assert not h.cloud.questions
    assert len(answer.tokens) == 60 or answer.finish_reason == "stop"


def test_a_reader_that_leaves_during_a_probe_does_not_leave_the_breaker_stuck(house, run):
    import asyncio

    h = house(fault=lambda n: Unreachable("gone") if n <= 5 else None)
    for _ in range(5):
        run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=5))
    h.clock.now += 5.0
    score = h.cloud.score

    async def hang(*_):
        await asyncio.sleep(60)

    async def leave():
        task = asyncio.create_task(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=5))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])

    h.cloud.score = hang
    run(leave())
    h.cloud.score = score
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=5)).degraded is None
