"""What two readings of one row do to a divergence from it: nothing lies outside, some targets lie at the end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import MEASURES, SLACK, law, naive_kl

from hybrid.prob import (
    Dense,
    TopK,
    acceptance,
    jensen_shannon,
    kl_divergence,
    kl_reverse,
    kl_shift,
    kl_with_noise,
    max_log_difference,
    total_variation,
)

# A token is likely from a thousandth on, and a target within so many nats of a row may be any likely token for certain.
FAR = math.log(1000)


@st.composite
def readings(draw, size=6):
    """Two readings of a row, none of whose tokens is unlikely: a little apart everywhere, or far at its rarest."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    first = rng.dirichlet(np.full(size, draw(st.sampled_from([0.3, 1.0, 5.0])))) + 0.002
    by = rng.normal(size=size) * draw(st.sampled_from([0.001, 0.05, 0.4]))
    if draw(st.booleans()):
        by[first.argmin()] += 1.0
    second = first * np.exp(by)
    return first / first.sum(), second / second.sum()


def tilts(first, second):
    """The targets that part two readings most: each further along the line through both logarithms, either way."""
    for start, other in ((first, second), (second, first)):
        for tilt in (0.0, *np.geomspace(0.02, 3e4, 120)):
            logs = np.log(start) + tilt * (np.log(start) - np.log(other))
            probs = np.exp(logs - logs.max())
            yield probs / probs.sum()


def targets(first, second):
    """Those, every token by itself, and some at random."""
    rng = np.random.default_rng(3)
    yield from tilts(first, second)
    yield from np.eye(first.size)
    yield from rng.dirichlet(np.full(first.size, 0.5), 20)


def roots(target, first, second):
    return [math.sqrt(2.0 * max(0.0, naive_kl(target, row))) for row in (first, second)]


@settings(max_examples=60)
@given(readings())
def test_no_target_within_reach_is_nearer_to_one_reading_by_more_than_the_shift(pair):
    shift = kl_shift(*np.log(pair))
    assert shift == kl_shift(*np.log(pair[::-1]))
    for target in each_of(targets(*pair)):
        near, far = sorted(roots(target, *pair))
        assert far - near <= shift + 1e-6 or near**2 / 2 > FAR


@settings(max_examples=60)
@given(readings())
def test_some_target_nearly_is(pair):
    """Else the law would be true of any width."""
    found = [sorted(roots(target, *pair)) for target in tilts(*pair)]
    attained = max(far - near for near, far in found if near**2 / 2 <= FAR)
    assert attained >= 0.95 * kl_shift(*np.log(pair)) - 1e-6


@each("measure", MEASURES)
@settings(max_examples=10)
@given(readings(), st.sampled_from([2, 3, 6]), st.sampled_from([0.0, 0.02]))
def test_what_is_told_of_one_reading_is_true_of_the_other(measure, pair, k, cloud):
    """Through an interval of the k best tokens, with noise in the cloud's row besides: which moves as far as it may."""
    naive, with_noise, interval = MEASURES[measure]
    first, second = pair
    noise, shift = max_log_difference(*np.log(pair)), kl_shift(*np.log(pair))
    local = Dense.from_logits(np.log(first), noise, shift)
    for probs in each_of(targets(*pair)):
        target = np.maximum(probs, 1e-12)
        shown = TopK.from_dense(Dense.from_logits(np.log(target / target.sum()), cloud), k)
        found = interval(shown, local)
        for moved in (target, target * np.exp(cloud / 2 * np.sign(np.log(target) - np.log(second)))):
            truth = naive(moved / moved.sum(), second)
            if truth <= FAR:
                assert with_noise(found.lower, -found.noise) <= truth + 1e-6
            if found.upper <= FAR:
                assert truth <= with_noise(found.upper, found.noise) * (1 + 1e-9) + 1e-6


def test_rows_that_part_by_a_nat_here_and_there_part_no_kl_by_that():
    """Three-bit weights. Told alone that a token may be off by a nat, a KL of 3.8 might be one of 0.5; it is not."""
    rng = np.random.default_rng(0)
    first = rng.dirichlet(np.full(300, 0.3))
    by = rng.normal(size=300) * 0.1
    by[np.flatnonzero((first > 0.001) & (first < 0.002))[:3]] = 1.0
    second = first * np.exp(by)
    logs = np.log(first), np.log(second / second.sum())
    noise, shift = max_log_difference(*logs), kl_shift(*logs)
    assert noise > 0.9
    row = Dense.from_logits(logs[0], noise, shift)
    told = kl_divergence(TopK.from_dense(law(second / second.sum()), 20), row)
    assert told.noise < 0.3 * noise
    assert kl_with_noise(0.5, noise) > 3.8
    assert (1.0 + shift) ** 2 / 2 < 0.9


def test_where_the_shift_is_not_known_the_nats_decide_and_it_never_makes_them_more():
    target, local = TopK.from_dense(law(np.array([0.7, 0.2, 0.1])), 3), np.log([0.3, 0.3, 0.4])
    for interval in (kl_divergence, kl_reverse, jensen_shannon, total_variation, acceptance):
        assert interval(target, Dense.from_logits(local, 0.25)).noise == 0.25
        assert interval(target, Dense.from_logits(local, 0.25, 9.0)).noise == 0.25
        least = interval(target, Dense.from_logits(local, 0.25, 0.01)).noise
        assert (least == 0.25) if interval is kl_reverse else (0.0 < least <= 0.01 + SLACK)
    far = TopK.from_dense(law(np.array([1e-7, 1.0 - 1e-7])), 2)
    beyond = Dense.from_logits(np.log([1.0 - 1e-9, 1e-9]), 0.25, 0.01)
    assert kl_divergence(far, beyond).lower > FAR
    assert kl_divergence(far, beyond).noise == 0.25


def test_a_row_read_twice_alike_has_no_shift():
    logs = np.log([0.5, 0.3, 0.2])
    assert kl_shift(logs, logs) == 0.0


def test_unlikely_tokens_count_as_one():
    first = np.array([0.6, 0.398, 0.001 - 1e-6, 0.001 + 1e-6])
    swapped = np.array([0.6, 0.398, 0.0009, 0.0011])
    both = np.array([0.6, 0.398, 0.0009, 0.0009])
    assert kl_shift(*np.log([first, swapped])) > 0.0
    rare = np.array([0.6, 0.3985, 0.0005, 0.001 - 0.0005 + 0.0005])
    assert kl_shift(*np.log([rare, rare])) == 0.0
    few, other = np.array([0.6, 0.3985, 0.0009, 0.0006]), np.array([0.6, 0.3985, 0.0006, 0.0009])
    assert kl_shift(*np.log([few, other])) == pytest.approx(0.0, abs=1e-7)
    assert kl_shift(*np.log([few, both])) > 0.0


def test_what_cannot_be_measured_is_infinite():
    assert kl_shift(*np.log(np.full((2, 2000), 1 / 2000))) == math.inf
    with np.errstate(divide="ignore"):
        assert kl_shift(*np.log([[0.5, 0.5, 0.0], [0.5, 0.3, 0.2]])) == math.inf


def test_nats_are_measured_over_what_either_side_finds_likely():
    first, second = np.log([0.5, 0.4, 1e-9, 2e-3]), np.log([0.5, 0.44, 1e-5, 0.5e-3])
    assert max_log_difference(first, second) == pytest.approx(math.log(4))
    assert max_log_difference(first[:3], second[:3]) == pytest.approx(math.log(1.1))
    assert max_log_difference(first[2:3], second[2:3]) == math.inf
