"""KL over concepts: at most KL over tokens, equal to it where no two are merged, and a bound whatever the list hides.

The oracles complete the list token by token, sum the tokens of each concept and take the dense sum.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each_of
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_divergence import (
    MAYBE_EXCLUDED,
    SLACK,
    SOME_K,
    feasible,
    heaped,
    large_pairs,
    law,
    level,
    naive_kl,
    pairs,
    rows,
    unseen,
)

from hybrid.prob import Dense, FullRow, Partition, TopK, concept_kl, kl, kl_divergence

NEAR = 1e-7


def summed(partition, probs):
    return [
        sum(p for p, c in zip(probs, partition.labels, strict=True) if c == k) for k in range(partition.num_concepts)
    ]


def naive_concept_kl(partition, target, draft):
    return naive_kl(summed(partition, target), summed(partition, draft))


@st.composite
def partitioned(draw, **choices):
    """A pair over at most ten tokens, and some partition of them."""
    target, draft = draw(pairs(min_size=2, **choices))
    size = target.num_tokens
    names = draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    groups = [[i for i in range(size) if names[i] == name] for name in set(names)]
    return target, draft, Partition.of_groups(size, [group for group in groups if len(group) > 1])


@st.composite
def large_partitioned(draw):
    """The same over hundreds of tokens."""
    target, draft = draw(large_pairs())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = target.num_tokens
    names = rng.integers(0, draw(st.sampled_from([size // 2, size // 10])), size)
    return target, draft, Partition.of_groups(size, [np.flatnonzero(names == name).tolist() for name in set(names)])


@given(partitioned(draft_weight=MAYBE_EXCLUDED))
def test_whatever_the_list_hides_the_value_is_within(case):
    target, draft, partition = case
    truth = naive_concept_kl(partition, target.probs, draft.probs)
    assert concept_kl(FullRow(target), draft, partition).lower == pytest.approx(truth, abs=SLACK)
    for row in each_of(rows(target)):
        found = concept_kl(row, draft, partition)
        assert 0.0 <= found.estimate <= found.lower <= found.upper
        assert found.lower - NEAR <= truth <= found.upper + NEAR


def test_rounding_makes_no_divergence_less_than_nothing():
    """Probabilities that were rounded sum to more than one."""
    rounded = Dense(np.full(2, -0.6931471), log_total=0.0)
    shown = TopK.from_dense(rounded, 1)
    assert concept_kl(shown, rounded, Partition.of_groups(2, [{0, 1}])).estimate >= 0.0


@pytest.mark.slow
@settings(max_examples=50)
@given(large_partitioned(), st.sampled_from(SOME_K))
def test_the_value_is_within_over_large_vocabularies(case, k):
    """What few concepts are looked at must be those that matter."""
    target, draft, partition = case
    row = TopK.from_dense(target, k)
    found, tokens = concept_kl(row, draft, partition), kl_divergence(row, draft)
    truth = naive_concept_kl(partition, target.probs, draft.probs)
    assert found.lower - NEAR <= truth <= found.upper + NEAR
    assert found.lower == pytest.approx(
        naive_concept_kl(partition, nearest(row, draft, partition), draft.probs), abs=NEAR
    )
    assert found.lower <= tokens.lower + NEAR
    assert found.upper <= tokens.upper + NEAR


def nearest(row, draft, partition):
    """Complete the list so that concepts are as near as they may be: the level of them all, found by halving."""
    size, hidden = draft.num_tokens, unseen(row, draft.num_tokens)
    whole = np.zeros(size)
    whole[row.ids] = row.probs
    low = np.array(summed(partition, whole))
    num = np.bincount(partition.labels[hidden], minlength=partition.num_concepts)
    high = low + np.minimum(row.tail, row.tail_max * num)
    masses = level(summed(partition, draft.probs), low, high, 1.0)
    for i in hidden:
        concept = partition.labels[i]
        whole[i] = (masses[concept] - low[concept]) / num[concept]
    return whole


@given(partitioned())
def test_the_lower_end_is_attained(case):
    """Also by masses of tokens that keep the cap: what a concept may have, its hidden tokens can hold."""
    target, draft, partition = case
    for row in each_of(rows(target)):
        whole = nearest(row, draft, partition)
        assert max((whole[i] for i in unseen(row, target.num_tokens)), default=0.0) <= row.tail_max + NEAR
        found = concept_kl(row, draft, partition).lower
        assert found == pytest.approx(naive_concept_kl(partition, whole, draft.probs), abs=NEAR)


@given(partitioned(), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_no_completion_falls_outside(case, k, seed):
    target, draft, partition = case
    row, rng = TopK.from_dense(target, k), np.random.default_rng(seed)
    found = concept_kl(row, draft, partition)
    orders = itertools.islice(itertools.permutations(unseen(row, target.num_tokens)), 24)
    wholes = [*(heaped(row, draft, order) for order in orders), *(feasible(row, draft, rng) for _ in range(5))]
    for whole in wholes:
        value = naive_concept_kl(partition, whole, draft.probs)
        assert found.lower - NEAR <= value <= found.upper + NEAR


@given(partitioned(draft_weight=MAYBE_EXCLUDED))
def test_concepts_are_never_farther_apart_than_tokens(case):
    target, draft, partition = case
    for row in each_of(rows(target)):
        concepts, tokens = concept_kl(row, draft, partition), kl_divergence(row, draft)
        assert concepts.lower <= tokens.lower + NEAR
        assert concepts.upper <= tokens.upper + NEAR


@given(pairs())
def test_with_each_token_alone_it_is_the_divergence_of_tokens(pair):
    target, draft = pair
    alone = Partition.of_groups(target.num_tokens, [])
    for row in (FullRow(target), *rows(target)):
        concepts, tokens = concept_kl(row, draft, alone), kl_divergence(row, draft)
        assert concepts.lower == pytest.approx(tokens.lower, abs=NEAR)
        assert concepts.upper == pytest.approx(tokens.upper, abs=NEAR)


@given(pairs())
def test_one_concept_is_no_divergence(pair):
    target, draft = pair
    whole = Partition.of_groups(target.num_tokens, [range(target.num_tokens)])
    for row in (FullRow(target), *rows(target)):
        found = concept_kl(row, draft, whole)
        assert found.lower == pytest.approx(0.0, abs=SLACK)
        assert found.upper == pytest.approx(0.0, abs=NEAR)


@given(partitioned())
def test_what_is_no_divergence_of_concepts_is_wording(case):
    """The chain rule: KL = KL of concepts + what each concept's tokens differ by, weighed by the target."""
    target, draft, partition = case
    wording = 0.0
    for concept in range(partition.num_concepts):
        ids = np.flatnonzero(partition.labels == concept)
        mass, drafted = target.probs[ids].sum(), draft.probs[ids].sum()
        if mass > 0.0:
            wording += mass * naive_kl(target.probs[ids] / mass, draft.probs[ids] / drafted)
    concepts = concept_kl(FullRow(target), draft, partition).lower
    assert concepts + wording == pytest.approx(kl(target, draft), abs=1e-8)


