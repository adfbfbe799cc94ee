"""Excess loss: two log-probabilities, known wherever the token is shown; else every completion lies within."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_divergence import SLACK, completed, feasible, heaped, inside, law, pairs, rows, unseen

from hybrid.prob import Dense, TopK, excess_loss, excess_with_noise

seeds = st.integers(0, 2**31)


def naive_excess(probs, token):
    """The most of all logarithms less the token's own; infinite for what cannot be."""
    return math.log(max(probs)) - math.log(probs[token]) if probs[token] > 0 else math.inf


@given(pairs(), st.data())
def test_a_token_that_is_listed_or_asked_for_by_name_has_its_excess_from_any_top_k(pair, data):
    """The tail plays no part. Of a token that cannot be, no number is shown."""
    target, _ = pair
    token = data.draw(st.integers(0, target.num_tokens - 1))
    row = TopK.from_dense(target, data.draw(st.integers(1, target.num_tokens)), token)
    found = excess_loss(row, token)
    if target.probs[token] > 0:
        assert found.lower == found.upper == pytest.approx(naive_excess(target.probs, token), rel=1e-9, abs=1e-12)
    assert inside(naive_excess(target.probs.tolist(), token), found)


@given(pairs())
def test_excess_is_0_exactly_for_a_most_likely_token_and_never_negative(pair):
    target, _ = pair
    row = TopK.from_dense(target, target.num_tokens)
    most = target.probs.max()
    for token in each_of(range(target.num_tokens)):
        assert (excess_loss(row, token).lower == 0.0) == (target.probs[token] == most)
        assert 0.0 <= excess_loss(row, token).lower <= excess_loss(row, token).upper


@given(pairs(min_size=2), seeds)
def test_every_completion_of_the_tail_lies_within(pair, seed):
    """Heaped on each unseen token in turn, or spread at random."""
    target, draft = pair
    rng, size = np.random.default_rng(seed), target.num_tokens
    for row, left in each_of((row, left) for row in rows(target) if (left := unseen(row, size))):
        heaps = [heaped(row, draft, [first, *(i for i in left if i != first)]) for first in left]
        for whole in each_of([*heaps, *(feasible(row, draft, rng) for _ in range(3))]):
            assert all(inside(naive_excess(whole, token), excess_loss(row, token)) for token in range(size))


@given(pairs(min_size=3))
def test_a_completion_attains_each_end_for_an_unseen_token(pair):
    """The least where it gets what it can, infinity where the others have room for all; rounding is no mass."""
    target, draft = pair
    missing = [(row, unseen(row, target.num_tokens)) for row in rows(target) if row.tail > 1e-6]
    assume(any(left for _, left in missing))
    for row, token, others in each_of((row, i, [j for j in left if j != i]) for row, left in missing for i in left):
        found = excess_loss(row, token)
        assert naive_excess(heaped(row, draft, [token, *others]), token) == pytest.approx(found.lower, abs=SLACK)
        if row.tail_max * len(others) >= row.tail:
            assert naive_excess(heaped(row, draft, [*others, token]), token) > 30.0, "or what rounding leaves"
            assert found.upper == math.inf


@given(st.floats(0.05, 0.3), st.floats(0.05, 0.3), st.floats(0.02, 0.9), st.integers(4, 9))
def test_a_list_that_may_miss_its_best_token_leaves_the_excess_of_a_shown_one_open(first, second, hidden, size):
    """``hidden`` may lie above the best that is shown: then some completion has another best."""
    row = TopK.from_lists({0: math.log(max(first, second)), 1: math.log(min(first, second))}, hidden=hidden)
    found, draft = excess_loss(row, 1), law([1.0] * size)
    assume(row.tail_max * (size - 2) >= row.tail)  # else so few tokens may not hold it
    least_known = naive_excess(completed(row, size, [row.tail / (size - 2)] * (size - 2)), 1)
    most_known = naive_excess(heaped(row, draft, range(2, size)), 1)
    assert inside(least_known, found)
    assert found.upper == pytest.approx(most_known, abs=SLACK)
    assert found.lower == pytest.approx(math.log(max(first, second) / min(first, second)), abs=SLACK)
    least_unseen = max(0.0, math.log(max(first, second) / min(row.tail_max, row.tail)))
    assert excess_loss(row, 2).lower == pytest.approx(least_unseen, abs=SLACK)


def test_what_is_asked_for_by_name_may_be_likelier_than_the_list():
    """A list that drops a token shows it where it is named: then it is the best."""
    row = TopK.from_lists({0: math.log(0.2)}, named={5: math.log(0.6)}, hidden=0.7)
    assert excess_loss(row, 5).lower == excess_loss(row, 5).upper == 0.0
    assert excess_loss(row, 0).lower == excess_loss(row, 0).upper == pytest.approx(math.log(3.0))


def test_a_tail_of_rounding_may_be_that_much():
    """Nothing is left for an unseen token but the digits that float32 loses."""
    row = TopK.from_lists({0: 0.0})
    assert excess_loss(row, 1).lower == pytest.approx(-math.log(1e-6))
    assert excess_loss(row, 1).upper == math.inf


@each("k", [1, 2, 3])
def test_an_unseen_token_may_tie_with_the_last_that_is_shown(k):
    """From one shown token it may be a best one, and nothing is rejected for certain."""
    row = TopK.from_dense(law([5, 3, 2, 1, 1, 1, 1]), k)
    assert excess_loss(row, 6).lower == pytest.approx(math.log([5, 5, 5][k - 1] / [5, 3, 2][k - 1]))
    assert k > 1 or excess_loss(row, 6).lower == 0.0


# ---- noise ---------------------------------------------------------------------------------------------------------


@given(pairs(min_size=2), st.floats(0.0, 0.2), seeds, st.data())
def test_models_within_the_noise_have_an_excess_within_twice_of_it(pair, noise, seed, data):
    """Told with some nats off at every token: best and token may both be."""
    told, rng = pair[0], np.random.default_rng(seed)
    token = data.draw(st.integers(0, told.num_tokens - 1).filter(lambda i: told.probs[i] > 0))
    moved = told.logprobs + rng.uniform(-noise / 2, noise / 2, told.num_tokens)
    true = Dense.from_logits(moved)  # normalising moves all by at most another half
    found = excess_loss(replace(TopK.from_dense(told, 1, token), noise=noise), token)
    assert found.noise == 2 * noise
    least, most = (excess_with_noise(end, by) for end, by in ((found.lower, -found.noise), (found.upper, found.noise)))
    assert least - SLACK <= naive_excess(true.probs, token) <= most + SLACK


@each("sign", [-1.0, 1.0])
def test_some_model_within_the_noise_attains_it(sign):
    """The best up and the token down, or the other way round; a third token takes up what that leaves."""
    told, noise = np.array([0.4, 0.3, 0.3]), 0.1
    true = np.append(told[:2] * np.exp([sign * noise, -sign * noise]), 0.0)
    true[2] = 1.0 - true.sum()
    assert abs(math.log(true[2] / told[2])) <= noise
    found = excess_loss(TopK.from_dense(Dense.from_logits(np.log(told), noise), 3), 1)
    assert naive_excess(true, 1) == pytest.approx(excess_with_noise(found.lower, sign * found.noise))
