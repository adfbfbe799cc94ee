"""Optimal transport against a linear program over every token, the total variation, and that over concepts.

A linear program an example is slow, and so is the package that solves it here.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st
from naive_divergence import feasible, large_pairs, law, naive_tv, pairs, rows
from scipy.optimize import linprog

from hybrid.prob import FullRow, Partition, TopK, total_variation
from hybrid.prob.concepts import EmbeddingCost, PotMissing, transport

NEAR = 1e-7
# The package warns of its own sources when they are first compiled.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:invalid escape:{kind}") for kind in ("DeprecationWarning", "SyntaxWarning")
]
seeds = st.integers(0, 2**32 - 1)


def alone(first, second):
    """Any other token is as far as can be."""
    return (first[:, None] != second).astype(float)


def between_concepts(partition):
    """Nothing within a concept, 1 between two."""
    return lambda first, second: (partition.labels[first][:, None] != partition.labels[second]).astype(float)


def directions(rng, size):
    vectors = rng.standard_normal((size, 3))
    return EmbeddingCost(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def naive_transport(target, draft, cost):
    """The linear program over every pair of tokens."""
    size = len(target)
    ids = np.arange(size)
    leaves, arrives = np.kron(np.eye(size), np.ones(size)), np.kron(np.ones(size), np.eye(size))
    limits = np.concatenate((np.asarray(target) / sum(target), np.asarray(draft) / sum(draft)))
    # What arrives at the last follows from all others: two sums of one that differ in a digit have no plan at all.
    program = {"A_eq": np.vstack((leaves, arrives))[:-1], "b_eq": limits[:-1], "bounds": (0, None)}
    found = linprog(cost(ids, ids).ravel(), **program, options={"presolve": False})
    assert found.success, found.message
    return found.fun


def test_what_it_costs_between_directions_is_a_distance_from_0_to_1():
    vectors = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 1e-9]])
    costs = EmbeddingCost(vectors)(np.arange(4), np.arange(4))
    assert costs[0] == pytest.approx([0.0, np.sqrt(0.5), 1.0, 0.0], abs=1e-7)
    rounded = EmbeddingCost(np.array([[0.6, 0.8 - 1e-9]]))(np.array([0]), np.array([0]))
    assert rounded.tolist() == [[0.0]], "rounding is no distance between a token and itself"


@pytest.mark.slow
@given(pairs(min_size=2), seeds)
def test_a_row_known_in_full_costs_what_the_linear_program_says(pair, seed):
    target, draft = pair
    cost = directions(np.random.default_rng(seed), target.num_tokens)
    found = transport(FullRow(target), draft, cost)
    assert found.lower == pytest.approx(naive_transport(target.probs, draft.probs, cost), abs=NEAR)
    assert found.upper == pytest.approx(found.lower, abs=NEAR)


@pytest.mark.slow
@given(pairs(min_size=2), seeds)
def test_no_completion_falls_outside_and_none_is_above_the_total_variation(pair, seed):
    target, draft = pair
    rng = np.random.default_rng(seed)
    cost = directions(rng, target.num_tokens)
    for row in each_of(rows(target)):
        found = transport(row, draft, cost)
        for whole in (target.probs, feasible(row, draft, rng)):
            value = naive_transport(whole, draft.probs, cost)
            assert found.lower - NEAR <= value <= found.upper + NEAR
            assert value <= naive_tv(whole, draft.probs) + NEAR
        assert found.upper <= total_variation(row, draft).upper + NEAR


@pytest.mark.slow
@given(large_pairs(), st.sampled_from([1, 5, 20]), seeds)
def test_what_has_no_place_of_its_own_is_somewhere(pair, k, seed):
    """Most tokens of a large vocabulary have none: where all cost 1 the truth is the total variation."""
    target, draft = pair
    found = transport(TopK.from_dense(target, k), draft, alone)
    assert found.lower - NEAR <= naive_tv(target.probs, draft.probs) <= found.upper + NEAR
    near = transport(TopK.from_dense(target, k), draft, directions(np.random.default_rng(seed), target.num_tokens))
    assert near.lower <= near.upper <= found.upper + NEAR


@pytest.mark.slow
@given(pairs(min_size=2))
def test_where_every_other_token_costs_one_it_is_the_total_variation(pair):
    target, draft = pair
    expected = naive_tv(target.probs, draft.probs)
    assert transport(FullRow(target), draft, alone).lower == pytest.approx(expected, abs=NEAR)


@pytest.mark.slow
@given(pairs(min_size=4))
def test_where_a_concept_costs_nothing_it_is_the_total_variation_over_concepts(pair):
    target, draft = pair
    partition = Partition.of_groups(target.num_tokens, [{0, 3}, {1, 2}])
    expected = naive_tv(partition.masses(target.probs), partition.masses(draft.probs))
    assert transport(FullRow(target), draft, between_concepts(partition)).lower == pytest.approx(expected, abs=NEAR)


@pytest.mark.slow
def test_a_synonym_that_is_hidden_is_no_distance_for_certain():
    """What the list hides may be the draft's own token; at most all of it is elsewhere."""
    target, draft = law([0.9, 0.05, 0.05]), law([0.05, 0.9, 0.05])
    same = between_concepts(Partition.of_groups(3, [{0, 1}]))
    found = transport(TopK.from_dense(target, 1), draft, same)
    assert found.lower == pytest.approx(0.0, abs=NEAR)
    assert found.upper <= 0.15


def test_who_lacks_the_package_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(PotMissing, match=r"hybrid-llm\[transport\]"):
        transport(FullRow(law([0.5, 0.5])), law([0.4, 0.6]), alone)
