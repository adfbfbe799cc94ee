"""Recurrent layers step back to a saved state: to the last bit, and for few tokens decoded again."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_shapes import TINY_RECURRENT

from hybrid.engine import Cursor, Interrupted, num_shared, recurrent
from hybrid.engine.recurrent import STEP, least_useful
from hybrid.prob import Dense

RECURRENT = ("recurrent", "hybrid")  # Mamba, and Qwen3.5's kind
ARCHITECTURES = (*RECURRENT, *TINY_RECURRENT)
TOKENS = st.integers(0, 6)
# Tokens read at once, with rows or without, or one by one; or a place to go back to.
STEPS = st.one_of(
    st.tuples(st.lists(TOKENS, min_size=1, max_size=30).map(tuple), st.booleans()),
    st.integers(0, 80),
)


def text(num_tokens: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 7, num_tokens).tolist())


def other(num_tokens: int, which: int) -> tuple[int, ...]:
    """Return a text of tokens that no other text has."""
    return tuple(token + 10 * which + 10 for token in text(num_tokens))


def write(engine, ids):
    """Decode one by one, as a draft does."""
    return [engine.extend((token,), 1)[0] for token in ids]


@pytest.fixture
def rejected(opened):
    """Return how many tokens are decoded after ``num_back`` were rejected, beside the next one."""

    def num_again(kind, num_written, num_back, *, settled=0):
        with opened(kind) as engine:
            engine.extend(text(200), 1)
            ids = text(num_written, seed=1)
            write(engine, ids[: len(ids) - settled])
            engine.settle(len(engine.ids))
            write(engine, ids[len(ids) - settled :])
            engine.rewind(len(engine.ids) - num_back)
            before = engine.num_decoded
            engine.extend((5,), 1)
            return engine.num_decoded - before - 1

    return num_again


@pytest.mark.parametrize("num_examples", [4, pytest.param(60, marks=pytest.mark.slow)])
@each("kind", ARCHITECTURES)
def test_what_was_forgotten_leaves_no_bit_behind(opened, kind, num_examples):
    """Nor does the way back: the engine beside it only ever held what is kept, in the same groups."""

    @settings(max_examples=num_examples)
    @given(history=st.lists(STEPS, max_size=8), last=st.lists(TOKENS, min_size=1, max_size=5).map(tuple))
    def after(history, last):
        with opened(kind) as engine, opened(kind) as straight:
            groups = []
            for step in [*history, (last, True)]:
                if isinstance(step, int):
                    engine.rewind(step)
                    starts = np.cumsum([0, *map(len, groups)]).tolist()
                    groups = [
                        group[: step - start] for group, start in zip(groups, starts, strict=False) if start < step
                    ]
                else:
                    engine.extend(step[0], len(step[0]) * step[1])
                    groups.append(step[0])
            for group in groups[:-1]:
                straight.extend(group, 0)
            expected = straight.extend(groups[-1], len(last))
            engine.rewind(len(engine.ids) - len(last))
            assert (engine.extend(last, len(last)) == expected).all()

    after()


@each("kind", RECURRENT)
def test_a_rejection_decodes_fewer_tokens_again_than_a_state_is_apart(rejected, kind):
    """Before, it read all 260 again. A draft of 16 and as many decoded ahead lie within reach."""
    for num_back in (1, 3, 8, 16):
        assert rejected(kind, 60, num_back) < 4
    assert rejected(kind, 60, 33) < 8


@each("kind", RECURRENT)
def test_where_only_few_states_fit_a_rejection_decodes_no_more_than_its_span_again(rejected, kind, monkeypatch):
    monkeypatch.setattr(recurrent, "MOST_BYTES", 0)
    for num_back in (1, 2, 5, 13, 24):
        assert rejected(kind, 60, num_back, settled=24) <= 24 - num_back + 3


@pytest.fixture
def asked(opened):
    """Ask a first question of 300 tokens, write 90, and return how many tokens each of the next ones decodes again."""

    def num_again(kind, following):
        with opened(kind) as engine:
            cursor, again = Cursor(engine), []
            cursor.begin(text(300))
            for prompt in following:
                for token in text(90, seed=9):
                    cursor.follow(token)
                shared, before = num_shared(engine.ids, prompt), engine.num_decoded
                cursor.begin(prompt)
                again.append(engine.num_decoded - before - (len(prompt) - shared))
            return again

    return num_again


@each("kind", RECURRENT)
def test_a_conversation_s_next_turn_reads_what_is_new(asked, kind):
    first = text(300) + text(90, seed=9) + text(40, seed=2)
    assert asked(kind, [first, first + text(90, seed=9) + text(40, seed=3)]) == [0, 0]


@each("kind", RECURRENT)
def test_a_turn_whose_template_leaves_thoughts_out_reads_from_the_last_block(asked, kind):
    """The answer is not as it was written, so whole blocks of the prompt before it are kept, and no more."""
    first = text(299) + other(70, 1)
    assert asked(kind, [first, first[:-1] + other(40, 2)]) == [299 % 64, (len(first) - 1) % 64]


@each("kind", RECURRENT)
def test_the_third_question_under_a_system_prompt_reads_it_no_more(asked, kind):
    """Where the second one's text parted from the first one's, its own place to come back to was made."""
    following = [text(200) + other(170, which) for which in range(3)]
    second, *later = asked(kind, following)
    assert second <= 200
    assert later == [200 % 64] * 2


@each("kind", RECURRENT)
def test_states_take_no_more_memory_than_they_may(opened, kind, monkeypatch):
    with opened(kind) as engine:
        write(engine, text(200))
        assert len(engine._states) == recurrent.MOST_STATES
        size = engine._states.num_bytes // recurrent.MOST_STATES
    with opened(kind) as engine, monkeypatch.context() as patch:
        patch.setattr(recurrent, "MOST_BYTES", 6 * size)
        write(engine, text(200))
        engine.rewind(190)
        write(engine, text(20))
        assert engine._states.num_bytes == 6 * size


@each("kind", RECURRENT)
def test_a_way_back_that_was_cancelled_is_gone_again(opened, kind):
    """The tokens in ``ids`` are not yet in the memory then: whoever reads on must not skip them."""
    ids = text(40)
    with opened(kind) as engine, opened(kind) as straight:
        write(engine, ids)
        engine.rewind(39)
        asked = iter(range(2))
        with suppress(Interrupted):
            engine.extend((6,), 1, lambda: next(asked, None) is None)
        assert engine.ids == ids[:39]
        write(straight, ids[:39])
        assert (engine.extend((6,), 1) == straight.extend((6,), 1)).all()


@each("kind", RECURRENT)
def test_a_state_that_does_not_bring_the_same_numbers_back_is_not_used(
    opened, agree, afresh, weights, kind, monkeypatch
):
    """Then nothing is decoded ahead, and a rewind reads the prefix again, as any model's could."""
    monkeypatch.setattr(weights[kind], "_restores_exactly", None)
    monkeypatch.setattr(recurrent.ll, "llama_state_seq_set_data_ext", lambda *_: 0)
    with opened(kind) as engine:
        assert not engine.has_exact_rewind
        assert engine.ids == ()
        write(engine, text(40))
        engine.rewind(30)
        assert engine.ids == text(40)[:30]
        found = [Dense.from_logits(scores) for scores in engine.extend((5, 6), 2)]
        assert all(map(agree, found, afresh(kind, (*text(40)[:30], 5, 6), 2)))


