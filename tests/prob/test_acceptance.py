"""Speculative sampling leaves the target's law as it is, whatever the draft was.

Checked by algebra over the whole vocabulary. A sampler that keeps every draft writes fluent text, so neither a look
at the text nor coverage would notice it; the wrong variants at the end show that this check does.
"""

import math

import numpy as np
import pytest
from cases import each
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid.prob import Dense, TopK, accept_prob, acceptance, residual

WEIGHT = st.integers(0, 5).map(float) | st.floats(-300, 0).map(math.exp)


@st.composite
def pairs(draw):
    size = draw(st.integers(1, 12))
    laws = (np.array(draw(st.lists(WEIGHT, min_size=size, max_size=size).filter(any))) for _ in range(2))
    return tuple(law / law.sum() for law in laws)


def outcome(target, draft, accept=accept_prob, replace=residual):
    """Return the law of what stands in the end: drafted and kept, or refused and replaced."""
    keep = accept(target, draft)
    refused = math.fsum(draft * (1 - keep))
    return draft * keep + refused * replace(target, draft)


def is_exact(target, draft, **variant):
    return bool(np.abs(outcome(target, draft, **variant) - target).max() < 1e-12)


@given(pairs())
def test_the_outcome_is_distributed_as_the_target(pair):
    assert is_exact(*pair)


@given(st.integers(0, 2**32 - 1), st.integers(13, 900), st.sampled_from([0.02, 0.3, 3.0]))
def test_the_outcome_is_distributed_as_the_target_over_large_vocabularies(seed, size, concentration):
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.full(size, concentration), 2)
    assert is_exact(target, draft)


@given(pairs())
@example((np.array([0.5, 0.5]), np.array([1.0, 5e-324])))
def test_a_chance_is_a_chance_and_a_replacement_comes_from_a_distribution(pair):
    """Down to the smallest number there is: a division that overflows is a warning, and warnings end a run."""
    target, draft = pair
    keep, replacement = accept_prob(target, draft), residual(target, draft)
    assert ((keep >= 0) & (keep <= 1)).all()
    assert (replacement >= 0).all()
    assert abs(replacement.sum() - 1) < 1e-12


@given(pairs())
def test_a_token_the_draft_likes_too_much_is_never_a_replacement(pair):
    target, draft = pair
    if (target > draft).any():
        assert (residual(target, draft)[target <= draft] == 0).all()


@given(pairs())
def test_as_much_is_kept_as_the_two_have_in_common(pair):
    """The acceptance rate is the overlap, which is what the interval in divergence.py bounds."""
    target, draft = pair
    rate = math.fsum(draft * accept_prob(target, draft))
    assert rate == pytest.approx(math.fsum(map(min, target, draft)), abs=1e-12)
    whole = acceptance(TopK.from_dense(Dense.from_probs(target), target.size), Dense.from_probs(draft))
    assert rate == pytest.approx(whole.lower, abs=1e-12)
    assert rate == pytest.approx(whole.upper, abs=1e-12)


@given(pairs())
def test_equal_distributions_refuse_nothing_and_still_have_a_replacement(pair):
    law, _ = pair
    assert (accept_prob(law, law) == 1).all()
    assert residual(law, law).tolist() == law.tolist()
    assert residual(law, law) is not law


def test_the_two_arguments_are_not_interchangeable():
    target, draft = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    assert accept_prob(target, draft) == pytest.approx([1, 2 / 3, 1 / 4])
    assert accept_prob(draft, target) == pytest.approx([3 / 7, 1, 1])
    assert residual(target, draft) == pytest.approx([1, 0, 0])
    assert residual(draft, target) == pytest.approx([0, 0.25, 0.75])


# What others have shipped, or nearly: every one of these must be caught by the check above.


def keep_everything(target, draft):
    return np.ones_like(draft)


def keep_the_likelier(target, draft):
    return (target >= draft).astype(float)


def residual_of_the_top_two(target, draft):
    left = np.maximum(target - draft, 0)
    left[np.argsort(-target)[2:]] = 0
    return left / left.sum()


def target_cut_to_the_top_two(target, draft):
    shown = np.where(np.isin(np.arange(target.size), np.argsort(-target)[:2]), target, 0)
    return residual(shown / shown.sum(), draft)


def target_itself(target, draft):
    return target


@each(
    "variant",
    [
        {"accept": keep_everything},
        {"accept": keep_the_likelier},
        {"accept": lambda target, draft: accept_prob(draft, target)},
        {"replace": residual_of_the_top_two},
        {"replace": target_cut_to_the_top_two},
        {"replace": target_itself},
        {"replace": lambda target, draft: residual(draft, target)},
    ],
    ids=[
        "every draft is kept",
        "kept only if the target likes it more",
        "accept: arguments swapped",
        "residual renormalised on the top two",
        "target renormalised on the top two",
        "replaced from the target itself",
        "residual: arguments swapped",
    ],
)
def test_the_check_catches_a_wrong_sampler(variant):
    target, draft = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.55, 0.2, 0.1, 0.15])
    assert is_exact(target, draft)
    assert not is_exact(target, draft, **variant)
