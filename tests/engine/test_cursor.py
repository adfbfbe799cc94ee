"""A cursor's rows depend on the prefix alone: random walks against an engine that never held anything else."""

from __future__ import annotations

import pytest
from cases import each, each_of
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.engine import Cursor, Interrupted, num_shared

PREFIX = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)  # three tokens: prefixes are often shared
CALLS = st.one_of(
    st.tuples(st.just("row"), PREFIX, st.just(1)),
    st.tuples(st.just("rows"), PREFIX, st.integers(1, 10)),
    st.tuples(st.just("rewind"), PREFIX, st.integers(0, 10)),
    st.tuples(st.just("follow"), PREFIX, st.integers(1, 10)),
    st.tuples(st.just("cancel"), PREFIX, st.just(1)),
    st.tuples(st.just("elsewhere"), PREFIX, st.just(1)),
)


def replay(cursor: Cursor, call: str, at: tuple[int, ...], num: int) -> list:
    """Make one call and return the rows it gave, with the prefixes they follow."""
    if call == "row":
        return [(at, cursor.row(at))]
    if call == "follow":
        num = min(num, len(at))
        start = len(at) - num + 1
        rows = [cursor.row(at[:start]), *(cursor.follow(token) for token in at[start:])]
        return list(zip((at[: start + i] for i in range(num)), rows, strict=True))
    if call == "rows":
        num = min(num, len(at))
        return list(zip((at[: len(at) - n] for n in reversed(range(num))), cursor.rows(at, num), strict=True))
    if call == "rewind":
        cursor.rewind(num)
    elif call == "cancel" and cursor.engine.ids != at:
        with pytest.raises(Interrupted):
            cursor.row(at, lambda: True)
    elif call == "elsewhere":  # someone else drove the engine in the meantime
        cursor.engine.rewind(1)
        cursor.engine.extend(at)
    return []


@settings(max_examples=150)
@given(calls=st.lists(CALLS, max_size=15), last=PREFIX)
def test_rows_depend_on_the_prefix_alone(opened, afresh, calls, last):
    """Every policy asks for rows in its own order; what it reads must not depend on that order."""
    with opened("scripted") as engine:
        cursor = Cursor(engine)
        for call, at, num in [*calls, ("row", last, 1)]:
            for prefix, row in each_of(replay(cursor, call, at, num), least=call == "row"):
                assert (row.logprobs == afresh("scripted", prefix)[0].logprobs).all()
                assert engine.ids[: len(at)] == at


WALKS = st.lists(
    st.tuples(
        st.sampled_from(["row", "rows", "follow", "rewind"]), st.integers(1, 60), st.integers(0, 3), st.integers(1, 40)
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.slow
@pytest.mark.parametrize("num_examples", [5, 15])
@each("kind", ["bundled", "hybrid"])
def test_a_real_model_is_read_as_if_it_had_never_held_anything_else(opened, afresh, agree, weights, kind, num_examples):
    """To what batches of different shapes do to float16 sums, as ``agree`` has it."""
    text = weights[kind].tokenize("What is 27 + 48? Add the tens, then the ones: 20 + 40 = 60 and 7 + 8 = 15. So 75.")

    @settings(max_examples=num_examples)
    @given(calls=WALKS)
    def after(calls):
        with opened(kind) as engine:
            cursor = Cursor(engine)
            for call, length, branch, num in calls:
                at = text[:length] + (5,) * branch
                for prefix, row in replay(cursor, call, at, num):
                    assert agree(row, afresh(kind, prefix)[0])

    after()


def test_what_is_shared_is_not_decoded_again(opened):
    with opened("scripted") as engine:
        cursor = Cursor(engine)
        cursor.row((1, 2, 3, 4))
        assert engine.num_decoded == 4
        cursor.row((1, 2, 3, 4))
        assert engine.num_decoded == 4
        cursor.row((1, 2, 3, 4, 5))
        assert engine.num_decoded == 5
        cursor.rows((1, 2, 3, 6), 2)
        assert engine.num_decoded == 7


def test_what_was_decoded_ahead_is_followed_without_decoding_until_another_token_comes(opened):
    with opened("scripted") as engine:
        cursor = Cursor(engine)
        for at in ((1, 2), (1, 2, 0), (1, 2, 0, 1)):
            cursor.row(at)
        assert engine.num_decoded == 4
        cursor.row((1, 2))
        cursor.follow(0)
        assert engine.num_decoded == 4
        cursor.follow(2)
        assert (engine.num_decoded, engine.ids) == (5, (1, 2, 0, 2))


def test_to_follow_a_text_is_not_to_read_it(opened, monkeypatch):
    """Behind 8,000 tokens, comparing the text at every drafted token took more than all else that drafting does."""
    with opened("scripted") as engine:
        cursor = Cursor(engine)
        cursor.row((1, 2, 0) * 100)
        held = engine._ids
        monkeypatch.setattr(type(engine), "ids", property(lambda _: pytest.fail("the whole text was read")))
        for token in (2, 1, 1):
            cursor.follow(token)
        assert engine._ids == (*held, 2, 1, 1)


def test_a_token_is_decoded_again_where_its_row_is_not_known(opened):
    with opened("scripted") as engine:
        cursor = Cursor(engine)
        cursor.row((1, 2, 3))
        cursor.rewind(2)
        cursor.row((1, 2))
        assert engine.num_decoded == 4


@given(first=PREFIX, second=PREFIX)
def test_the_shared_prefix_is_the_longest_one(first, second):
    shared = num_shared(first, second)
    assert first[:shared] == second[:shared]
    assert first[: shared + 1] != second[: shared + 1] or shared == len(first) == len(second)
