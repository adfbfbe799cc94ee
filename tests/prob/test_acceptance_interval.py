"""The chance of being kept, as an interval, and the popular number that bounds nothing."""

from __future__ import annotations

import math

import pytest
from cases import each_of
from hypothesis import given
from naive_divergence import (
    MAYBE_EXCLUDED,
    SLACK,
    SOME_K,
    heaped,
    inside,
    large_pairs,
    law,
    least_likely_first,
    naive_overlap,
    pairs,
    poured,
    rows,
)

from hybrid.prob import (
    TopK,
    acceptance,
    total_variation,
)


@given(pairs(draft_weight=MAYBE_EXCLUDED))
def test_the_acceptance_interval_contains_the_overlap_and_is_no_wider_than_the_tail(pair):
    target, draft = pair
    overlap = naive_overlap(target.probs, draft.probs)
    distance = math.fsum(abs(target.probs - draft.probs)) / 2
    for row in each_of(rows(target)):
        kept, apart = acceptance(row, draft), total_variation(row, draft)
        assert inside(overlap, kept)
        assert inside(distance, apart)
        assert 0.0 <= kept.lower <= kept.upper <= 1.0
        assert 0.0 <= apart.lower <= apart.upper <= 1.0
        assert kept.upper - kept.lower <= row.tail + 1e-12
        assert apart.lower == pytest.approx(1 - kept.upper, abs=1e-12)
        assert apart.upper == pytest.approx(1 - kept.lower, abs=1e-12)


@given(large_pairs())
def test_the_acceptance_interval_contains_the_overlap_over_large_vocabularies(pair):
    target, draft = pair
    overlap = naive_overlap(target.probs, draft.probs)
    for k in each_of(SOME_K):
        kept = acceptance(TopK.from_dense(target, k), draft)
        assert inside(overlap, kept)
        assert 0.0 <= kept.lower <= kept.upper <= 1.0


@given(large_pairs())
def test_equal_distributions_keep_everything_that_is_shown_and_never_more_than_everything(pair):
    """The sum of hundreds of probabilities may be 1.0000000000000002, which is no chance."""
    same, _ = pair
    for k in (*SOME_K, same.num_tokens):
        row = TopK.from_dense(same, k)
        kept, apart = acceptance(row, same), total_variation(row, same)
        assert 1 - row.tail - 1e-12 <= kept.lower <= kept.upper <= 1.0
        assert kept.upper == pytest.approx(1.0, abs=1e-12)
        assert 0.0 <= apart.lower <= apart.upper


@given(pairs())
def test_both_ends_of_the_acceptance_interval_are_attained(pair):
    """By the same two completions as those of KL, the other way round."""
    target, draft = pair
    for row in each_of(rows(target)):
        kept = acceptance(row, draft)
        most, least = poured(row, draft), heaped(row, draft, least_likely_first(row, draft))
        assert naive_overlap(most, draft.probs) == pytest.approx(kept.upper, abs=SLACK)
        assert naive_overlap(least, draft.probs) == pytest.approx(kept.lower, abs=SLACK)


def test_the_side_that_is_known_in_full_is_the_second():
    """The overlap of two full distributions is symmetric; what one of them hides is not."""
    one, other = law([0.6, 0.3, 0.05, 0.05]), law([0.3, 0.3, 0.2, 0.2])
    hidden, swapped = acceptance(TopK.from_dense(one, 1), other), acceptance(TopK.from_dense(other, 1), one)
    assert hidden.lower == pytest.approx(0.3 + 0.2)
    assert hidden.upper == pytest.approx(0.3 + 0.4)
    assert swapped.lower == pytest.approx(0.3 + 0.05 + 0.05 + 0.1)
    assert swapped.upper == pytest.approx(0.3 + 0.3 + 0.05 + 0.05)


def test_of_a_list_that_shares_nothing_with_the_draft_nothing_is_kept():
    row = TopK.from_lists({8: math.log(0.5), 9: math.log(0.5)})
    assert acceptance(row, law([0.5, 0.5])).upper == 0.0
    assert total_variation(row, law([0.5, 0.5])).lower == 1.0
