"""What the port promises, asked of every engine: the scripted one and llama.cpp over each kind of memory it has."""

from __future__ import annotations

from contextlib import suppress

import llama_cpp as ll
import numpy as np
import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine import Interrupted
from hybrid.engine.llama import CHUNK, MAX_ROWS
from hybrid.errors import ContextOverflow
from hybrid.prob import Dense

LLAMA = ("attention", "sliding", "recurrent", "hybrid", "bundled")
ENGINES = ("scripted", *LLAMA)
TOKENS = st.integers(0, 6)  # ids that every vocabulary here has
STEPS = st.one_of(
    st.tuples(st.lists(TOKENS, min_size=1, max_size=40).map(tuple), st.integers(0, 3)),
    st.integers(0, 60),
)


def text(num_tokens: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 7, num_tokens).tolist())


def rows(engine, ids: tuple[int, ...], num_rows: int) -> list[Dense]:
    return [Dense.from_logits(scores) for scores in engine.extend(ids, num_rows)]


def stop_at(call: int):
    """Say "cancelled" when asked for the ``call``-th time, and from then on."""
    asked = iter(range(call))
    return lambda: next(asked, None) is None


@pytest.mark.parametrize("num_examples", [12, pytest.param(40, marks=pytest.mark.slow)])
@each("kind", ENGINES)
def test_rows_depend_on_what_is_held_and_not_on_what_was(opened, afresh, agree, kind, num_examples):
    """A cache that answers from a forgotten token is fluent and wrong; nothing else would notice."""

    @settings(max_examples=num_examples)
    @given(history=st.lists(STEPS, max_size=8), last=st.lists(TOKENS, min_size=1, max_size=5).map(tuple))
    def after(history, last):
        with opened(kind) as engine:
            held = ()
            for step in [*history, (last, len(last))]:
                if isinstance(step, int):
                    engine.rewind(step)
                    held = held[:step]
                else:
                    ids, num_rows = step[0], min(step[1], len(step[0]))
                    held += ids
                    found = rows(engine, ids, num_rows)
                    if num_rows:
                        assert all(map(agree, found, afresh(kind, held, num_rows)))
                assert engine.ids == held

    after()


@each("num_back", [1, 5, 16, 17, 40])
@each("span", [1, 3, 20, 60])
@each("kind", LLAMA)
def test_stepping_back_is_exact_however_the_tokens_came(opened, afresh, agree, kind, span, num_back):
    """Recurrent layers go back to a saved state, and then through the same decodes."""
    ids, other = text(60), (6, 5, 6)
    with opened(kind) as engine:
        for start in range(0, 60, span):
            engine.extend(ids[start : start + span], min(2, span))
        engine.rewind(60 - num_back)
        assert engine.ids == ids[: 60 - num_back]
        assert all(map(agree, rows(engine, other, 3), afresh(kind, ids[: 60 - num_back] + other, 3)))
        engine.rewind(61 - num_back)
        engine.rewind(59 - num_back)  # twice in a row: a snapshot can be taken up once only
        assert agree(rows(engine, (2,), 1)[0], afresh(kind, (*ids[: 59 - num_back], 2))[0])


@each("kind", LLAMA)
def test_stepping_back_behind_a_window_that_has_moved_on_is_exact(opened, afresh, agree, kind):
    """By default llama.cpp keeps a window and a chunk of a sliding-window layer, and overwrites the rest."""
    ids, other = text(1000), (6, 5, 6)
    with opened(kind) as engine:
        engine.extend(ids, 0)
        engine.rewind(300)
        assert all(map(agree, rows(engine, other, 3), afresh(kind, ids[:300] + other, 3)))


def test_llama_cpp_forgets_in_two_ways(opened):
    """The laws above are worth their name only while the tiny models differ in this."""

    def agrees_to_drop(kind: str, num_back: int) -> bool:
        with opened(kind) as engine:
            engine.extend(text(40), 20)
            return bool(ll.llama_memory_seq_rm(engine._memory, 0, 40 - num_back, -1))

    for num_back in (3, 30):
        assert agrees_to_drop("attention", num_back)
        assert not agrees_to_drop("recurrent", num_back)
        assert not agrees_to_drop("hybrid", num_back)


