"""What the models' own divergence can be where both rows are told with noise: nothing lies outside, some lies near."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each, each_of
from convex import least_kl
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import MEASURES, SLACK, law, naive_kl

from hybrid.prob import (
    Dense,
    GreedyAcceptance,
    TopK,
    certificate,
    favourite_certificate,
    kl_with_noise,
)

NOISES = st.sampled_from([0.0, 1e-4, 0.01, 0.1, 0.7])


@st.composite
def told(draw, size=3, least=1e-9):
    """Two distributions as they were told, near or far, and the noise of each."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target = rng.dirichlet(np.full(size, draw(st.sampled_from([0.3, 1.0, 5.0]))))
    if draw(st.booleans()):
        draft = target * np.exp(rng.normal(size=size) * draw(st.sampled_from([0.01, 0.1, 0.5])))
    else:
        draft = rng.dirichlet(np.full(size, draw(st.sampled_from([0.3, 1.0, 5.0]))))
    target, draft = target + least, draft + least
    return target / target.sum(), draft / draft.sum(), draw(NOISES), draw(NOISES)


def corners(probs, noise):
    """All distributions within the noise that no two others lie around: each token but one at an end."""
    ends = np.stack([probs * math.exp(-noise), probs * math.exp(noise)])
    for free in range(probs.size):
        others = [i for i in range(probs.size) if i != free]
        for choice in itertools.product((0, 1), repeat=len(others)):
            found = np.zeros(probs.size)
            found[others] = ends[list(choice), others]
            found[free] = 1.0 - found.sum()
            if ends[0, free] * (1 - 1e-6) <= found[free] <= ends[1, free] * (1 + 1e-6):
                yield found


def nearer(target, draft, a, b):
    """Both moved towards each other, token by token, and normalised: no log-probability moves by more than a, or b."""
    towards = np.sign(np.log(draft) - np.log(target)) / 2
    moved = target * np.exp(a * towards), draft * np.exp(-b * towards)
    return [probs / probs.sum() for probs in moved]


@each("measure", MEASURES)
@settings(max_examples=40)
@given(told())
def test_no_models_within_the_noise_are_farther_apart(measure, pair):
    """The most of a convex function lies at a corner, so that these are all."""
    target, draft, a, b = pair
    naive, with_noise, _ = MEASURES[measure]
    most = max(naive(p, q) for p in corners(target, a) for q in corners(draft, b))
    assert most <= with_noise(naive(target, draft), a + b) + 1e-6


def test_models_far_apart_are_farther_by_their_own_distance_too():
    """Half the target lies where the draft has nearly nothing: a share more there counts by its logarithm."""
    target, draft, noise = np.array([0.5, 0.5]), np.array([1e-12, 1.0 - 1e-12]), 0.01
    told_at, most = naive_kl(target, draft), max(naive_kl(p, draft) for p in corners(target, noise))
    assert (
        0.8 * (kl_with_noise(told_at, noise) - told_at) > most - told_at > noise * (told_at / 2 + np.sqrt(2 * told_at))
    )


@each("direction", ["KL", "reverse KL"])
@settings(max_examples=40)
@given(told(4, least=0.01))
def test_no_models_within_the_noise_are_nearer(direction, pair):
    """The solver moves both at once. It keeps the bounds to 1e-9, which is much of a probability of 1e-7."""
    target, draft, a, b = pair
    if direction == "reverse KL":
        target, draft, a, b = draft, target, b, a
    every = np.eye(4)
    box = np.concatenate([every, -every])
    ends = [np.concatenate([p * math.exp(-noise), -p * math.exp(noise)]) for p, noise in ((target, a), (draft, b))]
    least = least_kl(4, 4, of_first=box, of_second=box, at_least=np.concatenate(ends))
    assert least >= kl_with_noise(naive_kl(target, draft), -(a + b)) - 1e-7


