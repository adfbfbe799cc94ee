"""A cloud of another vocabulary: its own greedy text whatever is drafted, and every byte of a text once."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from cases import each
from hypothesis import example, given
from hypothesis import strategies as st
from scripted_cloud import ScriptedCloud

from hybrid.cloud import Chunk, ScoreQuestion, WriteQuestion
from hybrid.cloud.translated import TranslatedCloud
from hybrid.cloud.translation import ExactSplitter, RowTranslator, StreamRetokenizer, TokenizedAnswer
from hybrid.errors import MissingCapability, VocabularyMismatch
from hybrid.policy.policy import ABILITY_TEXT
from hybrid.prob import Dense, kl_divergence
from hybrid.types import Message, Sampling
from tests.oracles.vocabularies import Pieces

HALF, OTHER = b"\xc3", b"\xa9"
OURS = Pieces(["a", "b", "ab", "ba", "aab", HALF, OTHER, "é", "<e>"], ends=frozenset({8}))
END, LONGEST = 8, 14
seeds = st.integers(0, 2**32 - 1)


class Words(Pieces):
    """Their vocabulary: a conversation is its letters, between marks of its own."""

    control_ids = frozenset({8, 9})

    def render(self, messages):
        return (9, *self.tokenize("".join(each.content for each in messages)), 9)


THEIRS = Words(["a", "b", "aa", "bb", "bab", HALF, OTHER, "éa", "<stop>", "<turn>"], ends=frozenset({8}), opening=(9,))


def table(seed):
    """A model of their ids that depends on all of them, not only on the text."""

    def scores(ids):
        rng = np.random.default_rng([seed, *ids])
        row = rng.normal(0.0, 2.0, THEIRS.num_tokens)
        row[9] = -20.0
        row[5:7] -= 2.0
        return row

    return scores


def greedy_text(scores, prompt, limit):
    """The cloud's own text, as it would write it alone."""
    ids = prompt
    while len(ids) < len(prompt) + limit:
        token = int(np.argmax(scores(ids)))
        if token in THEIRS.end_ids:
            break
        ids += (token,)
    return b"".join(map(THEIRS.piece, ids[len(prompt) :]))


def spelled(ids):
    return b"".join(OURS.piece(token) for token in ids if token != END)


def drafted(rng, text, expected):
    """Some tokens: mostly how the expected text goes on, in any of our spellings, sometimes anything."""
    ids = []
    while len(ids) < rng.randint(0, 4):
        rest = expected[len(text) :]
        fits = [token for token in range(END) if rest.startswith(OURS.piece(token))]
        token = rng.choice(fits) if fits and rng.random() < 0.8 else rng.choice([*range(END), END])
        ids.append(token)
        text += OURS.piece(token)
        if token == END:
            break
    return tuple(ids)


async def exact_match(cloud, rng, expected):
    """Greedy speculation by hand: accept while the row names the drafted token, then take what it names."""
    prompt, answer, turns = (0, 1), (), (Message("user", "ab"),)
    while END not in answer and len(spelled(answer)) < LONGEST:
        asked = {"begun": len(answer), "turns": turns}
        if rng.random() < 0.3:
            question = WriteQuestion(prompt + answer, rng.randint(1, 3), 4, Sampling(), **asked)
            cloud.max_usage(question)
            answer += tuple(itertools.chain(*[chunk.ids async for chunk in cloud.write(question, "w")]))
            continue
        span = drafted(rng, spelled(answer), expected)
        question = ScoreQuestion(prompt + answer, span, END not in span, 4, **asked)
        cloud.max_usage(question)
        rows = (await cloud.score(question, "s")).rows
        assert rows, "an answer goes on"
        for token, row in itertools.zip_longest(span, rows):
            if row is None:
                break
            answer += (row.best,)
            if row.best != token:
                break
    return answer


@given(seeds)
@example(20)  # a token that they would have written only behind another than their own
@example(191)  # an empty draft inside a favourite
@example(1014)  # a draft that parts from a favourite behind its first byte
@example(479001598)  # two favourites that the text could stand in
def test_whatever_is_drafted_and_however_it_is_spelled_the_text_is_the_clouds_own(seed):
    scores = table(seed)
    cloud = TranslatedCloud(ScriptedCloud(scores, end_ids=THEIRS.end_ids), THEIRS, OURS)
    expected = greedy_text(scores, THEIRS.render([Message("user", "ab")]), 2 * LONGEST)
    text = spelled(asyncio.run(exact_match(cloud, random.Random(seed), expected)))
    assert expected.startswith(text[:LONGEST])
    assert len(text) >= min(LONGEST, len(expected))


