"""The largest few are what a full stable sort would have put first."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.prob.distribution import PARTS, largest


def sorted_first(values, count):
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]


@given(st.lists(st.floats(-3, 3) | st.just(-np.inf), min_size=1, max_size=40), st.integers(0, 45))
def test_a_short_array_gives_what_a_sort_would(values, count):
    assert largest(np.array(values), count).tolist() == sorted_first(values, count)


@pytest.mark.slow
@each("size", [PARTS - 1, PARTS, 2 * PARTS - 1, 2 * PARTS, 5 * PARTS + 17])
@each("count", [1, 2, 20, PARTS // 4, PARTS // 4 + 1])
@each("levels", [3, 1000, 10**9])
def test_a_long_array_gives_what_a_sort_would_whatever_ties_there_are(size, count, levels):
    """``levels`` is how many different numbers there are: many ties, some, none. The leftover of the parts counts."""
    rng = np.random.default_rng(size + count)
    values = rng.integers(levels, size=size).astype(np.float64) - levels / 2
    for extreme in (None, 0, size - 1):
        if extreme is not None:
            values[extreme] = levels
        assert largest(values, count).tolist() == sorted_first(values.tolist(), count)


def test_the_largest_may_all_lie_in_one_part():
    """The bound is found from one number a part, and still nothing is lost."""
    values = np.zeros(4 * PARTS)
    values[7::PARTS] = [1.0, 2.0, 3.0, 4.0]
    assert largest(values, 3).tolist() == [7 + 3 * PARTS, 7 + 2 * PARTS, 7 + PARTS]


def test_single_precision_scores_are_compared_as_they_are():
    values = np.array([1.0, np.nextafter(np.float32(1.0), np.float32(2.0)), 0.5], dtype=np.float32)
    assert largest(values, 2).tolist() == [1, 0]
