"""A certificate is the least divergence at which a rule can reject: no less, no more, from either side.

Compared with convex solvers (no less), with drafts made to lie on either side of the boundary (no more), and from the
top k with the full row. Values are compared as exp(-value): alike for small ones, and tame where they are infinite.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each, each_of
from convex import ahead, around, demoted, distances, least, least_kl, levelled
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_divergence import law, rows
from naive_rules import (
    COUNTS,
    MARGINS,
    RULES,
    SHARES,
    accepted,
    best_first,
    rejected,
    targets,
    undecided,
)

from hybrid.prob import (
    AdditiveAcceptance,
    Dense,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    TypicalAcceptance,
    certificate,
    margin_certificate,
    skip_certificate,
    tree_certificate,
)

SEEDS = st.integers(0, 2**32 - 1)
MEASURES = st.sampled_from(["forward", "reverse", "tv"])
SOME_RULES = [
    *(
        GreedyAcceptance(),
        AdditiveAcceptance(0.05),
        AdditiveAcceptance(0.4),
        MultiplicativeAcceptance(0.2),
        MultiplicativeAcceptance(0.9),
        TopMAcceptance(2),
        TopMAcceptance(4),
    ),
    *(TypicalAcceptance(0.3, 0.6), TypicalAcceptance(0.09, 0.3), TypicalAcceptance(0.9, 2.0)),
]


def some_law(rng, size):
    weights = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0]))) + 1e-3
    return weights / weights.sum()


def least_of_margin(margin, m):
    """The tree certificate of the row that attains the least of any with this margin: the first test below holds that.

    It has m + 1 tokens, the middle ones at the geometric mean of the outer two, a^2 and b^2.
    """
    total = math.sqrt((2.0 + math.sqrt(4.0 - (m + 1) * (3 - m) * margin**2)) / (m + 1))  # a + b
    a, b = (total + margin / total) / 2.0, (total - margin / total) / 2.0
    return tree_certificate(law([a * a, *[a * b] * (m - 1), b * b]), m)


def others(size, token):
    return [i for i in range(size) if i != token]


def close(value, expected, slack=1e-9):
    return abs(math.exp(-value) - math.exp(-expected)) < slack


def at_most(value, bound):
    return math.exp(-value) > math.exp(-bound) - 1e-9


# No less: convex solvers over all the ways in which a rule can reject.


@settings(max_examples=60)
@given(SEEDS, RULES, MEASURES)
def test_a_certificate_is_the_least_divergence_over_every_token_the_rule_rejects(seed, rule, measure):
    """Of all rejected tokens, not of the likeliest alone: that this one is the nearest is part of the law."""
    probs = some_law(np.random.default_rng(seed), 5)
    assume(not undecided(probs, rule))
    naive = [least(probs, ahead(5, token, others(5, token)), measure) for token in rejected(probs, rule)]
    assert close(certificate(Dense.from_probs(probs), rule, measure), min(naive, default=math.inf), 1e-6)


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 5), MEASURES)
def test_a_tree_certificate_is_the_least_divergence_over_every_set_of_tokens_that_can_come_before(seed, m, measure):
    probs = some_law(np.random.default_rng(seed), 5)
    best = best_first(probs)[0]
    sets = itertools.combinations(others(5, best), m)
    naive = [least(probs, np.vstack([ahead(5, i, [best]) for i in before]), measure) for before in sets]
    assert close(tree_certificate(Dense.from_probs(probs), m, measure), min(naive, default=math.inf), 1e-6)


@settings(max_examples=60)
@given(SEEDS, RULES.filter(lambda rule: not isinstance(rule, TypicalAcceptance)))
def test_a_skip_certificate_is_the_least_divergence_over_every_target_that_rejects(seed, rule):
    probs = some_law(np.random.default_rng(seed), 5)
    best = best_first(probs)[0]
    share, margin, m = getattr(rule, "share", 1.0), getattr(rule, "margin", 0.0), getattr(rule, "m", 1)
    naive = [
        least_kl(5, probs, of_first=np.vstack([ahead(5, i, [best], share) for i in before]), at_least=margin)
        for before in itertools.combinations(others(5, best), m)
    ]
    assert close(skip_certificate(Dense.from_probs(probs), rule), min(naive, default=math.inf), 1e-6)


@each("m", [1, 2, 3, 6])
@each("margin", [0.05, 0.3, 0.7, 0.95])
def test_a_margin_certificate_is_the_least_over_target_and_draft_at_once(margin, m):
    """Token 0 is the best, token m the (m + 1)-th, and one more may be less likely still."""
    size = m + 2
    order = [*(ahead(size, 0, [i]) for i in range(1, m)), *(ahead(size, i, [m]) for i in range(1, m))]
    of_target = np.vstack([*order, ahead(size, m, [m + 1]), ahead(size, 0, [m])])
    of_draft = np.vstack([ahead(size, i, [0]) for i in range(1, m + 1)])
    at_least = np.zeros(len(of_target) + len(of_draft))
    at_least[len(of_target) - 1] = margin
    naive = least_kl(size, size, of_target, of_draft, at_least)
    assert least_of_margin(margin, m) == pytest.approx(naive, abs=1e-6)
    assert m > 1 or margin_certificate(margin) == pytest.approx(naive, abs=1e-6)


# No more: drafts and targets on either side of the boundary.


def assert_none_is_rejected_below_its_certificate(rng, measure):
    probs = some_law(rng, int(rng.integers(2, 9)))
    drafts = around(rng, probs, [levelled(probs, token, measure) for token in best_first(probs)[1:]])
    apart, favourites = distances(probs, drafts, measure), drafts.argmax(axis=1)
    for rule in SOME_RULES:
        wrong = np.isin(favourites, rejected(probs, rule))
        assert (apart[wrong] >= certificate(Dense.from_probs(probs), rule, measure) - 1e-12).all(), rule


@settings(max_examples=50)
@given(SEEDS)
def test_no_position_below_its_certificate_is_ever_rejected(seed):
    """By any of ten rules, in 50 times 8 times 25 = 10,000 pairs of a target and a draft."""
    rng = np.random.default_rng(seed)
    for _ in range(8):
        assert_none_is_rejected_below_its_certificate(rng, "forward")


@settings(max_examples=20)
@given(SEEDS, st.sampled_from(["reverse", "tv"]))
def test_no_position_below_its_certificate_is_ever_rejected_in_the_other_measures(seed, measure):
    rng = np.random.default_rng(seed)
    for _ in range(8):
        assert_none_is_rejected_below_its_certificate(rng, measure)


@settings(max_examples=20)
@given(SEEDS, MEASURES)
def test_no_best_token_leaves_the_tree_below_its_certificate(seed, measure):
    rng = np.random.default_rng(seed)
    for size in range(2, 9):
        probs = some_law(rng, size)
        drafts = around(rng, probs, [demoted(probs, m, measure) for m in range(1, size)])
        best = int(probs.argmax())
        before = (drafts >= drafts[:, [best]]).sum(axis=1) - 1
        apart = distances(probs, drafts, measure)
        for m in each_of(range(1, size + 1)):
            assert (apart[before >= m] >= tree_certificate(Dense.from_probs(probs), m, measure) - 1e-12).all()


@settings(max_examples=25)
@given(SEEDS)
def test_no_target_below_the_skip_certificate_rejects_the_drafts_favourite(seed):
    """For the typical rule, too, whose certificate is only a bound."""
    rng = np.random.default_rng(seed)
    for _ in range(8):
        probs = some_law(rng, int(rng.integers(2, 9)))
        first, second = best_first(probs)[:2]
        tilted = np.tile(probs, (20, 1))  # where the other two rules have their boundary
        tilted[:, [first, second]] *= np.exp(rng.uniform(0, 2, (20, 2)) * [-1, 1])
        boundary = [demoted(probs, m, "reverse") for m in range(1, probs.size)]
        targets = [*around(rng, probs, boundary), *(tilted / tilted.sum(axis=1, keepdims=True))]
        apart = distances(probs, np.array(targets), "reverse")
        for rule in SOME_RULES:
            limit = skip_certificate(Dense.from_probs(probs), rule)
            assert all(first in accepted(targets[i], rule) for i in np.flatnonzero(apart < limit - 1e-12)), rule


@settings(max_examples=40)
@given(SEEDS, RULES, MEASURES)
def test_a_draft_at_the_certificate_is_rejected(seed, rule, measure):
    """So no larger number would be true. A millionth is added to the token that draws level."""
    probs = some_law(np.random.default_rng(seed), 6)
    assume(not undecided(probs, rule))
    out = rejected(probs, rule)
    assume(out)
    token = max(out, key=lambda i: probs[i])
    draft = levelled(probs, token, measure)
    draft[token] += 1e-6
    draft /= draft.sum()
    assert draft.argmax() == token
    [apart] = distances(probs, draft[None], measure)
    assert apart == pytest.approx(certificate(Dense.from_probs(probs), rule, measure), abs=1e-5)


# From the top k.


@settings(max_examples=60)
@given(targets(), RULES, MEASURES)
def test_from_the_top_k_a_certificate_is_exact_where_the_rejected_token_is_listed_and_else_a_lower_bound(
    target, rule, measure
):
    assume(not undecided(target.probs, rule))
    whole, level = certificate(target, rule, measure), rule.rejection_level(target)
    out = rejected(target.probs, rule)
    for row in each_of(rows(target)):
        found = certificate(row, rule, measure)
        assert at_most(found, whole)
        if level and any(target.probs[i] == level for i in row.ids if i in out):
            assert close(found, whole)


@settings(max_examples=60)
@given(targets(), COUNTS, MEASURES, st.integers(0, 9))
def test_from_the_top_k_a_tree_certificate_is_exact_for_k_above_m_and_else_a_lower_bound(target, m, measure, actual):
    whole = tree_certificate(target, m, measure)
    for row in each_of(rows(target)):
        told = TopK.from_dense(target, row.num_listed, actual % target.num_tokens)
        found = tree_certificate(row, m, measure)
        assert at_most(found, whole)
        assert at_most(tree_certificate(told, m, measure), whole)
        if row.num_listed > m:
            assert close(found, whole)


def test_two_listed_tokens_are_enough_for_the_greedy_rule():
    target = law([0.5, 0.2, 0.15, 0.15])
    exact = certificate(target, GreedyAcceptance())
    assert certificate(TopK.from_dense(target, 2), GreedyAcceptance()) == pytest.approx(exact, rel=1e-12)
    assert certificate(TopK.from_dense(target, 1), GreedyAcceptance()) < exact / 2


# What grows, and between which numbers.


def never_falls(values):
    return all(at_most(a, b) for a, b in itertools.pairwise(values))


@settings(max_examples=60)
@given(targets(), MARGINS, MARGINS, SHARES, SHARES, SHARES, MEASURES)
def test_a_laxer_rule_has_no_smaller_certificate(target, margin, other, epsilon, delta, less, measure):
    """C is nondecreasing in the margin, in one over the share, in m, and in one over Medusa's two numbers."""
    margins, shares = sorted([margin, other]), sorted([epsilon, less], reverse=True)
    families = [
        [AdditiveAcceptance(t) for t in margins],
        [MultiplicativeAcceptance(share) for share in shares],
        [GreedyAcceptance(), *map(TopMAcceptance, range(1, 9))],
        [TypicalAcceptance(share, delta) for share in shares],
        [TypicalAcceptance(delta, share) for share in shares],
    ]
    for rules in families:
        for row in (target, TopK.from_dense(target, 1), TopK.from_dense(target, 4)):
            assert never_falls([certificate(row, rule, measure) for rule in rules])
        assert never_falls([skip_certificate(target, rule) for rule in rules])


