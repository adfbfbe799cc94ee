"""The least divergence that rounded rows allow, and the water-filling between bounds that finds it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each_of
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import (
    MAYBE_EXCLUDED,
    SLACK,
    large_pairs,
    law,
    level,
    naive_kl,
    pairs,
    rows,
    unseen,
)

from hybrid.prob import TopK, kl_divergence, kl_within_rounding
from hybrid.prob.terms import fill_to_mass

ROUNDINGS = st.sampled_from([1e-3, 0.02, 0.125, 0.7])


def rounded_down(target, k, grid):
    return TopK.from_lists({i: math.floor(lp / grid) * grid for i, lp in target.top(k) if lp > -900})


def boxes(row, size, rounding):
    """Between which probabilities each token may lie."""
    low, high = np.zeros(size), np.zeros(size)
    low[row.ids] = row.probs * math.exp(-rounding)
    high[row.ids] = np.minimum(1.0, row.probs * math.exp(rounding))
    hidden = unseen(row, size)
    if hidden:
        high[hidden] = max(row.cap * math.exp(rounding), (1.0 - high.sum()) / len(hidden))
    return low, high


@settings(max_examples=30)
@given(pairs(draft_weight=MAYBE_EXCLUDED))
def test_without_rounding_it_is_the_tight_lower_end(pair):
    target, draft = pair
    for row in each_of(rows(target)):
        assert kl_within_rounding(row, draft, 0.0) == pytest.approx(kl_divergence(row, draft).lower, abs=SLACK)


@settings(max_examples=6)
@given(large_pairs(), st.integers(1, 99))
def test_without_rounding_it_is_the_tight_lower_end_over_large_vocabularies(pair, k):
    target, draft = pair
    row = TopK.from_dense(target, k)
    assert kl_within_rounding(row, draft, 0.0) == pytest.approx(kl_divergence(row, draft).lower, abs=1e-8)


@settings(max_examples=30)
@given(pairs(draft_weight=MAYBE_EXCLUDED), st.integers(1, 10), ROUNDINGS)
def test_what_was_rounded_is_never_nearer(pair, k, grid):
    """The lower end of the rounded row itself may be above the truth: that is what the boxes are for."""
    target, draft = pair
    found = kl_within_rounding(rounded_down(target, k, grid), draft, grid)
    assert found <= naive_kl(target.probs, draft.probs) + SLACK


@settings(max_examples=20)
@given(pairs(), st.integers(1, 10), ROUNDINGS)
def test_some_distribution_within_the_boxes_attains_it(pair, k, rounding):
    target, draft = pair
    row = rounded_down(target, k, rounding / 2)
    low, high = boxes(row, draft.num_tokens, rounding)
    nearest = level(draft.probs, low, high, 1.0)
    assert abs(nearest.sum() - 1.0) < 1e-9
    assert kl_within_rounding(row, draft, rounding) == pytest.approx(naive_kl(nearest, draft.probs), abs=1e-8)


@settings(max_examples=15)
@given(pairs(min_size=2), st.integers(1, 10), ROUNDINGS, st.integers(0, 2**32 - 1))
def test_no_distribution_within_the_boxes_is_nearer(pair, k, rounding, seed):
    target, draft = pair
    row, rng = rounded_down(target, k, rounding / 2), np.random.default_rng(seed)
    low, high = boxes(row, draft.num_tokens, rounding)
    found = kl_within_rounding(row, draft, rounding)
    for _ in range(4):
        other = level(rng.dirichlet(np.full(draft.num_tokens, 0.5)) + 1e-9, low, high, 1.0)
        assert abs(other.sum() - 1.0) < 1e-9
        assert found <= naive_kl(other, draft.probs) + SLACK


@settings(max_examples=20)
@given(pairs(), st.integers(1, 10))
def test_more_rounding_allows_no_larger_divergence(pair, k):
    target, draft = pair
    row = TopK.from_dense(target, k)
    found = [kl_within_rounding(row, draft, rounding) for rounding in (0.0, 1e-3, 0.05, 0.3, 2.0)]
    assert all(more <= less + SLACK for less, more in itertools.pairwise(found))


@settings(max_examples=20)
@given(pairs(), st.integers(1, 10), ROUNDINGS)
def test_the_draft_shown_in_rounded_numbers_diverges_by_nothing(pair, k, grid):
    _, same = pair
    assert kl_within_rounding(rounded_down(same, k, grid), same, grid) == pytest.approx(0.0, abs=SLACK)


def test_a_token_moves_to_the_end_of_its_box_that_is_nearer_to_the_draft():
    row = TopK.from_lists({0: math.log(0.5)})
    assert kl_within_rounding(row, law([0.55, 0.45]), math.log(1.2)) == pytest.approx(0.0, abs=SLACK)
    above = 0.6 * math.log(0.6 / 0.8) + 0.4 * math.log(0.4 / 0.2)
    assert kl_within_rounding(row, law([0.8, 0.2]), math.log(1.2)) == pytest.approx(above)


def test_the_expectation_is_under_the_target():
    row = TopK.from_lists({0: math.log(0.6), 1: math.log(0.3)})
    draft = [0.05, 0.3, 0.65]
    # The draft likes both shown tokens less than their boxes allow: they stay at the lower ends.
    nearest = [0.6 / 1.1, 0.3 / 1.1, 1.0 - 0.9 / 1.1]
    found = kl_within_rounding(row, law(draft), math.log(1.1))
    assert found == pytest.approx(naive_kl(nearest, draft))
    assert abs(found - naive_kl(draft, nearest)) > 1e-2


def test_a_token_the_draft_has_not_got_stays_infinitely_far():
    row = TopK.from_lists({0: math.log(0.5), 7: math.log(0.3)})
    assert kl_within_rounding(row, law([0.5, 0.3, 0.2]), 0.5) == math.inf
    assert kl_within_rounding(TopK.from_lists({0: math.log(0.5)}), law([1.0, 0.0]), 0.1) == math.inf


BOUNDED = st.lists(st.tuples(st.floats(-30, 0), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


@settings(max_examples=30)
@given(BOUNDED, st.floats(0.0, 1.0))
def test_what_is_poured_keeps_its_bounds_and_reaches_the_mass(tokens, share):
    log_shape, some, others = np.array(tokens).T
    low, high = np.minimum(some, others), np.maximum(some, others)
    mass = low.sum() + share * (high.sum() - low.sum())
    with np.errstate(divide="ignore"):
        poured = np.exp(fill_to_mass(log_shape, np.log(low), np.log(high), mass))
    assert (poured >= low - 1e-12).all()
    assert (poured <= high + 1e-12).all()
    assert poured.sum() == pytest.approx(mass, abs=1e-9)
