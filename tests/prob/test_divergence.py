"""The interval around KL(target || draft) contains the truth, is attained at both ends, and only ever tightens.

The oracles are naive: they complete the unseen tail token by token and take the dense sum. Numbers are compared to
1e-9, which is far above rounding in sums of a few hundred terms and far below any threshold in use.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from naive_divergence import (
    FAR_APART,
    MAYBE_EXCLUDED,
    SLACK,
    SOME_K,
    TIED,
    feasible,
    heaped,
    inside,
    large_pairs,
    law,
    least_likely_first,
    naive_coarse,
    naive_kl,
    naive_overlap,
    pairs,
    poured,
    rows,
    unseen,
)

from hybrid.prob import (
    TopK,
    acceptance,
    kl,
    kl_divergence,
)


@given(pairs(draft_weight=MAYBE_EXCLUDED))
def test_the_dense_divergence_is_the_naive_sum_and_never_negative(pair):
    target, draft = pair
    assert kl(target, draft) == pytest.approx(naive_kl(target.probs, draft.probs), abs=1e-9)
    assert kl(target, draft) >= -1e-12


@given(pairs(draft_weight=MAYBE_EXCLUDED))
def test_the_interval_contains_the_true_value(pair):
    """For every k; where the draft excludes a token, too. The estimate that is reported is never above the truth."""
    target, draft = pair
    truth = naive_kl(target.probs, draft.probs)
    for row in each_of(rows(target)):
        found = kl_divergence(row, draft)
        assert inside(truth, found)
        assert -SLACK <= found.estimate <= found.lower <= found.upper
        assert found.estimate == pytest.approx(naive_coarse(row, draft), abs=1e-12)


@given(large_pairs())
def test_the_interval_contains_the_true_value_over_large_vocabularies(pair):
    target, draft = pair
    truth = naive_kl(target.probs, draft.probs)
    for k in (*SOME_K, target.num_tokens - 1, target.num_tokens):
        found = kl_divergence(TopK.from_dense(target, k), draft)
        assert inside(truth, found)
        assert -SLACK <= found.estimate <= found.lower <= found.upper


@given(pairs())
def test_both_ends_are_attained(pair):
    """A looser interval would still contain the truth: only a completion that attains an end shows that it is tight."""
    target, draft = pair
    for row in each_of(rows(target)):
        found = kl_divergence(row, draft)
        least, most = poured(row, draft), heaped(row, draft, least_likely_first(row, draft))
        assert naive_kl(least, draft.probs) == pytest.approx(found.lower, abs=SLACK)
        assert naive_kl(most, draft.probs) == pytest.approx(found.upper, abs=SLACK)


@given(large_pairs(), st.sampled_from(SOME_K))
def test_both_ends_are_attained_over_large_vocabularies(pair, k):
    target, draft = pair
    row = TopK.from_dense(target, k)
    found = kl_divergence(row, draft)
    assert naive_kl(poured(row, draft), draft.probs) == pytest.approx(found.lower, abs=1e-8)
    most = heaped(row, draft, least_likely_first(row, draft))
    assert naive_kl(most, draft.probs) == pytest.approx(found.upper, abs=1e-8)


@each("slope", [0.0, 0.01, 0.1])
def test_both_ends_are_attained_where_the_cap_binds_on_more_than_64_tokens(slope):
    """The largest 64 tail tokens are sorted first, for speed; a nearly flat target needs many more than those."""
    target = law(np.exp(-0.001 * np.arange(300)))
    draft = law(np.exp(-slope * np.arange(300)[::-1]))
    row = TopK.from_dense(target, 1)
    least = poured(row, draft)
    assert slope == 0.0 or sum(p == row.tail_max for p in least) > 65
    found = kl_divergence(row, draft)
    assert naive_kl(least, draft.probs) == pytest.approx(found.lower, abs=SLACK)
    assert inside(naive_kl(target.probs, draft.probs), found)


@given(pairs(min_size=2), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_no_feasible_completion_falls_outside(pair, k, seed):
    target, draft = pair
    row, rng = TopK.from_dense(target, k), np.random.default_rng(seed)
    found, kept = kl_divergence(row, draft), acceptance(row, draft)
    for _ in range(10):
        whole = feasible(row, draft, rng)
        assert inside(naive_kl(whole, draft.probs), found)
        assert inside(naive_overlap(whole, draft.probs), kept)


@given(pairs(min_size=2, draft_weight=MAYBE_EXCLUDED))
def test_the_interval_only_tightens_as_k_grows(pair):
    target, draft = pair
    found = [kl_divergence(row, draft) for row in rows(target)]
    kept = [acceptance(row, draft) for row in rows(target)]
    for ends in (found, kept):
        for shorter, longer in each_of(itertools.pairwise(ends)):
            assert shorter.lower <= longer.lower + SLACK
            assert longer.upper <= shorter.upper + SLACK
    estimates = [each.estimate for each in found]
    assert all(a <= b + SLACK for a, b in itertools.pairwise(estimates))


@given(large_pairs())
def test_the_interval_only_tightens_over_large_vocabularies(pair):
    target, draft = pair
    found = [kl_divergence(TopK.from_dense(target, k), draft) for k in SOME_K]
    for shorter, longer in each_of(itertools.pairwise(found)):
        assert shorter.lower <= longer.lower + SLACK
        assert longer.upper <= shorter.upper + SLACK


@given(pairs(min_size=2), st.integers(1, 9), st.data())
def test_an_appended_token_only_tightens_and_keeps_the_truth_inside(pair, k, data):
    """Were the cap lowered to the appended token's probability, the interval would lose the truth."""
    target, draft = pair
    actual = data.draw(st.integers(0, target.num_tokens - 1))
    plain, told = TopK.from_dense(target, k), TopK.from_dense(target, k, actual)
    truth, overlap = naive_kl(target.probs, draft.probs), naive_overlap(target.probs, draft.probs)
    for measure, value in ((kl_divergence, truth), (acceptance, overlap)):
        before, after = measure(plain, draft), measure(told, draft)
        assert before.lower - SLACK <= after.lower
        assert after.upper <= before.upper + SLACK
        assert inside(value, after)