@given(seeds, st.integers(1, 7))
def test_what_the_cloud_writes_is_shown_to_the_byte_however_it_is_asked_for(seed, limit):
    """In blocks of any length: the last token is held back while it may grow, and none is lost or doubled."""
    scores = table(seed)
    inner = ScriptedCloud(scores, end_ids=THEIRS.end_ids)
    cloud = TranslatedCloud(inner, THEIRS, OURS)
    turns = (Message("user", "b"),)

    async def written():
        answer = ()
        while END not in answer and len(spelled(answer)) < LONGEST:
            question = WriteQuestion((1, *answer), limit, 0, Sampling(), begun=len(answer), turns=turns)
            answer += tuple(itertools.chain(*[chunk.ids async for chunk in cloud.write(question, "w")]))
        return answer

    assert greedy_text(scores, THEIRS.render(turns), 3 * LONGEST).startswith(spelled(asyncio.run(written()))[:LONGEST])
    assert all(len(asked.prefix) + asked.limit >= 1 for asked in inner.questions)


def ask(cloud, question):
    return asyncio.run(cloud.score(question, "s"))


def fixed(row):
    """A cloud that says the same everywhere."""
    return TranslatedCloud(ScriptedCloud(lambda _: np.log(row), end_ids=THEIRS.end_ids), THEIRS, OURS)


ROW = np.array([0.1, 0.5, 0.02, 0.1, 0.2, 0.01, 0.01, 0.01, 0.04, 0.01])


def test_a_row_inside_a_token_is_what_goes_on_from_the_bytes_before_it():
    """``bab`` is one token there and two here: after ``ba`` it may go on, or ``b`` stood alone."""
    [first, inside, _] = ask(fixed(ROW), ScoreQuestion((0,), (3, 1), True, 10)).rows
    assert dict(zip(first.strings, first.masses.tolist(), strict=True))[b"bab"] == pytest.approx(0.2)
    told = dict(zip(inside.strings, inside.masses.tolist(), strict=True))
    assert told == pytest.approx({b"b": 0.2 / 0.71})
    assert inside.hidden == pytest.approx(0.51 / 0.71), "``b``, behind which a row stands that was not told"


def test_two_models_that_say_the_same_in_other_tokens_are_near():
    """Both begin with ``a`` four times in ten and with ``b`` five times, in tokens of one letter or of two."""
    ours = Dense.from_probs(np.array([0.3, 0.2, 0.1, 0.3, 0.0, 0.0, 0.0, 0.0, 0.1]) + 1e-12)
    theirs = np.array([0.25, 0.25, 0.15, 0.05, 0.2, 0.0, 0.0, 0.0, 0.1, 0.0]) + 1e-9
    row = ask(fixed(theirs / theirs.sum()), ScoreQuestion((0,), (), True, 10)).rows[0]
    assert kl_divergence(row, ours).lower < 1e-6
    far = Dense.from_probs(np.array([0.05, 0.85, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1]) + 1e-12)
    assert kl_divergence(row, far).lower > 0.3


def sure(*texts):
    """A cloud that writes some tokens of theirs, and ends."""
    row = {(9, 0, *texts[:number]): token for number, token in enumerate((*texts, 8))}
    inner = ScriptedCloud(lambda ids: np.eye(10)[row.get(ids, 8)] * 9, end_ids=THEIRS.end_ids)
    return TranslatedCloud(inner, THEIRS, OURS)


@each(
    "theirs, span",
    [
        ((4,), (1, 2)),
        ((4,), (3, 1)),
        ((0, 1), (2,)),
        ((0, 1), (0, 1)),
        ((2, 1), (4,)),
        ((2, 1), (0, 0, 1)),
        ((7,), (7, 0)),
    ],
)
def test_their_own_text_is_a_draft_that_stands_however_it_is_spelled_here(theirs, span):
    """Else a draft of the same text would be turned down for its tokens, and checked again."""
    rows = ask(sure(*theirs), ScoreQuestion((0,), span, True, 10)).rows
    assert [row.best for row in rows] == [*span, END]


def test_where_their_favourite_is_another_text_the_likeliest_that_goes_on_is_named():
    """``a`` is the favourite; after ``b`` nothing of it goes on, and ``bab`` is likelier than ``bb``."""
    row = np.array([0.5, 0.04, 0.05, 0.1, 0.2, 0.01, 0.01, 0.01, 0.04, 0.04])
    assert ask(fixed(row), ScoreQuestion((0,), (1, 2), False, 10)).rows[1].best == 2


def test_where_a_drafted_token_is_longer_than_theirs_the_rows_inside_it_tell_what_follows():
    told = ask(fixed(ROW), ScoreQuestion((0,), (2,), False, 10)).rows[0]
    masses = dict(zip(told.strings, told.masses.tolist(), strict=True))
    assert (masses[b"ab"], masses[b"abab"]) == pytest.approx((0.1 * 0.5, 0.1 * 0.2))
    assert masses[b"b"] == pytest.approx(0.5), "what begins otherwise is as it was"


