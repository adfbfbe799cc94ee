"""The same tokens under other numbers: what is asked and answered is the same, token for token."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from scripted_cloud import ScriptedCloud

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.translated import RenumberedCloud, numbers_of
from hybrid.types import Sampling
from tests.oracles.vocabularies import Pieces

PIECES = ("a", "b", "c", "d", "<e>")
ORDER = (3, 0, 4, 1, 2)  # where each of ours stands in theirs
OURS = Pieces(PIECES, ends=frozenset({4}))
THEIRS = Pieces([PIECES[ORDER.index(number)] for number in range(5)], ends=frozenset({2}))


def scores(ids):
    return np.random.default_rng([len(ids), *ids]).normal(0.0, 2.0, 5)


def in_theirs(ids):
    """The same model, asked in their numbers."""
    own = scores(tuple(ORDER.index(token) for token in ids))
    return [own[ORDER.index(number)] for number in range(5)]


@pytest.fixture
def both():
    numbers = numbers_of(THEIRS, OURS)
    inner = ScriptedCloud(in_theirs, end_ids=THEIRS.end_ids)
    return RenumberedCloud(inner, numbers), ScriptedCloud(scores, end_ids=OURS.end_ids), inner


async def told(cloud, question):
    if isinstance(question, ScoreQuestion):
        found = await cloud.score(question, "r")
        return [(row.ids.tolist(), row.logprobs.round(12).tolist()) for row in found.rows], found.usage
    chunks = [chunk async for chunk in cloud.write(question, "r")]
    return [(chunk.ids, [row and row.ids.tolist() for row in chunk.rows], chunk.finish) for chunk in chunks]


@pytest.mark.parametrize(
    "question",
    [
        ScoreQuestion((0, 1), (2, 3, 0), True, 3),
        ScoreQuestion((0,), (), True, 5),
        WriteQuestion((0, 1), 4, 3, Sampling()),
        WriteQuestion((3,), 2, 0, Sampling(), frozenset({1, 2})),
    ],
)
def test_what_is_asked_and_answered_is_the_same(both, question):
    renumbered, plain, inner = both
    assert asyncio.run(told(renumbered, question)) == asyncio.run(told(plain, question))
    assert renumbered.max_usage(question) == plain.max_usage(question)
    assert [ORDER[token] for token in question.prefix] == [*inner.questions[0].prefix]


def test_padding_that_an_endpoint_tells_of_is_no_token_of_ours():
    inner = ScriptedCloud(lambda _: [0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 8.0])
    found = asyncio.run(RenumberedCloud(inner, numbers_of(THEIRS, OURS)).score(ScoreQuestion((0,), (), True, 7), "r"))
    padding, tokens = found.rows[0].ids[:2].tolist(), found.rows[0].ids[2:].tolist()
    assert len(set(padding)) == 2
    assert min(padding) >= len(PIECES)
    assert [ORDER[token] for token in tokens] == [4, 3, 2, 1, 0]


def test_it_says_what_the_endpoint_says_and_compares_in_its_numbers(both):
    asked = []

    class Asked(ScriptedCloud):
        async def connect(self, probe, probe_ids, asked_at=None):
            asked.append(probe_ids)
            return replace(await super().connect(probe, probe_ids), same_words=True)

    can = asyncio.run(RenumberedCloud(Asked(scores), numbers_of(THEIRS, OURS)).connect("ab", (0, 1)))
    assert asked == [(3, 0)]
    assert can.same_words
    assert can.ids


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        (("a", "b", "c", "x", "<e>"), {4}),
        (("a", "b", "c", "d"), set()),
        (("a", "b", "c", "d", "d", "<e>"), {5}),
        (PIECES, {3}),
    ],
)
def test_other_tokens_several_of_one_text_and_other_ends_are_no_renumbering(pieces, ends):
    assert numbers_of(Pieces(pieces, ends=frozenset(ends)), OURS) is None