@settings(max_examples=60)
@given(targets(), MEASURES)
def test_a_wider_tree_has_no_smaller_certificate_and_the_narrowest_is_greedy(target, measure):
    for row in [target, *rows(target)]:
        trees = [tree_certificate(row, m, measure) for m in range(1, 9)]
        assert never_falls(trees)
        assert close(trees[0], certificate(row, GreedyAcceptance(), measure))


@settings(max_examples=60)
@given(targets(), RULES)
def test_a_certificate_lies_between_its_margin_and_the_logarithm_of_two(target, rule):
    assume((level := rule.rejection_level(target)) is not None)
    margin = max(target.probs) - level
    found = certificate(target, rule)
    assert margin**2 / 2 <= margin_certificate(margin) + 1e-15
    assert margin_certificate(margin) <= found + 1e-12
    assert found <= math.log1p(margin) + 1e-12
    assert found <= math.log(2) + 1e-12


@settings(max_examples=60)
@given(targets(min_size=2), st.integers(1, 9))
def test_a_tree_certificate_lies_between_its_margin_and_the_logarithm_of_one_more(target, m):
    assume(m < target.num_tokens)
    ranked = np.sort(target.probs)[::-1]
    found = tree_certificate(target, m)
    assert least_of_margin(ranked[0] - ranked[m], m) <= found + 1e-12
    assert found <= math.log(m + 1) + 1e-12


