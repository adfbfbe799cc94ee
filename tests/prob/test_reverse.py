"""The reverse KL and the Jensen-Shannon divergence as intervals: the two extreme completions serve every f-divergence.

What holds for KL in ``test_divergence.py`` is asked of these: the truth inside, both ends attained, a direction.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_divergence import (
    MAYBE_EXCLUDED,
    SLACK,
    SOME_K,
    feasible,
    heaped,
    inside,
    large_pairs,
    law,
    least_likely_first,
    naive_jensen_shannon,
    naive_kl,
    naive_reverse,
    pairs,
    poured,
    rows,
    unseen,
)

from hybrid.prob import Dense, TopK, jensen_shannon, kl_reverse

BOTH = pytest.mark.parametrize(
    ("measure", "naive"), [(kl_reverse, naive_reverse), (jensen_shannon, naive_jensen_shannon)]
)
# Above it a tail is mass; below, rounding that the reverse KL takes for anything.
CLEAR = 1e-5


@BOTH
@settings(max_examples=25)
@given(pair=pairs(draft_weight=MAYBE_EXCLUDED))
def test_the_interval_contains_the_true_value(measure, naive, pair):
    """For every k; where either side excludes tokens, too."""
    target, draft = pair
    truth = naive(target.probs, draft.probs)
    for row in each_of(rows(target)):
        found = measure(row, draft)
        assert inside(truth, found)
        assert 0.0 <= found.lower <= found.upper


@BOTH
@settings(max_examples=10)
@given(pair=large_pairs())
def test_the_interval_contains_the_true_value_over_large_vocabularies(measure, naive, pair):
    target, draft = pair
    truth = naive(target.probs, draft.probs)
    for k in (*SOME_K, target.num_tokens - 1, target.num_tokens):
        assert inside(truth, measure(TopK.from_dense(target, k), draft))


def without_dust(row, whole):
    """What the heap leaves of a mass that is used up is rounding; an unseen token has none of it."""
    return [0.0 if p < 1e-14 and i in unseen(row, len(whole)) else p for i, p in enumerate(whole)]


@BOTH
@settings(max_examples=20)
@given(pair=pairs())
def test_both_ends_are_attained(measure, naive, pair):
    target, draft = pair
    for row in each_of(rows(target)):
        if row.tail > CLEAR:
            found = measure(row, draft)
            most = without_dust(row, heaped(row, draft, least_likely_first(row, draft)))
            assert naive(poured(row, draft), draft.probs) == pytest.approx(found.lower, rel=1e-9, abs=SLACK)
            assert naive(most, draft.probs) == pytest.approx(found.upper, rel=1e-9, abs=SLACK)


@BOTH
@settings(max_examples=15)
@given(pair=pairs(min_size=2), k=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_no_feasible_completion_falls_outside(measure, naive, pair, k, seed):
    target, draft = pair
    row, rng = TopK.from_dense(target, k), np.random.default_rng(seed)
    found = measure(row, draft)
    for _ in range(5):
        assert inside(naive(feasible(row, draft, rng), draft.probs), found)


@BOTH
@settings(max_examples=20)
@given(pair=pairs(min_size=3, draft_weight=MAYBE_EXCLUDED))
def test_the_interval_only_tightens_as_k_grows(measure, naive, pair):
    target, draft = pair
    found = [measure(row, draft) for row in rows(target) if row.tail > CLEAR]
    assume(len(found) > 1)
    for shorter, longer in each_of(itertools.pairwise(found)):
        assert shorter.lower <= longer.lower + SLACK
        assert longer.upper <= shorter.upper + SLACK


def test_the_expectation_is_under_the_draft():
    target, draft = law([0.7, 0.2, 0.1]), law([0.4, 0.35, 0.25])
    backward = 0.4 * math.log(0.4 / 0.7) + 0.35 * math.log(0.35 / 0.2) + 0.25 * math.log(0.25 / 0.1)
    assert abs(backward - naive_kl(target.probs, draft.probs)) > 1e-3
    for k in (2, 3):
        found = kl_reverse(TopK.from_dense(target, k), draft)
        assert (found.lower, found.upper) == pytest.approx((backward, backward))


def test_the_reverse_has_no_upper_end_where_a_zero_is_allowed_and_one_where_none_is():
    """0.3 outside, and a cap of 0.2: of two unseen tokens neither can be without, of three one can."""
    shown, draft = {0: math.log(0.5), 1: math.log(0.2)}, [0.4, 0.3, 0.2, 0.1]
    known = 0.4 * math.log(0.4 / 0.5) + 0.3 * math.log(0.3 / 0.2)
    found = kl_reverse(TopK.from_lists(shown), law(draft))
    assert found.upper == pytest.approx(known + 0.2 * math.log(0.2 / 0.1) + 0.1 * math.log(0.1 / 0.2))
    assert kl_reverse(TopK.from_lists(shown), law([0.4, 0.3, 0.1, 0.1, 0.1])).upper == math.inf


@each("tail", [0.0, 1e-12, 1e-9, 9e-7])
def test_a_tail_below_rounding_is_taken_for_anything_from_nothing_to_rounding(tail):
    """A float32 row may leave 1e-7 where the target leaves 1e-12: five more nats on whatever the draft has there."""
    found = kl_reverse(TopK.from_lists({0: math.log1p(-tail)}), law([0.5, 0.25, 0.25]))
    assert found.lower == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-6), abs=2e-6)
    assert found.upper == math.inf
    assert kl_reverse(TopK.from_lists({0: math.log1p(-tail)}), law([0.5, 0.5])).upper == math.inf


@settings(max_examples=25)
@given(pairs(draft_weight=MAYBE_EXCLUDED))
def test_the_jensen_shannon_divergence_is_symmetric_and_at_most_ln_two(pair):
    one, other = pair
    size = one.num_tokens
    there, back = jensen_shannon(TopK.from_dense(one, size), other), jensen_shannon(TopK.from_dense(other, size), one)
    assert there.upper - there.lower < SLACK
    assert there.lower == pytest.approx(back.lower, abs=SLACK)
    for row in each_of(rows(one)):
        assert jensen_shannon(row, other).upper <= math.log(2)


def test_the_jensen_shannon_divergence_of_what_shares_nothing_is_ln_two():
    found = jensen_shannon(TopK.from_lists({0: math.log(0.6), 1: math.log(0.4)}), law([0.0, 0.0, 0.7, 0.3]))
    assert (found.lower, found.upper) == pytest.approx((math.log(2), math.log(2)))


def test_the_side_that_is_known_in_full_is_the_second():
    """The Jensen-Shannon divergence is symmetric; what one side hides is not."""
    one, other = law([0.6, 0.3, 0.05, 0.05]), law([0.3, 0.3, 0.2, 0.2])
    hidden, swapped = jensen_shannon(TopK.from_dense(one, 1), other), jensen_shannon(TopK.from_dense(other, 1), one)
    assert hidden.upper == pytest.approx(naive_jensen_shannon([0.6, 0.0, 0.4, 0.0], [0.3, 0.3, 0.2, 0.2]))
    assert abs(hidden.upper - swapped.upper) > 1e-2


def test_a_cap_that_the_tail_just_fills_leaves_a_trace_for_what_follows():
    """The favourite of the draft takes nearly all of a tail as heavy as the cap: nearly, or the value were infinite."""
    quarter, ulp = math.log(0.25), math.ulp(math.log(0.25))
    target = TopK.from_lists({1: quarter + 2 * ulp, 2: quarter + 2 * ulp, 3: quarter - 2 * ulp})
    draft = Dense(np.array([-0.4700036292457356, *[-2.0794415416798357] * 3, -37.07944154]))
    assert kl_reverse(target, draft).lower < 0.5
