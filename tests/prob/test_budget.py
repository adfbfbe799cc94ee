"""The law closest to the draft within a budget of KL from the target."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_divergence import MAYBE_EXCLUDED, TIED, naive_kl

from hybrid.prob import project_within_budget

SPENT = 1e-9


@st.composite
def cases(draw, weight=MAYBE_EXCLUDED):
    size = draw(st.integers(1, 8))
    laws = (np.array(draw(st.lists(weight, min_size=size, max_size=size).filter(any))) for _ in range(2))
    return *(law / law.sum() for law in laws), draw(st.sampled_from([1e-6, 1e-3, 0.02, 0.1, 0.5, 2.0, 20.0]))


def kept(law, draft):
    return math.fsum(map(min, law, draft))


@settings(max_examples=32)
@given(cases())
@example((np.array([1.0, 0.0]), np.array([0.3, 0.7]), 0.2))
def test_it_is_a_distribution_within_the_budget(case):
    target, draft, budget = case
    law = project_within_budget(target, draft, budget)
    assert (law >= 0.0).all()
    assert abs(law.sum() - 1.0) < 1e-9
    assert naive_kl(target, law) <= budget + SPENT


@settings(max_examples=15)
@given(cases())
def test_a_larger_budget_keeps_no_fewer_drafts(case):
    target, draft, _ = case
    rates = [
        kept(project_within_budget(target, draft, nats), draft)
        for nats in (0.0, 1e-9, 1e-4, 0.01, 0.1, 1.0, 10.0, math.inf)
    ]
    assert all(less <= more + 1e-12 for less, more in itertools.pairwise(rates))


@settings(max_examples=24)
@given(cases())
def test_no_budget_gives_the_target_and_enough_gives_the_draft(case):
    target, draft, _ = case
    assert project_within_budget(target, draft, 0.0).tolist() == target.tolist()
    assert project_within_budget(target, draft, naive_kl(target, draft) + SPENT).tolist() == draft.tolist()
    assert project_within_budget(target, draft, 0.0) is not target
    assert project_within_budget(target, draft, math.inf) is not draft


def nearest_on_the_way(target, other, budget):
    """Walk from the target towards another law for as long as the budget lasts."""
    near, far = 0.0, 1.0
    for _ in range(40):
        middle = (near + far) / 2
        if naive_kl(target, (1 - middle) * target + middle * other) <= budget:
            near = middle
        else:
            far = middle
    return (1 - near) * target + near * other


@settings(max_examples=20)
@given(cases(TIED), st.integers(0, 2**32 - 1))
def test_no_other_law_within_the_budget_keeps_more(case, seed):
    """Random directions, the draft's own, and small steps from the law itself."""
    target, draft, budget = case
    law, rng = project_within_budget(target, draft, budget), np.random.default_rng(seed)
    others = [draft, *rng.dirichlet(np.full(target.size, 0.5), 2)]
    others += [0.9 * law + 0.1 * other for other in rng.dirichlet(np.full(target.size, 0.5), 3)]
    for other in each_of(others):
        assert kept(nearest_on_the_way(target, other, budget), draft) <= kept(law, draft) + 1e-7


@settings(max_examples=24)
@given(cases(TIED.filter(bool)))
def test_it_is_the_target_times_clipped_odds_and_spends_the_budget(case):
    target, draft, budget = case
    law = project_within_budget(target, draft, budget)
    odds = law / target
    assert law == pytest.approx(target * np.clip(draft / target, odds.min(), odds.max()), abs=1e-9)
    if law.tolist() != draft.tolist():
        assert odds.min() <= 1.0 + 1e-12
        assert odds.max() >= 1.0 - 1e-12
        assert naive_kl(target, law) == pytest.approx(budget, rel=1e-6)


def test_the_two_arguments_are_not_interchangeable():
    one, other = np.array([0.55, 0.25, 0.1, 0.05, 0.05]), np.array([0.3, 0.2, 0.3, 0.15, 0.05])
    assert np.abs(project_within_budget(one, other, 0.05) - project_within_budget(other, one, 0.05)).max() > 0.05


def test_what_the_target_excludes_is_given_up_first():
    """The target cannot write token 2; keeping its draft costs mass elsewhere, and the least odds pay."""
    target, draft = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.35, 0.4])
    law = project_within_budget(target, draft, 0.1)
    assert 0.0 < law[2] < draft[2]
    assert law[1] == pytest.approx(law[0])
    assert naive_kl(target, law) == pytest.approx(0.1)