@given(pairs(min_size=2))
def test_estimate_bound_and_truth_agree_where_the_tails_have_one_shape(pair):
    """The estimate is exact then, which is why it is the one reported."""
    _, draft = pair
    for k in each_of(range(1, draft.num_tokens)):
        shown = [i for i, _ in draft.top(k)]
        odds = np.ones(draft.num_tokens)
        odds[shown] = np.linspace(1, 2, k)
        target = law(draft.probs * odds)
        row = TopK.from_lists({i: float(target.logprobs[i]) for i in shown})
        truth = naive_kl(target.probs, draft.probs)
        assert kl_divergence(row, draft).estimate == pytest.approx(truth, abs=SLACK)


@given(pairs())
def test_equal_distributions_may_have_no_divergence_whatever_is_shown(pair):
    _, same = pair
    for row in each_of(rows(same)):
        found = kl_divergence(row, same)
        assert abs(found.lower) < 1e-12
        assert abs(found.estimate) < 1e-12
        assert found.upper >= -1e-12
    assert kl_divergence(TopK.from_dense(same, same.num_tokens), same).upper == pytest.approx(0.0, abs=1e-12)


def test_the_expectation_is_under_the_target():
    """Permutations of one distribution would not tell a swapped KL from a right one; these two are none."""
    target, draft = law([0.7, 0.2, 0.1]), law([0.4, 0.35, 0.25])
    forward = 0.7 * math.log(0.7 / 0.4) + 0.2 * math.log(0.2 / 0.35) + 0.1 * math.log(0.1 / 0.25)
    backward = 0.4 * math.log(0.4 / 0.7) + 0.35 * math.log(0.35 / 0.2) + 0.25 * math.log(0.25 / 0.1)
    assert abs(forward - backward) > 1e-3
    assert kl(target, draft) == pytest.approx(forward)
    assert kl(draft, target) == pytest.approx(backward)
    for k in (2, 3):
        assert kl_divergence(TopK.from_dense(target, k), draft).lower == pytest.approx(forward)
        assert kl_divergence(TopK.from_dense(draft, k), target).lower == pytest.approx(backward)


def test_one_token_shown_gives_the_divergence_of_two_coins():
    """By hand: 0.5 ln(0.5/0.25) + 0.5 ln(0.5/0.75); and the bound is above it, for the cap 0.5 binds on token 1."""
    target, draft = law([0.5, 0.3, 0.2]), law([0.25, 0.7, 0.05])
    coins = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    found = kl_divergence(TopK.from_dense(target, 1), draft)
    assert found.estimate == pytest.approx(coins)
    # pouring gives 0.467 and 0.033, below the cap, so the bound is the estimate; the worst heap is all on token 2
    assert found.lower == pytest.approx(coins)
    assert found.upper == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(10))


