"""A prompt is read in the same shapes whatever was there before: an answer's rows are the same to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine import Cursor, Interrupted
from hybrid.engine.port import PROMPT_BLOCK
from hybrid.errors import ContextOverflow

KINDS = ("bundled", "attention", "sliding", "recurrent", "hybrid")
BASE = tuple(random.Random(1).choices(range(1, 250), k=400))
# Lengths at both sides of the ends of blocks, and some between.
LENGTHS = st.one_of(
    st.sampled_from([1, 2, 63, 64, 65, 66, 127, 128, 129, 130, 191, 192, 193, 194]), st.integers(3, 200)
)
# A text: how much it shares with the others, what tells it from them, and how much follows.
TEXTS = st.tuples(st.integers(0, 195), st.integers(0, 4), LENGTHS)
WRITTEN = (7, 31, 5, 5, 44, 101, 9)


def text(shared: int, number: int, rest: int) -> tuple[int, ...]:
    """No text goes on past the end of another: each holds its own number, which no answer here has."""
    return (*BASE[:shared], 250 + number, *random.Random(number).choices(range(1, 250), k=rest - 1))


def answer(cursor: Cursor, prompt, how: str) -> list[np.ndarray]:
    """Begin an answer, write some of it in one of the ways a drafter does, and return all rows on the way."""
    cursor.begin(prompt)
    rows = [cursor.row(prompt)]
    if how == "drafted":
        rows += [cursor.follow(token) for token in WRITTEN]
    elif how == "written by the cloud":
        rows += cursor.rows(prompt + WRITTEN[:-1], len(WRITTEN))
        rows.append(cursor.row(prompt + WRITTEN))
    elif how == "drafted, then turned down":
        rows += [cursor.follow(token) for token in WRITTEN[:4]]
        rows.append(cursor.row((*prompt, *WRITTEN[:2], 12)))
        rows += cursor.rows((*prompt, *WRITTEN[:2], 12, 13, 14), 2)
    return [row.logprobs for row in rows]


WAYS = ("drafted", "written by the cloud", "drafted, then turned down")
HISTORY = st.lists(st.tuples(TEXTS, st.sampled_from([*WAYS, "cancelled"])), min_size=1, max_size=4)


def stop_at(call: int):
    asked = iter(range(call))
    return lambda: next(asked, None) is None


@pytest.mark.parametrize("num_examples", [8, pytest.param(100, marks=pytest.mark.slow)])
@each("kind", KINDS)
def test_rows_equal_those_of_a_fresh_context_after_any_other_texts(opened, kind, num_examples):
    """Otherwise an answer's text depends on which questions came before it, and on which context it was given."""

    @settings(max_examples=num_examples)
    @given(history=HISTORY, last=TEXTS, how=st.sampled_from(WAYS), calls=st.integers(0, 3))
    def after(history, last, how, calls):
        with opened(kind) as used, opened(kind) as fresh:
            cursor = Cursor(used)
            for each_text, way in history:
                if way == "cancelled":
                    try:
                        cursor.begin(text(*each_text), stop_at(calls))
                    except Interrupted:
                        continue
                else:
                    answer(cursor, text(*each_text), way)
            found, expected = answer(cursor, text(*last), how), answer(Cursor(fresh), text(*last), how)
            assert all((one == other).all() for one, other in zip(found, expected, strict=True))

    after()


@pytest.mark.parametrize("num_examples", [6, pytest.param(100, marks=pytest.mark.slow)])
@each("kind", KINDS)
def test_a_text_that_leaves_a_conversation_in_the_middle_is_another_text(opened, kind, num_examples):
    """What was read after an answer was read after tokens that had come one by one: no other text reads it so."""

    @settings(max_examples=num_examples)
    @given(before=LENGTHS, first=TEXTS, more=LENGTHS, cut=st.floats(0, 1), rest=LENGTHS, how=st.sampled_from(WAYS))
    def after(before, first, more, cut, rest, how):
        with opened(kind) as used, opened(kind) as fresh:
            cursor = Cursor(used)
            answer(cursor, text(195, 5, before), "drafted")
            prompt = text(*first)
            answer(cursor, prompt, "drafted")
            second = (*prompt, *WRITTEN, *text(0, 6, more))
            answer(cursor, second, "drafted")
            last = (*second[: int(cut * (len(second) - 1))], 258, *text(0, 7, rest))
            found, expected = answer(cursor, last, how), answer(Cursor(fresh), last, how)
            assert all((one == other).all() for one, other in zip(found, expected, strict=True))

    after()


@each("kind", KINDS)
@each("length", [1, 40, 63, 64, 65, 100, 128, 129])
@each("how", WAYS[:2])
def test_a_conversations_next_turn_reads_its_new_tokens_and_at_most_two_more(opened, kind, length, how):
    """An answer's last token is not decoded unless the next row was wanted."""
    with opened(kind) as engine:
        cursor = Cursor(engine)
        prompt = BASE[:length]
        for turn in range(3):
            answer(cursor, prompt, how)
            new = (250 + turn, *BASE[:30])
            prompt += (*WRITTEN, *new)
            before = engine.num_decoded
            cursor.begin(prompt)
            assert engine.num_decoded - before <= len(new) + 2
            assert engine.ids == prompt