def test_a_text_that_outgrows_their_context_is_refused_before_it_is_asked():
    """Their tokens count, not ours: the mark, ``a``, and what follows."""

    class Small(ScriptedCloud):
        async def connect(self, probe, probe_ids, asked_at=None):
            return replace(await super().connect(probe, probe_ids), max_context=5)

    inner = Small(lambda _: np.log(ROW), end_ids=THEIRS.end_ids)
    cloud = TranslatedCloud(inner, THEIRS, OURS)
    asyncio.run(cloud.connect("a", (0,)))
    assert len(ask(cloud, ScoreQuestion((0,), (0, 1), False, 10)).rows) > 0
    with pytest.raises(MissingCapability, match="outgrown"):
        ask(cloud, ScoreQuestion((0,), (0, 1, 0), False, 10))
    writes = [WriteQuestion((0,), limit, 0, Sampling()) for limit in (2, 9)]
    most = [cloud.max_usage(question).completion_tokens for question in writes]
    assert most == [2, 3], "no more than there is room for"
    with pytest.raises(MissingCapability, match="outgrown"):
        cloud.max_usage(WriteQuestion((0, 0, 1, 0), 9, 0, Sampling(), begun=3))


def test_half_a_character_is_asked_about_as_what_goes_on_from_it():
    rows = ask(fixed(ROW), ScoreQuestion((0,), (5, 6), True, 10)).rows
    assert set(rows[1].strings) == {b"a", b"b", b"aa", b"bb", b"bab", HALF, OTHER, b"\xc3\xa9a", b"\xa9a"}


def test_a_text_that_spells_an_end_token_ends_nothing():
    rows = ask(fixed(ROW), ScoreQuestion((0,), (8,), False, 10)).rows
    assert len(rows) == 1
    assert rows[0].ending == pytest.approx(0.04)


def test_the_last_token_is_held_back_while_it_may_still_grow():
    """``a`` and ``b`` come one by one and are one token here."""
    row = {(9, 9): 0, (9, 9, 0): 1, (9, 9, 0, 1): 8}
    inner = ScriptedCloud(lambda ids: np.eye(10)[row.get(ids, 8)] * 9, end_ids=THEIRS.end_ids)
    question = WriteQuestion((0,), 9, 0, Sampling(), turns=(Message("user", ""),))

    async def chunks():
        return [chunk.ids async for chunk in TranslatedCloud(inner, THEIRS, OURS).write(question, "w")]

    assert [ids for ids in asyncio.run(chunks()) if ids] == [(2, END)]


def test_what_a_server_writes_behind_its_end_is_no_part_of_the_text():
    """A server that is told to ignore the end goes on: ``a``, the end, ``b``."""
    writer = StreamRetokenizer(RowTranslator(THEIRS, ExactSplitter(OURS)), ExactSplitter(OURS), TokenizedAnswer(), b"")
    assert writer.read(Chunk((0, 8, 1), (None, None, None), finish="length")).ids == (0, END)


def test_the_prompt_is_rendered_by_their_own_template_and_charged_in_their_tokens():
    inner = ScriptedCloud(lambda _: np.log(ROW), end_ids=THEIRS.end_ids)
    cloud = TranslatedCloud(inner, THEIRS, OURS)
    question = ScoreQuestion((0, 1, 2, 3), (2,), False, 4, begun=1, turns=(Message("user", "bab"),))
    scores = ask(cloud, question)
    [asked] = inner.questions
    assert asked.prefix == (9, 4, 9, 1), "``ba`` and ``ab`` are ``b``, ``aa``, ``b`` there"
    assert scores.usage.prompt_tokens == cloud.max_usage(question).prompt_tokens == len(asked.prefix + asked.span)


@pytest.mark.parametrize(
    ("change", "said"), [({"ban": frozenset({1})}, "banned"), ({"has_template_args": True}, "template")]
)
def test_what_means_nothing_in_another_vocabulary_is_a_sentence(change, said):
    question = replace(WriteQuestion((0,), 1, 0, Sampling(), turns=(Message("user", "a"),)), **change)
    with pytest.raises(MissingCapability, match=said):
        fixed(ROW).max_usage(question)


def test_an_endpoint_that_spells_otherwise_than_the_file_is_refused():
    class Telling(ScriptedCloud):
        async def score(self, question, request_id, before_send=None):
            return replace(await super().score(question, request_id), pieces={1: "zzz"})

    cloud = TranslatedCloud(Telling(lambda _: np.log(ROW), end_ids=THEIRS.end_ids), THEIRS, OURS)
    with pytest.raises(VocabularyMismatch, match="token 1 is 'zzz'"):
        ask(cloud, ScoreQuestion((0,), (), True, 4))


def test_it_says_that_its_words_are_others():
    can = asyncio.run(fixed(ROW).connect("ab", (2,)))
    assert (can.same_words, can.ids, can.counts_tokens) == (False, False, False)
    assert ABILITY_TEXT.keys() - can.abilities == {"ids"}