def test_the_cap_lifts_the_bound_above_the_estimate_where_the_draft_favours_an_unseen_token():
    """The case the cap is for: what the draft likes best is not in the list, so the cloud gives it at most the cap."""
    target, draft = law([0.6, 0.1, 0.1, 0.1, 0.1]), law([0.02, 0.02, 0.9, 0.03, 0.03])
    found = kl_divergence(TopK.from_dense(target, 2), draft)
    known = 0.6 * math.log(0.6 / 0.02) + 0.1 * math.log(0.1 / 0.02)
    assert found.estimate == pytest.approx(known + 0.3 * math.log(0.3 / 0.96))
    assert found.lower == pytest.approx(known + 0.1 * math.log(0.1 / 0.9) + 0.2 * math.log(0.2 / 0.06))
    assert found.lower > found.estimate + 0.1


@given(st.floats(-290, -20))
def test_a_draft_that_is_certain_of_an_unseen_token_is_bounded_exactly(rest):
    """What is left of the draft beside it may be 1e-20, and 1 - (1 - 1e-20) is 0: it must be summed, not subtracted."""
    target = law([0.5, 0.2, 0.1, 0.1, 0.1])
    draft = law(np.exp([rest, rest, 0.0, rest - 1, rest - 2]))
    row = TopK.from_dense(target, 2)
    found = kl_divergence(row, draft)
    assert naive_kl(poured(row, draft), draft.probs) == pytest.approx(found.lower, rel=1e-9)
    assert inside(naive_kl(target.probs, draft.probs), found)


def test_a_token_the_draft_has_not_got_makes_the_divergence_infinite():
    row, draft = TopK.from_lists({0: math.log(0.5), 7: math.log(0.3)}), law([0.5, 0.3, 0.2])
    found = kl_divergence(row, draft)
    assert (found.estimate, found.lower, found.upper) == (math.inf, math.inf, math.inf)
    kept = acceptance(row, draft)  # 0.5 in common, the 0.3 never, the tail of 0.2 on token 1 or 2
    assert (kept.lower, kept.upper) == pytest.approx((0.7, 0.7))


def test_a_foreign_token_of_no_weight_is_no_reason_for_alarm():
    """A log-probability of -800 is a probability of 0 in a double; 0 times infinity is not a number."""
    row = TopK.from_lists({0: math.log(0.5), 1: math.log(0.5), 7: -800.0})
    found = kl_divergence(row, law([0.5, 0.5]))
    assert (found.estimate, found.lower) == (0.0, 0.0)


def test_tokens_only_the_draft_has_count_as_unseen():
    """Padded vocabularies: the target may give them the tail, and no more."""
    row, draft = TopK.from_dense(law([0.8, 0.2]), 2), law([0.4, 0.1, 0.3, 0.2])
    found = kl_divergence(row, draft)
    assert found.lower == pytest.approx(math.log(2))
    assert found.upper == pytest.approx(math.log(2))


@given(pairs(min_size=2, draft_weight=MAYBE_EXCLUDED))
def test_mass_that_is_only_rounding_is_never_proof_of_an_infinite_divergence(pair):
    """0.7 + 0.2 + 0.1 is 0.9999999999999999: the rest is not a token that the draft excludes."""
    target, draft = pair
    target = law(np.where(draft.probs > 0, target.probs + 0.01, 0.0))  # the draft excludes only what the target does
    truth = naive_kl(target.probs, draft.probs)
    for row in each_of(rows(target)):
        found = kl_divergence(row, draft)
        assert found.lower <= truth + SLACK
        assert found.estimate <= truth + SLACK


@given(pairs(min_size=2), st.sampled_from(["float32", "0.125", "0.01"]), st.integers(1, 10))
def test_rounded_rows_keep_the_order_of_the_three_numbers(pair, grid, k):
    """Servers round; a sum then misses one on either side, and the tail may not fit under the caps."""
    target, draft = pair
    top = {i: lp for i, lp in target.top(k) if lp > -1000}
    if grid == "float32":
        rounded = {i: float(np.float32(lp)) for i, lp in top.items()}
    else:
        rounded = {i: math.floor(lp / float(grid)) * float(grid) for i, lp in top.items()}
    row = TopK.from_lists(rounded)
    found, kept = kl_divergence(row, draft), acceptance(row, draft)
    assert -math.inf < found.estimate <= found.lower <= found.upper < math.inf
    assert 0.0 <= kept.lower <= kept.upper <= 1.0
    if grid == "float32":
        assert inside(naive_kl(target.probs, draft.probs), _wider(found, 2e-4))