@given(st.floats(0, 1))
def test_the_margin_certificate_is_what_a_coin_lacks_to_being_fair(margin):
    naive = [p * math.log(2 * p) for p in ((1 + margin) / 2, (1 - margin) / 2) if p > 0]
    assert margin_certificate(margin) == pytest.approx(math.fsum(naive), abs=1e-12)
    assert least_of_margin(margin, 1) == pytest.approx(margin_certificate(margin), abs=1e-12)


@each(("margin", "m", "share"), [(0.6, 8, 0.91), (0.8, 16, 0.66)])
def test_the_expansion_for_small_margins_certifies_nothing(margin, m, share):
    """(m + 1) margin^2 / 4 is the leading term, and widely quoted; for large m it is above the truth."""
    assert least_of_margin(margin, m) == pytest.approx(share * (m + 1) * margin**2 / 4, rel=0.01)


# Numbers, and the edges.


def test_the_measures_are_not_interchangeable():
    row = law([0.6, 0.3, 0.1])
    assert certificate(row, GreedyAcceptance(), "forward") == pytest.approx(
        0.6 * math.log(4 / 3) + 0.3 * math.log(2 / 3)
    )
    assert certificate(row, GreedyAcceptance(), "reverse") == pytest.approx(-math.log(0.1 + 2 * math.sqrt(0.18)))
    assert certificate(row, GreedyAcceptance(), "tv") == pytest.approx(0.15)
    assert certificate(row, TopMAcceptance(2)) == pytest.approx(0.6 * math.log(12 / 7) + 0.1 * math.log(2 / 7))
    assert certificate(row, TopMAcceptance(3)) == math.inf


