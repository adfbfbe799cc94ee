"""KL between two truncated rows: estimate and lower end stay below the truth, and some two distributions attain it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import MAYBE_EXCLUDED, SLACK, law, naive_kl, pairs, rows
from naive_truncated import nearest_pair

from hybrid.prob import Dense, TopK, kl_both_truncated, kl_coarse, kl_divergence

K = st.integers(1, 10)
# What a draft's tail is good to, beside the numbers it is divided into.
ROUNDED = 1e-5


@settings(max_examples=30)
@given(pairs(draft_weight=MAYBE_EXCLUDED), K, st.data())
def test_estimate_and_lower_end_never_exceed_the_truth(pair, k, data):
    """Whatever either shows, appended tokens included."""
    target, draft = pair
    size = target.num_tokens
    truth = naive_kl(target.probs, draft.probs)
    actual = data.draw(st.none() | st.integers(0, size - 1))
    row = TopK.from_dense(target, k, actual)
    for other in (*rows(draft), TopK.from_dense(draft, 1, actual)):
        found = kl_both_truncated(row, other, size)
        assert -SLACK - 2e-6 <= found.estimate <= found.lower <= found.upper
        assert found.lower <= truth + SLACK


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 2.0, 3.0]), K, K)
def test_the_lower_end_is_attained(seed, spread, k, other_k):
    """By a full target and a full draft that show exactly these rows."""
    rng = np.random.default_rng(seed)
    target, draft = (law(np.exp(spread * rng.standard_normal(40))) for _ in range(2))
    row, other = TopK.from_dense(target, k), TopK.from_dense(draft, other_k)
    nearest, its_draft = nearest_pair(row, other, 40)
    for whole, shown in ((nearest, row), (its_draft, other)):
        assert whole.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.delete(whole, shown.ids).max() <= shown.cap + 1e-12
    found = kl_both_truncated(row, other, 40)
    assert naive_kl(nearest, its_draft) == pytest.approx(found.lower, abs=1e-6)


@settings(max_examples=15)
@given(pairs(min_size=2), K)
def test_a_draft_that_shows_everything_is_a_draft_known_in_full(pair, k):
    target, draft = pair
    size = target.num_tokens
    row = TopK.from_dense(target, k)
    found = kl_both_truncated(row, TopK.from_dense(draft, size), size)
    assert found.lower == pytest.approx(kl_divergence(row, draft).lower, abs=1e-8)
    if row.tail > ROUNDED:
        assert found.estimate == pytest.approx(kl_coarse(row, draft), abs=1e-8)


@settings(max_examples=20)
@given(pairs(min_size=2), K, K, K)
def test_the_lower_end_only_tightens_as_either_shows_more(pair, k, other_k, more):
    target, draft = pair
    size = target.num_tokens
    before = kl_both_truncated(TopK.from_dense(target, k), TopK.from_dense(draft, other_k), size).lower
    longer = kl_both_truncated(TopK.from_dense(target, k + more), TopK.from_dense(draft, other_k), size).lower
    both = kl_both_truncated(TopK.from_dense(target, k + more), TopK.from_dense(draft, other_k + more), size).lower
    assert before <= longer + ROUNDED
    assert longer <= both + ROUNDED


@settings(max_examples=20)
@given(pairs(), K, K)
def test_equal_distributions_may_have_no_divergence_whatever_is_shown(pair, k, other_k):
    _, same = pair
    found = kl_both_truncated(TopK.from_dense(same, k), TopK.from_dense(same, other_k), same.num_tokens)
    assert abs(found.lower) < ROUNDED


def test_where_all_is_common_it_is_known():
    target, draft = law([0.7, 0.2, 0.1]), law([0.4, 0.35, 0.25])
    found = kl_both_truncated(TopK.from_dense(target, 3), TopK.from_dense(draft, 3), 3)
    truth = naive_kl(target.probs, draft.probs)
    assert (found.estimate, found.lower, found.upper) == pytest.approx((truth, truth, truth))


def test_the_caps_lift_the_lower_end_above_the_estimate_and_the_expectation_is_under_the_target():
    """Lists that share nothing: the estimate sees 1 against 1, the lower end that each likes what the other does not.

    The target's 0.2 goes to tokens 2 and 3, the draft's 0.05 to tokens 0 and 1, each in the other's proportion: the
    draft has so little left that odds as high as 16 are those of tokens 0 and 1, and nothing is left for the rest.
    """
    row = TopK.from_lists({0: math.log(0.5), 1: math.log(0.3)})
    other = TopK.from_lists({2: math.log(0.9), 3: math.log(0.05)})
    found = kl_both_truncated(row, other, 1000)
    assert found.estimate == pytest.approx(0.0, abs=1e-9)
    assert found.lower == pytest.approx(0.8 * math.log(0.8 / 0.05) + 0.2 * math.log(0.2 / 0.95))
    assert found.upper == math.inf
    assert abs(kl_both_truncated(other, row, 1000).lower - found.lower) > 0.1


def test_rounding_of_the_drafts_tail_is_no_proof_that_it_excludes_what_the_target_shows():
    row, other = TopK.from_lists({0: math.log(0.5), 1: math.log(0.5)}), TopK.from_lists({0: 0.0})
    found = kl_both_truncated(row, other, 10)
    assert found.lower == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-6))


def test_ids_beyond_the_vocabulary_leave_no_rest():
    row, other = (
        TopK.from_lists({0: math.log(0.5), 7: math.log(0.5)}),
        TopK.from_lists({0: math.log(0.5), 8: math.log(0.5)}),
    )
    assert kl_both_truncated(row, other, 2).lower > 0.0


def test_a_vocabulary_of_one_token_is_known():
    row = TopK.from_dense(Dense.from_probs(np.array([1.0])), 1)
    assert kl_both_truncated(row, row, 1).upper == 0.0