@each("kind", ENGINES)
def test_a_rewind_gives_back_the_very_numbers_that_were_there(opened, kind):
    """Nobody reads ahead of a model that would read its prefix again: it costs more, and other sums come out."""
    with opened(kind) as engine:
        assert engine.has_exact_rewind
        engine.extend(text(30), 1)
        before = engine.extend((3,), 1)
        engine.extend((4,), 1)
        engine.rewind(30)
        assert (engine.extend((3,), 1) == before).all()


@each("kind", ENGINES)
def test_rows_of_one_decode_equal_one_by_one_decoding(opened, agree, kind):
    ids = text(20)
    with opened(kind) as at_once, opened(kind) as one_by_one:
        together = rows(at_once, ids, 20)
        assert all(map(agree, together, [rows(one_by_one, (token,), 1)[0] for token in ids]))


@each("kind", ENGINES)
def test_more_rows_than_one_decode_returns_are_all_given_in_order(opened, afresh, agree, kind):
    ids = text(2 * MAX_ROWS + 20)
    with opened(kind) as engine:
        found = rows(engine, ids, 2 * MAX_ROWS + 7)
    assert len(found) == 2 * MAX_ROWS + 7
    for num_after in (0, 7, MAX_ROWS, 2 * MAX_ROWS + 6):
        assert agree(found[-1 - num_after], afresh(kind, ids[: len(ids) - num_after])[0])


@each("kind", ENGINES)
def test_no_rows_may_be_asked_for(opened, afresh, agree, kind):
    with opened(kind) as engine:
        assert engine.extend((1, 2, 3), 0).shape == (0, engine.num_tokens)
        assert engine.ids == (1, 2, 3)
        assert agree(rows(engine, (4,), 1)[0], afresh(kind, (1, 2, 3, 4))[0])


@each("kind", ENGINES)
def test_rows_are_a_copy(opened, kind):
    """llama.cpp writes the next decode's scores where the last ones were."""
    with opened(kind) as engine:
        first = engine.extend((1, 2, 3), 2)
        kept = first.copy()
        engine.extend((4, 5, 6), 3)
        assert (first == kept).all()
        assert first.dtype == np.float32


@each("kind", ENGINES)
def test_overflow_is_raised_before_anything_is_decoded(opened, afresh, agree, kind):
    with opened(kind, 300) as engine:
        engine.extend(text(20), 0)
        with pytest.raises(ContextOverflow, match=r"^301 tokens do not fit the context of 300"):
            engine.extend(text(281))
        assert engine.ids == text(20)
        assert agree(rows(engine, (1,), 1)[0], afresh(kind, (*text(20), 1))[0])
        engine.extend(text(279), 0)
        assert len(engine.ids) == engine.num_context


@each("kind", ENGINES)
@each("call", [0, 1, 2, 3, 4])
def test_a_cancelled_prefill_holds_exactly_what_was_taken(opened, afresh, agree, kind, call):
    """A server drops a client in the middle of a prompt; the next client must not meet half a cache."""
    ids = text(600)
    with opened(kind) as engine:
        with suppress(Interrupted):
            engine.extend(ids, 1, stop_at(call))
        taken = len(engine.ids)
        assert engine.ids == ids[:taken]
        if taken == 600:
            engine.rewind(599)
        assert agree(rows(engine, ids[len(engine.ids) :], 1)[0], afresh(kind, ids)[0])


@each("kind", LLAMA)
@each("call", [0, 1, 2, 3])
def test_a_prefill_stops_at_the_next_chunk(opened, kind, call):
    """A chunk bounds how long a cancelled caller waits; the last token has a chunk of its own, for its row."""
    with opened(kind) as engine, pytest.raises(Interrupted):
        engine.extend(text(600), 1, stop_at(call))
    assert len(engine.ids) == min(call * CHUNK, 599)


@each("kind", ENGINES)
def test_rewinding_to_more_than_is_held_changes_nothing(opened, kind):
    with opened(kind) as engine:
        engine.extend((1, 2, 3), 0)
        engine.rewind(3)
        engine.rewind(1000)
        assert engine.ids == (1, 2, 3)
        engine.rewind(0)
        assert engine.ids == ()