@each(
    ("probs", "value"),
    [([0.9, 0.05, 0.05], 0.746), ([0.7, 0.2, 0.1], 0.165), ([0.3, 0.5, 0.2], 0.026), ([0.01, 0.01, 0.98], 1.57)],
)
def test_the_surer_the_draft_the_farther_a_target_that_disagrees(probs, value):
    draft = law(probs)
    for rule in (GreedyAcceptance(), TopMAcceptance(1), AdditiveAcceptance(0.0), MultiplicativeAcceptance(1.0)):
        assert skip_certificate(draft, rule) == pytest.approx(value, abs=6e-4)


def test_a_row_of_one_token_cannot_be_rejected():
    only = law([1.0])
    for rule in SOME_RULES:
        assert certificate(only, rule) == skip_certificate(only, rule) == math.inf
    assert tree_certificate(only, 1) == math.inf


@each("least_likely", [0.0, 5e-324, 1e-30])
def test_a_certain_row_has_certificates_that_are_numbers(least_likely):
    """What no target can draw is no danger on that side; a draft may favour it all the same."""
    sure = Dense.from_probs(np.array([1.0, least_likely]))
    assert certificate(sure, GreedyAcceptance()) == pytest.approx(math.log(2))
    for rule in SOME_RULES:
        assert skip_certificate(sure, rule) > 10.0
    assert (certificate(sure, GreedyAcceptance(), "reverse") == math.inf) == (least_likely == 0.0)
    assert skip_certificate(sure, GreedyAcceptance()) == certificate(sure, GreedyAcceptance(), "reverse")


def test_tokens_that_neither_side_can_draw_are_level_with_each_other():
    """The target (0, 1, 0) ranks the draft's favourite beside a token that is no less likely: ties are the worst."""
    assert skip_certificate(law([0.6, 0.4, 0.0]), TopMAcceptance(2)) == pytest.approx(-math.log(0.4))


@each("margin", [-0.1, 1.1, math.nan])
def test_a_margin_is_between_zero_and_one_and_a_tree_has_a_token(margin):
    with pytest.raises(ValueError, match="margin"):
        margin_certificate(margin)
    with pytest.raises(ValueError, match="at least one token"):
        tree_certificate(law([0.5, 0.5]), 0)
