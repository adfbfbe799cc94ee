"""An answer while the cloud fails: what is asked again and reserved, when it is left alone, when it is back."""

from __future__ import annotations

import pytest

from hybrid.errors import Unreachable
from hybrid.run import Asked, Retried, Settled

PROMPT = "a b c"


def ids(answer):
    return tuple(token.id for token in answer.tokens)


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


def failing(*numbers, **why):
    """A fault for the requests of these numbers, one that may pass."""
    return lambda n: Unreachable("503", **{"trouble": "busy", **why}) if n in numbers else None


@pytest.mark.parametrize("policy", ["greedy-exact", "cloud", "doubt"])
@pytest.mark.parametrize("numbers", [(1,), (1, 2), (2,)])
def test_a_hiccup_is_not_seen_in_the_answer(house, run, policy, numbers):
    whole = run(house().client.generate(PROMPT, policy=policy, max_tokens=40, span=3))
    h = house(fault=failing(*numbers))
    answer = run(h.client.generate(PROMPT, policy=policy, max_tokens=40, span=3))
    assert (answer.tokens, answer.degraded) == (whole.tokens, None)
    failed = sum(n <= len(h.cloud.questions) for n in numbers)
    assert answer.usage.cloud_requests == len(h.cloud.questions) == whole.usage.cloud_requests + failed


@pytest.mark.parametrize("policy", ["greedy-exact", "cloud"])
def test_each_retry_is_reserved_under_an_id_of_its_own(house, run, policy):
    h = house(fault=failing(1, 2))
    events = run(gather(h.client, policy=policy, max_tokens=10))
    asked = [event for event in events if isinstance(event, Asked)]
    assert len({event.request_id for event in asked}) == len(asked) == len(h.cloud.questions)
    assert [question.request_id for question in h.cloud.questions] == [event.request_id for event in asked]
    unknown = [event.request_id for event in events if isinstance(event, Settled) and event.usage is None]
    assert unknown == [event.request_id for event in asked[:2]]
    assert h.ledger.reserved_nanousd == sum(event.reserved_nanousd for event in asked[:2])
    assert len([event for event in events if isinstance(event, Retried)]) == 2


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


def test_retries_can_be_turned_off(house, run):
    h = house(fault=failing(1), retries=0)
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10)).degraded == "503"
    assert len(h.cloud.questions) == 1


def test_connecting_is_tried_again_too(house, run):
    h = house()
    connect, tries = h.client._connect, []

    async def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise Unreachable("refused", trouble="connect", sent=False)
        return await connect()

    h.client._connect = flaky
    assert run(h.client.generate(PROMPT, policy="greedy-exact", max_tokens=10)).degraded is None
    assert len(tries) == 3
