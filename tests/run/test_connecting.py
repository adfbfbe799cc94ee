"""Answers that need the endpoint at the same time share one attempt to reach it, and its outcome."""

from __future__ import annotations

import asyncio

import pytest
from cases import each

from hybrid.cloud import Capabilities
from hybrid.cloud.dialects.chat import Chat
from hybrid.errors import NotAnApi, Unreachable, VocabularyMismatch
from hybrid.run.composition import Decoding
from hybrid.run.connecting import SharedConnection
from hybrid.run.retrying import EndpointHealth, RetryPolicy
from hybrid.settings.config import Settings

MADE = ("a cloud", "what it can do")


class Door:
    """Opens when a test says so, each time in the way that it says."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.knocks = 0
        self.opens = asyncio.Event()

    async def __call__(self, _):
        self.knocks += 1
        await self.opens.wait()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def gathered(run, door, num, make):
    async def all_of_them():
        door.opens = asyncio.Event()
        tasks = [asyncio.create_task(make(i)) for i in range(num)]
        await asyncio.sleep(0)
        door.opens.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return run(all_of_them())


def test_who_asks_at_the_same_time_is_connected_once(run):
    door = Door(MADE)
    shared = SharedConnection(door)
    assert gathered(run, door, 5, lambda _: shared.make(0.0)) == [MADE] * 5
    assert (door.knocks, shared.made) == (1, MADE)


def test_a_failure_is_told_to_all_who_waited_and_the_next_tries_anew(run):
    for error in (Unreachable("gone"), VocabularyMismatch("other words")):
        door = Door(error, MADE)
        shared = SharedConnection(door)

        async def late(i, shared=shared):
            """The first four ask at once; the last when that has failed."""
            if i == 4:
                await asyncio.sleep(0.01)
            return await shared.make(0.0)

        assert gathered(run, door, 5, late) == [*[error] * 4, MADE]
        assert door.knocks == 2


def test_a_failure_that_several_waited_for_is_counted_once(run):
    """Else four answers that meet one hiccup would open the breaker, and none of them would try again."""
    door = Door(Unreachable("gone"))
    shared, health = SharedConnection(door), EndpointHealth(RetryPolicy(0))
    found = gathered(run, door, 4, lambda _: health.attempt(lambda: shared.make(0.0)))
    assert [str(each) for each in found] == ["gone"] * 4
    assert health.breaker.in_a_row == 1


def test_who_leaves_while_connecting_leaves_it_to_the_next(run):
    """A cancelled answer must not break the one that waits for the same connection."""
    door = Door(MADE)
    shared = SharedConnection(door)

    async def leave():
        door.opens = asyncio.Event()
        first, second = (asyncio.create_task(shared.make(0.0)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        door.opens.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert run(leave()) == MADE
    assert door.knocks == 2


# ---- by messages ---------------------------------------------------------------------------------------------------

SHARED = ("a cloud", Capabilities("m", same_words=True))
UNKNOWN = ("a cloud", Capabilities("m", "vllm"))
IN_TEXT = ("the same cloud", Chat.can)
OTHER_WORDS = VocabularyMismatch("other words")


class At:
    """Gives one outcome, whoever asks."""

    def __init__(self, outcome):
        self.outcome, self.knocks = outcome, 0

    async def __call__(self, _):
        self.knocks += 1
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def reached(run, door, other, **settings):
    shared = SharedConnection(door, other)
    chosen = Settings(**({"policy": "route", "cloud": "http://gpu"} | settings))
    return run(shared.make_for(Decoding.of(chosen), 0.0)), shared, chosen


@each("policy", ["route", "cloud", "auto", "kl", "greedy-exact"])
def test_what_is_one_models_own_is_asked_for_by_messages_where_the_words_are_others(run, policy):
    """Everybody else is refused, each time it asks."""
    whole = policy in {"route", "cloud"}
    for _ in range(2):
        door, other = At(OTHER_WORDS), At(IN_TEXT)
        if not whole:
            with pytest.raises(VocabularyMismatch):
                reached(run, door, other, policy=policy)
            continue
        found, shared, chosen = reached(run, door, other, policy=policy)
        assert found == shared.made_for(Decoding.of(chosen)) == run(shared.make_any(0.0)) == IN_TEXT
        assert shared.made is None, "nobody else has it"
        assert run(shared.make_for(Decoding.of(chosen), 0.0)) == IN_TEXT
        assert (door.knocks, other.knocks) == (2, 1)


def test_where_nobody_can_tell_the_words_what_messages_can_say_is_said_in_them(run):
    for settings, expected in (
        ({}, IN_TEXT),
        ({"policy": "cloud"}, IN_TEXT),
        ({"policy": "kl"}, UNKNOWN),
        ({"policy": "kl", "lead": 3}, UNKNOWN),
        ({"dialect": "vllm"}, UNKNOWN),
        ({"top_k": 20}, UNKNOWN),
        ({"min_p": 0.1}, UNKNOWN),
    ):
        assert reached(run, At(UNKNOWN), At(IN_TEXT), **settings)[0] == expected, settings
    assert reached(run, At(SHARED), At(IN_TEXT))[0] == SHARED


def test_an_endpoint_that_takes_no_messages_is_used_or_refused_as_it_was(run):
    """And it is asked once whether it does."""
    with pytest.raises(VocabularyMismatch):
        reached(run, At(OTHER_WORDS), At(NotAnApi("no messages")))
    other = At(NotAnApi("no messages"))
    found, shared, chosen = reached(run, At(UNKNOWN), other)
    assert found == run(shared.make_for(Decoding.of(chosen), 0.0)) == shared.made_for(Decoding.of(chosen)) == UNKNOWN
    assert other.knocks == 1
    assert reached(run, At(UNKNOWN), None)[0] == UNKNOWN