@each("kind", RECURRENT)
def test_what_is_decoded_again_keeps_its_groups(opened, kind, monkeypatch):
    """Other groups bring other bits; how different, depends on the model's matrices."""
    with opened(kind) as engine:
        engine.extend(text(100), 0)
        engine.extend(text(20), 20)
        write(engine, text(3))
        engine.extend(text(3), 3)
        write(engine, text(3))
        groups, decode = [], engine._decode
        monkeypatch.setattr(engine, "_decode", lambda ids, **how: groups.append(len(ids)) or decode(ids, **how))
        for length, expected in ((128, [1, 1]), (125, [1, 1, 1, 2]), (110, [10]), (90, [90])):
            groups.clear()
            engine.rewind(length)
            engine.extend((6,), 1)
            assert groups[:-1] == expected


@each("kind", RECURRENT)
def test_a_state_that_was_dropped_leaves_its_memory_to_the_next(opened, kind):
    """Fresh memory costs many times what copying a state does."""
    with opened(kind) as engine:
        write(engine, text(100))
        memory = {id(state) for state in engine._states._states.values()}
        for _ in range(3):
            engine.rewind(60)
            write(engine, text(40))
        assert {id(state) for state in engine._states._states.values()} <= memory


def test_the_states_that_are_left_lie_as_far_apart_as_from_the_end():
    kept = []
    for length in range(STEP, 3000, STEP):
        if len(kept) == recurrent.MOST_STATES:
            kept.pop(least_useful(kept, length))
        kept.append(length)
    distances = [3000 - length for length in reversed(kept)]
    assert distances[:4] == [4, 8, 12, 16]
    assert all(further <= 3 * nearer for nearer, further in pairwise(distances))
    assert distances[-1] > 1000
