"""KL in boxes against random masses within them, a fine grid, and the divergences of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from naive_divergence import naive_coarse

from hybrid.prob import Dense, TopK
from hybrid.prob.terms import fill_to_mass, kl_in_boxes

seeds = st.integers(0, 2**32 - 1)


def naive(p, q):
    return float(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0.0))


def boxes_around(rng, masses, width):
    below, above = rng.random((2, masses.size)) * width * (rng.random((2, masses.size)) < 0.7)
    return np.maximum(masses - below, 0.0), np.minimum(masses + above, 1.0)


@given(seeds, st.integers(2, 6), st.sampled_from([0.0, 0.02, 0.3]), st.sampled_from([0.0, 0.05]))
def test_whatever_the_masses_are_their_kl_is_within(seed, num, width, draft_width):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(num, 0.7)), rng.dirichlet(np.full(num, 0.7))
    found = kl_in_boxes(*boxes_around(rng, p, width), *boxes_around(rng, q, draft_width))
    assert found.lower - 1e-9 <= naive(p, q) <= found.upper + 1e-9
    if not width and not draft_width:
        assert found.lower == pytest.approx(naive(p, q), abs=1e-9) == found.upper


def test_both_ends_against_a_grid_of_three_events():
    low, high, q = np.array([0.1, 0.0, 0.2]), np.array([0.7, 0.5, 0.4]), np.array([0.6, 0.3, 0.1])
    step = 0.0025
    grid = [
        naive((a, b, 1 - a - b), q)
        for a in np.arange(low[0], high[0] + 1e-9, step)
        for b in np.arange(low[1], high[1] + 1e-9, step)
        if low[2] - 1e-9 <= 1 - a - b <= high[2] + 1e-9
    ]
    found = kl_in_boxes(low, high, q)
    assert found.lower == pytest.approx(min(grid), abs=1e-4)
    assert max(grid) <= found.upper + 1e-9 <= max(grid) + 0.2  # one event's share of a chord above


@each(
    ("low", "high", "draft_low", "draft_high"),
    [
        ((0.5, 0.0, 0.0), (0.9, 0.5, 0.5), (0.1, 0.3, 0.3), (0.3, 0.35, 0.6)),  # the target must be below the draft
        ((0.0, 0.0, 0.0), (0.5, 1.0, 1.0), (0.6, 0.0, 0.1), (0.8, 0.05, 0.15)),  # it must be above it
    ],
)
def test_the_lower_end_of_two_sets_of_bounds_is_the_least_of_a_grid(low, high, draft_low, draft_high):
    """For each of the target's masses the nearest of the draft's: these need not sum to one."""
    arrays = [np.array(bounds) for bounds in (low, high, draft_low, draft_high)]
    step = 0.0025
    first, second = np.meshgrid(np.arange(low[0], high[0] + 1e-9, step), np.arange(low[1], high[1] + 1e-9, step))
    third = 1.0 - first - second
    target = np.stack((first, second, third))[:, (low[2] - 1e-9 <= third) & (third <= high[2] + 1e-9)]
    draft = np.clip(target, arrays[2][:, None], arrays[3][:, None])
    logs = np.log(np.maximum(target, 1e-300)) - np.log(np.maximum(draft, 1e-300))
    least = (target * logs - target + draft).sum(axis=0).min()
    assert kl_in_boxes(*arrays).lower == pytest.approx(least, abs=1e-3)
    assert least > 0.05


def test_masses_of_a_list_and_a_bucket_for_the_rest_are_the_coarse_estimate():
    p, q = Dense.from_probs(np.array([0.5, 0.3, 0.1, 0.1])), Dense.from_probs(np.array([0.1, 0.2, 0.3, 0.4]))
    told = TopK.from_dense(p, 2)
    masses = np.array([0.5, 0.3, 0.2])
    found = kl_in_boxes(masses, masses, np.array([0.1, 0.2, 0.7]))
    assert found.lower == pytest.approx(naive_coarse(told, q), abs=1e-12)


def test_a_draft_within_reach_of_every_box_is_no_distance_away():
    found = kl_in_boxes(np.array([0.0, 0.3]), np.array([0.6, 1.0]), np.array([0.5, 0.4]), np.array([0.55, 0.5]))
    assert found.lower == 0.0


@pytest.mark.parametrize(("low", "high"), [((0.5, 0.5), (0.5, 0.5)), ((0.2, 0.3), (1.0, 0.4))])
def test_what_the_draft_excludes_and_the_target_must_have_is_infinitely_far(low, high):
    found = kl_in_boxes(np.array(low), np.array(high), np.array([0.0, 1.0]))
    assert found.lower == found.upper == np.inf


def test_the_last_digit_of_a_difference_is_no_mass_that_the_draft_excludes():
    target, draft = np.array([0.7, 0.3, 1e-16]), np.array([0.6, 0.4, 0.0])
    found, without = kl_in_boxes(target, target, draft), kl_in_boxes(target[:2], target[:2], draft[:2])
    assert (found.lower, found.upper) == pytest.approx((without.lower, without.upper), abs=1e-12)


def test_what_the_draft_excludes_and_the_target_may_have_is_infinite_at_the_upper_end_alone():
    found = kl_in_boxes(np.array([0.0, 0.6]), np.array([0.4, 1.0]), np.array([0.0, 1.0]))
    assert found.lower == pytest.approx(0.0, abs=1e-9)
    assert found.upper == np.inf


BOUNDED = st.lists(st.tuples(st.floats(-30, 0), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8)


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