def _wider(interval, slack):
    return type(interval)(interval.estimate, interval.lower - slack, interval.upper + slack)


def test_a_tail_that_does_not_fit_under_the_cap_is_spread_over_what_is_unseen():
    """0.6 and 0.1 shown of three tokens: the third must have 0.3, though the list says at most 0.1."""
    row, draft = TopK.from_lists({0: math.log(0.6), 1: math.log(0.1)}), law([0.2, 0.3, 0.5])
    truth = naive_kl([0.6, 0.1, 0.3], draft.probs)
    found = kl_divergence(row, draft)
    assert (found.estimate, found.lower, found.upper) == pytest.approx((truth, truth, truth))
    kept = acceptance(row, draft)
    assert (kept.lower, kept.upper) == pytest.approx((0.6, 0.6))


def test_a_tail_without_a_token_to_hold_it_is_rounding():
    row = TopK.from_lists({0: math.log(0.6), 1: math.log(0.399)})
    found = kl_divergence(row, law([0.6, 0.4]))
    assert found.estimate == found.lower == found.upper
    assert abs(found.lower) < 2e-3
    assert acceptance(row, law([0.6, 0.4])).upper == pytest.approx(0.999)


# ---- a target with more tokens than the draft ----------------------------------------------------------------------


@st.composite
def padded(draw):
    """A target with tokens that the draft has not got, a thousandth at most of its mass; the draft; how much is shown.

    The likeliest token is common to both, as a whole row without it would say that the models differ.
    """
    target, draft = draw(pairs(min_size=2) | large_pairs())
    padding = np.array(draw(st.lists(TIED | FAR_APART, min_size=1, max_size=4)))
    outside = draw(st.sampled_from([1e-3, 1e-6, 1e-12])) * 0.999
    padding = outside * padding / padding.sum() if padding.any() else padding
    whole = law(np.concatenate(((1 - padding.sum()) * target.probs, padding)))
    return whole, draft, min(draw(st.sampled_from(SOME_K)), whole.num_tokens)


@given(padded(), st.integers(0, 2**32 - 1))
def test_where_the_unlikely_mass_of_padding_would_lie_does_not_leave_the_interval(case, seed):
    """Put on tokens that both have and the row does not show, whichever, it gives a divergence within the bounds."""
    whole, draft, k = case
    seen = TopK.from_dense(whole, k)
    row, size = seen.within(draft.num_tokens), draft.num_tokens
    found = kl_divergence(row, draft)
    assert found.upper < math.inf
    assert found.estimate <= found.lower + SLACK
    assert max(row.ids) < size
    room = np.zeros(size)
    hidden = unseen(row, size)
    room[hidden] = row.tail_max - whole.probs[hidden]
    outside = float(whole.probs[size:].sum())
    if room.sum() > outside:  # else rounding or a full list leaves it no place
        shares = room * np.random.default_rng(seed).dirichlet(np.full(size, 0.5))
        placed = outside * shares / shares.sum()
        placed = placed if (placed <= room).all() else outside * room / room.sum()
        assert inside(naive_kl(whole.probs[:size] + placed, draft.probs), found)


@each(("foreign", "kept"), [(0.0009, False), (0.0011, True), (0.6, True)])
def test_a_foreign_token_of_some_weight_stays_and_tells_that_the_models_differ(foreign, kept):
    row = TopK.from_lists({0: math.log(0.39), 1: math.log(0.001), 7: math.log(foreign)}, (2, math.log(1e-5)))
    found = row.within(3)
    assert (7 in found.ids) == kept
    assert (kl_divergence(found, law([0.5, 0.3, 0.2])).lower == math.inf) == kept
    if not kept:
        assert (found.ids.tolist(), found.num_listed, found.tail_max) == ([0, 1, 2], 2, row.tail_max)


def test_a_row_within_the_vocabulary_is_itself():
    row = TopK.from_dense(law([0.5, 0.3, 0.2]), 2)
    assert row.within(3) is row
