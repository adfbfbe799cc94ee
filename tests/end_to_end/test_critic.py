"""The bundled pair with the ladder's middle model as its critic, over the bundled server."""

from __future__ import annotations

import asyncio

import pytest

import hybrid
from hybrid.errors import UsageError
from hybrid.pairs.knowledge import UNREAD
from hybrid.record.events import SpanCritiqued

QUESTIONS = ("What is 48 + 57?", "Sort these numbers: 41, 7, 93, 18, 66", "What is 12345 + 30456?")


def answers(*questions, **flags):
    """Answer; return each answer with what the critic said of its drafts."""

    async def answered():
        found = []
        async with hybrid.open(policy="auto", seed=0, learn=False, ledger="none", **flags) as client:
            for question in questions:
                events = [event async for event in client.stream(question)]
                said = [(each.ids, each.kl, each.logprob) for each in events if isinstance(each, SpanCritiqued)]
                found.append((events[-1].answer, said))
        return found

    return asyncio.run(answered())


@pytest.mark.slow
def test_the_shipped_score_reads_its_critic_and_texts_do_not_depend_on_look_ahead(bundled):
    found = []
    for overlap in (True, False):
        told = answers(*QUESTIONS, critic="mid", overlap=overlap)
        assert all(UNREAD not in answer.notes and answer.timing.critic_ms for answer, _ in told)
        found.append([([token.id for token in answer.tokens], said) for answer, said in told])
    assert found[0] == found[1]


@pytest.mark.slow
def test_another_critic_is_not_read_and_that_is_told(bundled):
    ((plain, _),), ((answer, said),) = answers(QUESTIONS[0]), answers(QUESTIONS[0], critic="large")
    assert (answer.text, said, answer.timing.critic_ms) == (plain.text, [], None)
    assert UNREAD in answer.notes
    assert UNREAD not in plain.notes


@pytest.mark.parametrize(("critic", "match"), [("small", "drafts already"), ("alien", "one vocabulary")])
def test_a_critic_that_can_say_nothing_is_refused_when_it_is_opened(bundled, critic, match):
    with pytest.raises(UsageError, match=match), hybrid.open(policy="auto", critic=critic):
        pass