def test_a_list_summed_into_concepts_with_a_bucket_for_the_rest_is_no_bound():
    """A synonym of the listed token is in the bucket, where it is held against a draft that prefers it."""
    target, draft = law([0.9, 0.05, 0.05]), law([0.05, 0.9, 0.05])
    same = Partition.of_groups(3, [{0, 1}])
    listed = naive_kl([0.9, 0.1], [0.05, 0.95])
    assert naive_concept_kl(same, target.probs, draft.probs) == pytest.approx(0.0, abs=SLACK)
    assert listed == pytest.approx(2.376, abs=1e-3)
    assert concept_kl(TopK.from_dense(target, 1), draft, same).lower == pytest.approx(0.0, abs=SLACK)


def test_a_token_that_the_draft_does_not_have_is_a_concept_alone_and_infinitely_far():
    row = TopK.from_lists({0: math.log(0.5), 7: math.log(0.4)})
    found = concept_kl(row, law([0.5, 0.5]), Partition.of_groups(2, [{0, 1}]))
    assert found.lower == math.inf


def test_its_groups_make_the_same_partition_again():
    partition = Partition.of_groups(6, [{5, 1}, {0, 3, 2}])
    assert sorted(partition.groups) == [(0, 2, 3), (1, 5)]
    assert Partition.of_groups(6, partition.groups).labels.tolist() == partition.labels.tolist()
    assert Partition.of_groups(3, []).groups == ()


def test_its_digest_says_which_tokens_are_together_and_nothing_else():
    partition = Partition.of_groups(4, [{0, 3}])
    assert partition.digest == Partition(np.array([5, 2, 1, 5]), 6).digest
    assert len({partition.digest, Partition.of_groups(4, []).digest, Partition.of_groups(4, [{0, 2}]).digest}) == 3


def test_what_a_vocabulary_is_padded_with_is_alone():
    partition = Partition.of_groups(3, [{0, 2}]).over(5)
    assert partition.labels.tolist() == [0, 1, 0, 2, 3]
    assert partition.num_concepts == 4


def test_the_noise_of_both_rows_travels_along():
    target, draft = law([0.7, 0.2, 0.1]), Dense(law([0.2, 0.3, 0.5]).logits, noise=0.01)
    row = TopK.from_dense(Dense(target.logits, noise=0.02), 2)
    partition = Partition.of_groups(3, [{0, 1}])
    assert concept_kl(row, draft, partition).noise == pytest.approx(0.03)
    assert concept_kl(FullRow(Dense(target.logits, noise=0.02)), draft, partition).noise == pytest.approx(0.03)
    shifted, alone = Dense(draft.logits, noise=0.5, shift=0.01), Partition.of_groups(3, [])
    assert concept_kl(row, shifted, alone).noise == pytest.approx(kl_divergence(row, shifted).noise)
    assert concept_kl(row, shifted, alone).noise < 0.1, "a shift is told instead of nats, where it is less"


@pytest.mark.parametrize("groups", [[{0, 1}, {1, 2}], [{0, 3}], [{-1, 0}]])
def test_a_token_has_one_concept_and_is_of_the_vocabulary(groups):
    with pytest.raises(ValueError, match="two concepts or in no vocabulary"):
        Partition.of_groups(3, groups)