@each("kind", KINDS)
def test_a_conversations_rows_are_the_same_whatever_came_before_it(opened, kind):
    """What its context holds of it was read in the same shapes, too."""

    def converse(cursor):
        rows, prompt = [], BASE[:150]
        for how in WAYS[:2] * 2:
            rows += answer(cursor, prompt, how)
            prompt += (*WRITTEN, *BASE[:90])
        return rows

    with opened(kind) as used, opened(kind) as fresh:
        cursor = Cursor(used)
        answer(cursor, BASE[:300], "drafted")
        answer(cursor, BASE[10:60], "drafted")
        answer(cursor, (*BASE[:140], 258, 1, 2), "drafted")
        assert all((one == other).all() for one, other in zip(converse(cursor), converse(Cursor(fresh)), strict=True))


@each("kind", KINDS)
def test_a_text_that_goes_on_otherwise_than_its_answer_is_another_text(opened, kind):
    """The whole prompt is shared, and yet its end was read in the shapes of a text that ends there."""
    with opened(kind) as used, opened(kind) as fresh:
        cursor, last = Cursor(used), (*BASE[:100], 258, *BASE[:20])
        answer(cursor, BASE[:100], "drafted")
        found, expected = answer(cursor, last, "drafted"), answer(Cursor(fresh), last, "drafted")
        assert all((one == other).all() for one, other in zip(found, expected, strict=True))


@each("kind", ("bundled", "attention", "hybrid"))
def test_what_an_interrupted_prompt_has_read_is_kept_and_no_other_text_goes_on_with_it(opened, kind):
    with opened(kind) as used, opened(kind) as fresh:
        cursor = Cursor(used)
        answer(cursor, BASE[: PROMPT_BLOCK + 1], "drafted")
        with pytest.raises(Interrupted):
            cursor.begin((*BASE[:PROMPT_BLOCK], *BASE[100:300]), stop_at(2))
        assert len(used.ids) == 3 * PROMPT_BLOCK
        last = (*used.ids[: 2 * PROMPT_BLOCK + 9], 258, 4, 4, 1)
        assert cursor.reusable(last) == (2 * PROMPT_BLOCK, False)
        found, expected = answer(cursor, last, "drafted"), answer(Cursor(fresh), last, "drafted")
        assert all((one == other).all() for one, other in zip(found, expected, strict=True))


@each("kind", ("scripted", *KINDS))
def test_an_interrupted_turn_goes_on_where_it_stopped(opened, kind):
    """A question that is cancelled while its conversation is read, and asked again, is read as if it had not been."""
    with opened(kind) as used, opened(kind) as other:
        first, second = BASE[:100], (*BASE[:100], *WRITTEN, *BASE[:200])
        first, second = (tuple(token % 7 for token in ids) if kind == "scripted" else ids for ids in (first, second))
        rows = []
        for engine, call in ((used, 2), (other, None)):
            cursor = Cursor(engine)
            cursor.begin(first)
            for token in second[100:107]:
                cursor.follow(token)
            if call is not None:
                with pytest.raises(Interrupted):
                    cursor.begin(second, stop_at(call))
            cursor.begin(second)
            rows.append(cursor.row(second).logprobs)
            assert engine.num_decoded == len(second) if kind == "scripted" else True
        assert (rows[0] == rows[1]).all()


def test_a_prompt_is_read_in_blocks_then_the_rest_then_the_last_token_alone(opened, monkeypatch):
    with opened("scripted") as engine:
        taken, extend = [], engine.extend
        monkeypatch.setattr(engine, "extend", lambda ids, *more: (taken.append(len(ids)), extend(ids, *more))[1])
        cursor = Cursor(engine)
        for length, expected in [(1, [1]), (2, [1, 1]), (65, [64, 1]), (66, [64, 1, 1]), (200, [64, 64, 64, 7, 1])]:
            cursor.rewind(0)
            taken.clear()
            cursor.begin((1,) * length)
            assert taken == expected
        taken.clear()
        cursor.begin((1,) * 200)
        assert taken == [1], "the same question again"
        cursor.row((*(1,) * 200, 2, 3, 4))
        taken.clear()
        cursor.begin((*(1,) * 200, 2, 3, 4, *(5,) * 100))
        assert taken == [53, 46, 1], "the next turn of a conversation"
        taken.clear()
        cursor.begin((*(1,) * 199, 3))
        assert taken == [7, 1], "another text"


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_changed(opened):
    with opened("scripted", num_context=100) as engine:
        cursor = Cursor(engine)
        cursor.begin((1, 2, 3))
        with pytest.raises(ContextOverflow, match="101 tokens do not fit the context of 100"):
            cursor.begin((1,) * 101)
        assert engine.ids == (1, 2, 3)
        cursor.begin((1,) * 100)


def test_a_model_that_cannot_step_back_exactly_keeps_nothing_that_it_would_have_to(opened):
    """To step back it reads again, in other shapes."""
    with opened("scripted") as engine:
        engine.has_exact_rewind = False
        cursor = Cursor(engine)
        cursor.begin((1,) * 150)
        cursor.row((*(1,) * 150, 2))
        assert cursor.reusable((*(1,) * 150, 2, 3)) == (151, True)
        assert cursor.reusable((*(1,) * 150, 3)) == (0, False)
        assert cursor.reusable((*(1,) * 100, 3)) == (0, False)
