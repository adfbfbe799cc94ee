"""What a question's words let expect of several models: counts alone, in any order, and no more than they tell."""

from __future__ import annotations

import itertools
import json

import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.defer import ExpertByWord, word_buckets

SEEN = st.lists(st.tuples(st.frozensets(st.integers(0, 20), max_size=4), st.integers(0, 2)), max_size=12)


def counted(seen, num=3):
    kept = ExpertByWord(num)
    for words, nearest in seen:
        kept = kept.adding(words, nearest)
    return kept


@given(SEEN, st.frozensets(st.integers(0, 30), max_size=8))
def test_weights_are_a_distribution_whatever_was_counted(seen, words):
    weights = counted(seen).weights(words)
    assert sum(weights) == pytest.approx(1.0)
    assert min(weights) >= 0.02 * 0.999


@given(SEEN, st.frozensets(st.integers(0, 30), max_size=8))
def test_the_order_of_what_was_counted_changes_nothing(seen, words):
    for other in each_of(itertools.islice(itertools.permutations(seen), 3)):
        assert counted(other).weights(words) == counted(seen).weights(words)


def test_the_odds_are_the_root_of_a_words_own_and_no_model_is_given_up():
    """A word that stood eight times by the first: odds of 9 to 1 with add-one smoothing, and half of their evidence."""
    first, second = counted([({5}, 0)] * 8, num=2).weights({5})
    assert (first - 0.02) / (second - 0.02) == pytest.approx(3.0)
    assert counted([(frozenset(range(40)), 0)] * 8, num=2).weights(range(40))[1] == pytest.approx(0.02)


def test_words_that_were_never_seen_say_nothing():
    assert counted([({1, 2}, 0)]).weights({3}) == pytest.approx((1 / 3,) * 3)
    assert ExpertByWord(2).weights(()) == (0.5, 0.5)


def test_like_questions_expect_the_model_that_was_nearest_to_them():
    kept = ExpertByWord(2)
    for number in range(10):
        kept = kept.adding(word_buckets(f"Add {number} and 7."), 0).adding(word_buckets("Sort these words: b a."), 1)
    assert kept.weights(word_buckets("Add 3 and 4."))[0] > 0.9
    assert kept.weights(word_buckets("Sort these words: d c e."))[1] > 0.9


@given(SEEN)
def test_what_is_kept_is_what_was_counted(seen):
    kept = counted(seen)
    assert ExpertByWord.from_json(3, json.loads(json.dumps(kept.to_json()))) == kept


@pytest.mark.parametrize(
    "entry", [None, [], {"a": [1, 2]}, {"5": [1]}, {"5": [1, -2]}, {"5": [1, True]}, {"99999": [1, 2]}, {"5": 3}]
)
def test_what_is_of_another_shape_is_nothing(entry):
    assert ExpertByWord.from_json(2, entry) == ExpertByWord(2)