@each("measure", MEASURES)
@settings(max_examples=40)
@given(told(5), st.integers(0, 2**32 - 1))
def test_models_that_are_drawn_together_or_at_random_are_no_nearer(measure, pair, seed):
    target, draft, a, b = pair
    naive, with_noise, _ = MEASURES[measure]
    rng = np.random.default_rng(seed)
    others = [nearer(target, draft, a, b)]
    for _ in range(10):
        shifts = rng.uniform(-0.5, 0.5, (2, 5))
        found = target * np.exp(a * shifts[0]), draft * np.exp(b * shifts[1])
        others.append([probs / probs.sum() for probs in found])
    least = min(naive(p, q) for p, q in others)
    assert least >= with_noise(naive(target, draft), -(a + b)) - SLACK


@each("measure", MEASURES)
@each("sign", [-1, 1])
def test_where_the_two_are_near_the_ends_are_attained_to_first_order(measure, sign):
    """Else the law would be true of any width. Two tokens, of which the noise moves each by itself."""
    naive, with_noise, _ = MEASURES[measure]
    apart_by, noise = 0.1, 0.004
    draft = np.array([0.5, 0.5])
    target = draft * np.exp(np.array([apart_by, -apart_by]))
    target /= target.sum()
    moved = nearer(target, draft, -sign * noise, -sign * noise)
    here, there = naive(target, draft), naive(*moved)
    end = with_noise(here, sign * 2 * noise)
    assert (there - here) * sign > 0
    assert 0.4 * abs(end - here) <= abs(there - here) <= abs(end - here) + SLACK


@each("measure", MEASURES)
@given(value=st.floats(0, 8), noise=st.floats(0, 2), more=st.floats(0, 2))
def test_more_noise_widens_and_none_changes_no_digit(measure, value, noise, more):
    _, with_noise, _ = MEASURES[measure]
    value = min(value, {"JS": math.log(2), "TV": 1.0}.get(measure, math.inf))
    assert with_noise(value, 0.0) == value
    assert with_noise(value, -noise - more) <= with_noise(value, -noise) + SLACK
    assert with_noise(value, -noise) <= value + SLACK
    assert value <= with_noise(value, noise) + SLACK
    assert with_noise(value, noise) <= with_noise(value, noise + more) + SLACK
    assert with_noise(value, -noise) >= 0.0


def test_an_infinite_divergence_stays_one():
    assert kl_with_noise(math.inf, -0.5) == kl_with_noise(math.inf, 0.5) == math.inf


@each("measure", MEASURES)
def test_an_interval_tells_the_noise_of_both_rows(measure):
    *_, interval = MEASURES[measure]
    target, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    row = TopK(np.array([0, 1]), np.log(target[:2]), 0.3, 2, noise=0.25)
    for shown in (row, TopK(np.arange(3), np.log(target), 0.1, 3, noise=0.25)):
        assert interval(shown, Dense.from_logits(np.log(draft), noise=0.5)).noise == 0.75
    silent = TopK(row.ids, row.logprobs, row.tail_max, 2)
    assert interval(silent, law(draft)).noise == 0.0
    assert (row.listed.noise, interval(row.listed, law(draft)).noise) == (0.25, 0.25)


@settings(max_examples=60)
@given(told(4), st.integers(1, 4))
def test_the_favourites_certificate_holds_for_every_target_within_the_noise(pair, k):
    target, _, noise, _ = pair
    exact = TopK.from_dense(law(target), k)
    row = TopK(exact.ids, exact.logprobs, exact.tail_max, exact.num_listed, noise)
    found = favourite_certificate(row)
    for other in each_of(corners(target, noise)):
        moved = law(other)
        # The free token of a corner may be a millionth beyond its end.
        assert found <= certificate(TopK.from_dense(moved, 4), GreedyAcceptance()) + 1e-6
        assert moved.best == exact.best or found == 0.0
    assert favourite_certificate(exact) == certificate(exact, GreedyAcceptance())


def test_the_favourites_certificate_is_attained_where_the_rest_gives_way():
    target, noise = np.array([0.5, 0.2, 0.3]), 0.05
    row = TopK(np.array([0, 2]), np.log(target[[0, 2]]), 0.3, 2, noise)
    moved = np.array([0.5 * math.exp(-noise), 0.0, 0.3 * math.exp(noise)])
    moved[1] = 1.0 - moved.sum()
    assert abs(math.log(moved[1] / 0.2)) <= noise
    assert favourite_certificate(row) == pytest.approx(certificate(TopK.from_dense(law(moved), 3), GreedyAcceptance()))
