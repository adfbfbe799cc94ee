"""A table's statistics are those of problems drawn again, and a bill at a wanted share is the least there is."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_of
from scipy.optimize import linprog

from hybrid.tasks.statistics import (
    Resamples,
    cheapest_bill,
    estimate,
    rpi,
)


def test_a_resample_repeats_each_problem_as_often_as_it_was_drawn_and_the_first_is_the_data():
    rng = np.random.default_rng(0)
    resamples = Resamples(9, num=30)
    small, hybrid, large = (rng.integers(0, 2, size=9).astype(float) for _ in range(3))
    found = resamples.shares(small, hybrid, large)
    assert np.array_equal(resamples.counts[:, 0], np.ones(9))
    assert (resamples.counts.sum(axis=0) == 9).all()
    for column, drawn in each_of(enumerate(resamples.counts.T.astype(int))):
        low, own, high = (np.repeat(each, drawn).sum() for each in (small, hybrid, large))
        expected = (own - low) / (high - low) if high > low else np.nan
        assert found[column] == pytest.approx(expected, nan_ok=True)


def test_an_estimate_is_that_of_the_projects_own_bootstrap():
    """Another way to draw the same thing: equal values, and ends within what 2,000 resamples tell."""
    rng = np.random.default_rng(1)
    large = rng.uniform(size=300) < 0.9
    small = large & (rng.uniform(size=300) < 0.6)
    hybrid = small | (large & (rng.uniform(size=300) < 0.7))
    ours = estimate(Resamples(300).shares(small, hybrid, large))
    theirs = rpi(small, hybrid, large)
    assert ours.value == pytest.approx(theirs.value)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_a_resample_without_a_gap_can_only_widen_and_data_without_one_have_no_value():
    known = np.array([0.5, *np.linspace(0.4, 0.6, 99), np.nan])
    without = np.array([0.5, *np.linspace(0.4, 0.6, 99)])
    assert estimate(known).low <= estimate(without).low
    assert estimate(known).high >= estimate(without).high
    assert estimate(np.array([0.5, *[np.nan] * 99])).low == -np.inf
    assert estimate(np.array([np.nan, 0.5])) is None


@pytest.mark.parametrize("wanted", [0.3, 0.8, 0.95])
def test_no_mixture_of_the_ways_is_cheaper(wanted):
    """The oracle is a linear program over all mixtures of any number of ways."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        shares, bills = rng.uniform(0, 1.1, size=5), rng.uniform(0, 1, size=5)
        found = cheapest_bill(shares[:, None], bills[:, None], wanted)[0]
        best = linprog(bills, A_ub=[-shares], b_ub=[-wanted], A_eq=[np.ones(5)], b_eq=[1.0])
        assert found == pytest.approx(best.fun if best.success else np.inf)
