"""A rule accepts from the top k only what it accepts from the full row, and all that is certain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_divergence import completed, heaped, law, rows, unseen
from naive_rules import accepted, cases, rejected, targets, undecided

from hybrid.prob import (
    AdditiveAcceptance,
    Dense,
    GreedyAcceptance,
    MultiplicativeAcceptance,
    TopK,
    TopMAcceptance,
    TypicalAcceptance,
)
from hybrid.prob.acceptance import least_entropy, top_probs

TOKENS = range(-1, 12)


def certain(row, rule):
    return {token for token in TOKENS if rule.accepts(row, token)}


@settings(max_examples=60)
@given(cases())
def test_of_a_full_row_a_rule_accepts_what_its_formula_says(case):
    """A token without any probability is not shown: of that one the formula may know more."""
    target, rule = case
    row = TopK.from_dense(target, target.num_tokens)
    shown = set(row.ids.tolist())
    assert certain(row, rule) & shown == accepted(target.probs, rule) & shown


@settings(max_examples=60)
@given(cases(), st.data())
def test_what_is_accepted_from_the_top_k_is_accepted_from_the_full_row(case, data):
    """With the actual token appended or not: that one tells its own probability, not its rank."""
    target, rule = case
    actual = data.draw(st.none() | st.integers(0, target.num_tokens - 1))
    for k in each_of(range(1, target.num_tokens + 1)):
        row = TopK.from_dense(target, k, actual)
        assert certain(row, rule) & set(range(target.num_tokens)) <= accepted(target.probs, rule)
        assert row.best in certain(row, rule)


@settings(max_examples=60)
@given(cases())
def test_the_more_is_shown_the_more_is_accepted(case):
    target, rule = case
    assert all(certain(less, rule) <= certain(more, rule) for less, more in itertools.pairwise(rows(target)))


@settings(max_examples=60)
@given(cases(min_size=2))
def test_a_shown_token_that_is_not_accepted_is_rejected_in_some_completion(case):
    """Otherwise a rule could refuse everything and keep every law above. The tail in heaps has the least entropy."""
    target, rule = case
    for row in each_of(rows(target)):
        whole = heaped(row, target, unseen(row, target.num_tokens))
        assume(not undecided(whole, rule))
        assert set(row.ids.tolist()) - certain(row, rule) <= set(rejected(whole, rule))


@settings(max_examples=60)
@given(cases())
def test_the_rejection_level_is_the_probability_of_the_likeliest_rejected_token(case):
    """From a top-k row the most that it can be: the number itself where that token is listed."""
    target, rule = case
    out = rejected(target.probs, rule)
    level = rule.rejection_level(target)
    assert level == (max(target.probs[out]) if out else None)
    for row in each_of(rows(target)):
        bound = rule.rejection_level(row)
        listed = bool(out) and level > 0 and any(target.probs[i] == level for i in row.ids if i in out)
        if listed:
            assert bound == pytest.approx(level, rel=1e-12)
        elif level is not None:
            assert bound >= level * (1 - 1e-12) - 1e-15  # the rest of one loses digits


@settings(max_examples=60)
@given(targets(min_size=2), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_an_appended_token_may_be_rejected_at_any_rank_but_never_above_the_level(target, k, actual, m):
    row = TopK.from_dense(target, k, actual % target.num_tokens)
    for token, prob in each_of(zip(row.ids.tolist(), row.probs.tolist(), strict=True)):
        assert TopMAcceptance(m).accepts(row, token) or prob <= TopMAcceptance(m).rejection_level(row)


def test_an_appended_token_is_among_the_best_where_the_tail_is_too_light_for_others():
    """0.5 and 0.3 are listed, 0.11 is appended, 0.09 unseen: it is the third; at 0.08, with 0.12 unseen, who knows."""
    listed = {0: math.log(0.5), 1: math.log(0.3)}
    third, unsure = (TopK.from_lists(listed, (7, math.log(p))) for p in (0.11, 0.08))
    assert TopMAcceptance(3).accepts(third, 7)
    assert not TopMAcceptance(2).accepts(third, 7)
    assert not TopMAcceptance(3).accepts(unsure, 7)
    assert TopMAcceptance(4).accepts(unsure, 7)  # two unseen ones of 0.08 or more would need 0.16


@each(
    ("rule", "tokens"),
    [
        (GreedyAcceptance(), {3}),
        (AdditiveAcceptance(0.0), {3}),
        (AdditiveAcceptance(0.15), {3, 5}),
        (AdditiveAcceptance(0.35), {3, 5, 8}),
        (AdditiveAcceptance(0.4), {3, 5, 8, 99}),
        (MultiplicativeAcceptance(1.0), {3}),
        (MultiplicativeAcceptance(0.7), {3, 5}),
        (MultiplicativeAcceptance(0.2), {3, 5, 8}),
        (TopMAcceptance(1), {3}),
        (TopMAcceptance(2), {3, 5}),
        (TopMAcceptance(9), {3, 5, 8}),
        (TypicalAcceptance(0.25, 1.0), {3, 5}),
        (TypicalAcceptance(1.0, 0.3), {3, 5, 8}),
        (TypicalAcceptance(1.0, 9.0), {3}),
    ],
)
def test_what_each_rule_accepts_of_one_row(rule, tokens):
    """0.4, 0.3 and 0.1 are shown. The fourteenth line: a threshold that nothing reaches leaves the best."""
    row = TopK.from_lists({3: math.log(0.4), 5: math.log(0.3), 8: math.log(0.1)})
    assert {token for token in (3, 5, 8, 99) if rule.accepts(row, token)} == tokens


@each(
    ("rule", "level"),
    [
        (GreedyAcceptance(), 0.3),
        (AdditiveAcceptance(0.15), 0.3),
        (AdditiveAcceptance(0.25), 0.2),  # unseen, where 0.2 is all there is
        (AdditiveAcceptance(0.35), 0.15),  # or whatever is just below the threshold
        (AdditiveAcceptance(0.6), None),
        (MultiplicativeAcceptance(0.7), 0.3),
        (MultiplicativeAcceptance(0.5), 0.2),
        (MultiplicativeAcceptance(0.2), 0.1),
        (TopMAcceptance(2), 0.2),
        (TopMAcceptance(3), 0.1),  # the third and the fourth share 0.2
        (TopMAcceptance(21), 0.01),
        (TypicalAcceptance(1.0, 9.0), 0.3),  # the best is spared where nothing reaches the threshold
    ],
)
def test_how_likely_a_rejected_token_can_be_where_two_are_shown(rule, level):
    row = TopK.from_lists({3: math.log(0.5), 5: math.log(0.3)})
    assert rule.rejection_level(row) == (None if level is None else pytest.approx(level))


@settings(max_examples=60)
@given(targets())
def test_the_least_entropy_is_attained_and_never_above_the_truth(target):
    for row in each_of(rows(target)):
        whole = heaped(row, target, unseen(row, target.num_tokens))
        assert least_entropy(row) == pytest.approx(Dense.from_probs(np.array(whole)).entropy(), abs=1e-9)
        assert least_entropy(row) <= target.entropy() + 1e-9


@settings(max_examples=60)
@given(targets(), st.integers(1, 12))
def test_the_head_is_the_beginning_of_the_full_row_and_its_last_one_is_never_below_the_truth(target, num_tokens):
    whole = top_probs(target, num_tokens)
    assert whole == pytest.approx(np.sort(target.probs)[::-1][:num_tokens], abs=0)
    for row in each_of(rows(target)):
        found = top_probs(row, num_tokens)
        assert found.shape == (num_tokens,)
        assert (np.diff(found) <= 0).all()
        known = min(num_tokens, row.ids.size)
        assert found[:known] == pytest.approx(whole[:known], rel=1e-12)
        if whole.size == num_tokens:
            assert found[-1] >= whole[-1] * (1 - 1e-12)


@settings(max_examples=60)
@given(targets(min_size=3), st.integers(1, 3))
def test_missing_tokens_can_share_the_tail_evenly(target, missing):
    """So the head is no looser than it must be: a completion shows it, if there are as many tokens unseen."""
    for row in each_of(rows(target)):
        places = len(unseen(row, target.num_tokens))
        if places >= missing and row.tail >= 1e-6 and row.tail <= missing * row.tail_max:
            even = [row.tail / missing] * missing + [0.0] * (places - missing)
            whole = Dense.from_probs(np.array(completed(row, target.num_tokens, even)))
            assert top_probs(row, row.ids.size + missing) == pytest.approx(
                top_probs(whole, row.ids.size + missing), rel=1e-9
            )


def test_a_token_too_unlikely_for_a_number_breaks_nothing():
    row = TopK.from_lists({0: math.log(0.5), 1: -800.0})
    assert least_entropy(row) == pytest.approx(0.5 * math.log(2))
    for rule in (
        GreedyAcceptance(),
        AdditiveAcceptance(0.2),
        MultiplicativeAcceptance(0.5),
        TopMAcceptance(5),
        TypicalAcceptance(0.3, 0.5),
    ):
        assert rule.accepts(row, 0)
        assert rule.rejection_level(row) is not None


@settings(max_examples=60)
@given(targets())
def test_the_best_one_is_the_top_one(target):
    for row in [target, *rows(target)]:
        assert GreedyAcceptance().rejection_level(row) == TopMAcceptance(1).rejection_level(row)
    for row in each_of(rows(target)):
        assert certain(row, GreedyAcceptance()) == certain(row, TopMAcceptance(1))


@each(
    ("rule", "values"),
    [
        (AdditiveAcceptance, [(-0.1,), (1.0,), (math.nan,)]),
        (MultiplicativeAcceptance, [(0.0,), (1.1,), (-1.0,), (math.nan,)]),
        (TopMAcceptance, [(0,), (-3,)]),
        (TypicalAcceptance, [(0.0, 0.3), (1.1, 0.3), (math.nan, 0.3), (0.3, 0.0), (0.3, math.inf), (0.3, math.nan)]),
    ],
)
def test_parameters_that_make_no_rule_are_refused(rule, values):
    for value in each_of(values):
        with pytest.raises(ValueError, match="not"):
            rule(*value)


def test_a_full_row_of_one_token_rejects_nothing():
    only = law([1.0])
    assert all(
        r.rejection_level(only) is None
        for r in (GreedyAcceptance(), AdditiveAcceptance(0), MultiplicativeAcceptance(1), TopMAcceptance(3))
    )
