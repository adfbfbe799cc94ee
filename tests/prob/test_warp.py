"""The law tokens are drawn from: temperature, then min-p, then top-k, then top-p."""

import itertools
import math

import numpy as np
import pytest
from cases import each
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.prob import Dense, warp
from hybrid.types import Sampling

WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=10).filter(any)
TEMPERATURES = st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.3, 2.0, 5.0])


def dense(weights):
    return Dense.from_probs(np.array(weights) / sum(weights))


# The four stages on plain lists of probabilities, each normalising what it leaves.


def normalised(weights):
    total = math.fsum(weights)
    return [w / total for w in weights]


def heated(probs, sampling):
    return normalised([p ** (1 / sampling.temperature) if p > 0 else 0.0 for p in probs])


def ranks(probs):
    return sorted(range(len(probs)), key=lambda i: (-probs[i], i))


def cut_to_min(probs, sampling):
    return normalised([p if p >= sampling.min_p * max(probs) else 0.0 for p in probs])


def cut_to_k(probs, sampling):
    kept = ranks(probs)[: sampling.top_k or None]
    return normalised([p if i in kept else 0.0 for i, p in enumerate(probs)])


def cut_to_p(probs, sampling):
    kept, mass = [], 0.0
    for i in ranks(probs):
        if kept and mass >= sampling.top_p:
            break
        kept.append(i)
        mass += probs[i]
    return normalised([p if i in kept else 0.0 for i, p in enumerate(probs)])


def chain(probs, sampling, *stages):
    for stage in stages:
        probs = stage(probs, sampling)
    return probs


@given(WEIGHTS, TEMPERATURES, st.just(0.0) | st.floats(0.001, 0.999), st.integers(0, 12), st.floats(0.01, 1.0))
def test_the_law_is_temperature_then_min_p_then_top_k_then_top_p(weights, temperature, min_p, top_k, top_p):
    sampling = Sampling(temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    hot = heated(normalised(weights), sampling)
    assume(
        all(abs(p - min_p * max(hot)) > 1e-9 for p in hot if p > 0)
    )  # a share that is reached exactly has its own test
    before_p = chain(hot, sampling, cut_to_min, cut_to_k)
    reached = np.cumsum([before_p[i] for i in ranks(before_p)])
    assume(top_p == 1.0 or (abs(reached - top_p) > 1e-9).all())  # a mass that is reached exactly has its own test
    want = cut_to_p(before_p, sampling) if top_p < 1.0 else before_p
    assert warp(dense(weights), sampling).probs == pytest.approx(want, abs=1e-12)


STAGES = (heated, cut_to_min, cut_to_k, cut_to_p)
# Top-k takes no notice of anything but ranks, which temperature and min-p leave as they are.
THE_SAME = {STAGES, (heated, cut_to_k, cut_to_min, cut_to_p), (cut_to_k, heated, cut_to_min, cut_to_p)}


@each("order", [*itertools.permutations(STAGES)], ids=lambda order: " ".join(f.__name__ for f in order))
def test_another_order_is_another_law(order):
    """If the client's order differed from the server's, its drafts would come from a law nobody asked for."""
    hot = [44, 30, 15, 8, 7, 6, 3, 2], Sampling(temperature=2.0, min_p=0.2, top_k=7, top_p=0.8)
    fewer = [30, 25, 20, 15, 6, 4], Sampling(temperature=1.0, min_p=0.3, top_k=3, top_p=0.7)  # than min-p leaves
    more = [40, 30, 10, 10, 10], Sampling(temperature=1.0, min_p=0.5, top_k=4, top_p=0.5)
    difference = max(
        np.abs(warp(dense(weights), sampling).probs - chain(normalised(weights), sampling, *order)).max()
        for weights, sampling in (hot, fewer, more)
    )
    assert difference < 1e-12 if order in THE_SAME else difference > 1e-2


@given(WEIGHTS, st.floats(0.0, 0.999), st.integers(0, 12), st.floats(0.01, 1.0))
def test_temperature_zero_is_certain_of_the_best_token(weights, min_p, top_k, top_p):
    """And asks none of the cuts."""
    law = warp(dense(weights), Sampling(temperature=0.0, min_p=min_p, top_k=top_k, top_p=top_p))
    assert law.probs[dense(weights).best] == 1.0
    assert law.probs.sum() == 1.0
    assert dense(weights).best == weights.index(max(weights))


@each("temperature", [1e-4, 1e-12, 1e-300, 1e-310, 5e-324])
def test_a_temperature_near_zero_goes_to_the_best_token_and_breaks_nothing(temperature):
    """Settings admit any temperature from zero up, so every one of them must give a distribution."""
    law = warp(Dense.from_probs(np.array([0.0, 0.2, 0.5, 0.3])), Sampling(temperature=temperature))
    assert law.probs.tolist() == [0.0, 0.0, 1.0, 0.0]


@given(WEIGHTS)
def test_temperature_one_without_cuts_changes_nothing(weights):
    raw = dense(weights)
    assert warp(raw, Sampling(temperature=1.0)).probs == pytest.approx(raw.probs, abs=1e-12)


@given(WEIGHTS, TEMPERATURES, st.integers(1, 12), st.sampled_from([0.0, 1e-300, 0.1, 0.5, 0.9]))
def test_at_least_one_and_at_most_k_tokens_remain_and_none_that_was_impossible(weights, temperature, top_k, top_p):
    law = warp(dense(weights), Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    support = np.flatnonzero(law.probs)
    assert 1 <= support.size <= top_k
    assert dense(weights).best in support
    assert all(weights[i] > 0 for i in support)
    assert abs(law.probs.sum() - 1) < 1e-12


def test_a_mass_that_is_reached_exactly_is_enough():
    """0.5 + 0.25 reaches 0.75: the third token stays out (powers of two, so that no rounding decides)."""
    law = warp(Dense.from_probs(np.array([0.125, 0.5, 0.25, 0.125])), Sampling(temperature=1.0, top_p=0.5))
    assert law.probs.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_share_of_the_best_that_is_reached_exactly_is_enough():
    """Half of 0.5 is 0.25: the third token stays, its double does not go with the fourth."""
    raw = Dense.from_probs(np.array([0.125, 0.5, 0.25, 0.125]))
    kept = warp(raw, Sampling(temperature=1.0, min_p=0.5)).probs
    assert kept == pytest.approx([0.0, 2 / 3, 1 / 3, 0.0])
    # The share is of what the temperature made of it: 0.25 / 0.5 is 1 / 4 at half the temperature.
    assert warp(raw, Sampling(temperature=0.5, min_p=0.5)).probs.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert warp(raw, Sampling(temperature=2.0, min_p=0.5)).probs.min() > 0.1


def test_equal_tokens_are_cut_by_id():
    """Client and server must keep the same ones."""
    equal = Dense.from_probs(np.full(8, 0.125))
    assert np.flatnonzero(warp(equal, Sampling(temperature=1.0, top_k=3)).probs).tolist() == [0, 1, 2]
    assert np.flatnonzero(warp(equal, Sampling(temperature=1.0, top_p=0.3)).probs).tolist() == [0, 1, 2]
