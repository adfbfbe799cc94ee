"""Laws of the two values that every other computation stands on: Dense and TopK."""

import math

import numpy as np
import pytest
from cases import each
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid.prob import Dense, NotADistribution, TopK

# Integer weights make ties and exact zeros; exponentials make probabilities many orders of magnitude apart.
WEIGHT = st.integers(0, 5).map(float) | st.floats(-200, 0).map(math.exp)


@st.composite
def laws(draw, min_size=1):
    weights = np.array(draw(st.lists(WEIGHT, min_size=min_size, max_size=12).filter(any)))
    return Dense.from_probs(weights / weights.sum())


def best_first(law):
    """Sort all tokens naively: by probability, then by id."""
    return sorted(enumerate(law.logprobs.tolist()), key=lambda pair: (-pair[1], pair[0]))


@given(st.lists(st.floats(-80, 80), min_size=1, max_size=20), st.floats(-50, 50))
def test_logits_become_probabilities_and_a_common_shift_changes_nothing(logits, shift):
    scores = np.array(logits)
    law, shifted = Dense.from_logits(scores), Dense.from_logits(scores + shift)
    naive = [math.exp(x - max(logits)) for x in logits]
    assert law.probs == pytest.approx([x / math.fsum(naive) for x in naive], abs=1e-12)
    assert shifted.probs == pytest.approx(law.probs, abs=1e-12)


@each(("dtype", "slack"), [(np.float32, 1e-8), (np.float64, 1e-12)])
def test_logits_are_neither_changed_in_place_nor_summed_in_single_precision(dtype, slack):
    """An engine hands out a view of its own buffer; and a float32 sum over 100000 tokens is off by more than 1e-7."""
    logits = np.linspace(-3, 3, 100_000, dtype=dtype)
    before = logits.copy()
    law = Dense.from_logits(logits)
    assert (logits == before).all()
    assert law.logprobs.dtype == np.float64
    assert abs(math.fsum(law.probs) - 1) < slack


@given(laws())
def test_entropy_is_the_naive_sum_and_lies_between_zero_and_that_of_the_uniform_law(law):
    naive = -math.fsum(p * math.log(p) for p in law.probs.tolist() if p > 0)
    assert law.entropy() == pytest.approx(naive, abs=1e-12)
    assert -1e-12 <= law.entropy() <= math.log(law.num_tokens) + 1e-12


@given(laws(), st.integers(0, 15))
def test_the_top_is_the_beginning_of_the_full_sort_with_ties_by_id(law, num_tokens):
    assert law.top(num_tokens) == best_first(law)[:num_tokens]


@given(st.lists(st.integers(0, 3), min_size=50, max_size=300).filter(any), st.integers(1, 300))
def test_ties_go_to_the_lowest_id_in_long_lists_too(weights, num_tokens):
    """A partition leaves ties in any order; two runs that order them differently would tell two stories."""
    law = Dense.from_probs(np.array(weights) / sum(weights))
    assert law.top(num_tokens) == best_first(law)[:num_tokens]


@given(laws())
def test_the_best_token_is_the_first_of_the_top(law):
    assert law.best == law.top(1)[0][0] == TopK.from_dense(law, 1).best


@given(laws(), st.integers(1, 12))
def test_a_row_shows_the_top_and_keeps_the_books(law, k):
    row = TopK.from_dense(law, k)
    shown = [(i, lp) for i, lp in best_first(law)[:k] if lp > -1000]
    assert row.ids.tolist() == [i for i, _ in shown]
    assert row.logprobs.tolist() == [lp for _, lp in shown]
    assert row.tail_max == pytest.approx(math.exp(shown[-1][1]))
    unseen = [p for i, p in enumerate(law.probs.tolist()) if i not in row.ids]
    assert row.tail == pytest.approx(math.fsum(unseen), abs=1e-12)
    assert max(unseen, default=0.0) <= row.tail_max


@given(laws(min_size=2), st.integers(1, 12), st.data())
def test_an_appended_token_is_known_but_says_nothing_about_the_others(law, k, data):
    """Were the cap lowered to a token that is not of the top-k list, the bounds would exclude the truth."""
    actual = data.draw(st.integers(0, law.num_tokens - 1))
    plain, told = TopK.from_dense(law, k), TopK.from_dense(law, k, actual)
    assert told.tail_max == plain.tail_max
    assert told.best == plain.best
    if actual in plain.ids or law.probs[actual] == 0:
        assert told.ids.tolist() == plain.ids.tolist()
    else:
        assert told.ids.tolist() == [*plain.ids.tolist(), actual]
        assert told.tail == pytest.approx(plain.tail - law.probs[actual], abs=1e-12)


@each("sentinel", [-9999.0, -1000.0, -3.4e38, -math.inf])
def test_sentinels_are_dropped_and_never_believed(sentinel):
    """Believed, one would set the cap to zero: a certificate that no other token can be meant."""
    row = TopK.from_lists({3: math.log(0.5), 4: sentinel, 5: math.log(0.25)}, (9, sentinel))
    assert row.ids.tolist() == [3, 5]
    assert row.tail_max == pytest.approx(0.25)
    assert row.tail == pytest.approx(0.25)


def test_a_list_is_ordered_by_probability_and_then_by_id_whatever_order_it_came_in():
    row = TopK.from_lists({8: math.log(0.25), 2: math.log(0.25), 5: math.log(0.5)})
    assert row.ids.tolist() == [5, 2, 8]


@each(
    "top",
    [
        {},
        {1: -9999.0},
        {1: math.nan},
        {1: math.log(0.5), 2: math.nan},
        {1: math.inf},
        {1: 0.01},
        {1: 5.0},
        {1: 1e4},
        {1: math.log(0.6), 2: math.log(0.41)},
        {-1: math.log(0.5)},
        {2**70: math.log(0.5)},
    ],
    ids=repr,
)
def test_what_cannot_be_a_distribution_is_refused(top):
    with pytest.raises(NotADistribution):
        TopK.from_lists(top)


@each("own", [math.nan, math.inf, 0.5, 1e4, math.log(0.4)])
def test_an_appended_token_is_believed_no_more_than_the_list(own):
    with pytest.raises(NotADistribution):
        TopK.from_lists({1: math.log(0.7)}, (2, own))


@given(st.dictionaries(st.integers(-2, 40), st.floats(width=32), max_size=8), st.floats(width=32))
@example({0: 0.0}, 1000.0)
def test_any_numbers_at_all_become_a_row_or_a_bad_reply(top, own):
    """What comes over a wire may be anything; a warning or another exception would end the answer."""
    try:
        row = TopK.from_lists(top, (41, own))
    except NotADistribution:
        return
    assert 0.0 <= row.tail <= 1.0
    assert 0.0 <= row.tail_max <= 1.001
    assert row.probs.sum() <= 1.001


def test_rounding_above_one_is_no_lie_and_leaves_no_tail():
    """A float32 softmax sums to one within 1e-5; refusing that would refuse honest servers."""
    row = TopK.from_lists({1: math.log(0.6), 2: math.log(0.4005)})
    assert row.tail == 0.0
