"""RPI: exact by enumeration, paired, honest about what the data do not tell; Wilson's interval; the AUROC."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from cases import each
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.tasks.statistics import (
    Estimate,
    auroc,
    num_for_difference,
    num_for_rpi,
    order_statistic,
    rpi,
    wilson,
)

bits = st.tuples(*[st.booleans()] * 3)
problems = st.lists(bits, min_size=2, max_size=40)


def columns(triples):
    return [[int(triple[i]) for triple in triples] for i in range(3)]


def told_apart(small, large):
    """The rule in exact arithmetic: mean > 2 standard errors, that is mean^2 > 4 var / n."""
    gap, n = [b - a for a, b in zip(small, large, strict=True)], len(small)
    mean = Fraction(sum(gap), n)
    var = sum((x - mean) ** 2 for x in gap) / (n - 1)
    return mean > 0 and mean**2 > 4 * var / n


def enumerated(small, hybrid, large):
    """Every resample, weighed: the exact law of the bootstrap, the lower and the upper reading of what is undefined."""
    n, lower, upper = len(small), Counter(), Counter()
    for drawn in itertools.product(range(n), repeat=n):
        gain = sum(hybrid[i] - small[i] for i in drawn)
        gap = sum(large[i] - small[i] for i in drawn)
        lower[Fraction(gain, gap) if gap > 0 else -math.inf] += Fraction(1, n**n)
        upper[Fraction(gain, gap) if gap > 0 else math.inf] += Fraction(1, n**n)
    return lower, upper


def quantile(law, share):
    """The smallest value with at least ``share`` at or below it, and how far that share is from a step of the law."""
    below = Fraction(0)
    for value in sorted(law):
        if below + law[value] >= share:
            return float(value), min(share - below, below + law[value] - share)
        below += law[value]
    raise AssertionError


# Mostly problems that only the large model answers, so that there mostly is a gap.
@given(st.lists(st.sampled_from([(0, 0, 1), (0, 1, 1)]), min_size=8, max_size=40), st.lists(bits, max_size=6))
def test_the_value_is_the_ratio_of_the_differences_and_is_not_clipped(clear, other):
    small, hybrid, large = columns(clear + other)
    assume(told_apart(small, large))
    found = rpi(small, hybrid, large, num_resamples=50)
    assert found.value == pytest.approx((sum(hybrid) - sum(small)) / (sum(large) - sum(small)))


def test_a_hybrid_may_beat_its_large_model_or_fall_below_its_small_one():
    small, large = [0] * 15 + [1] * 5, [1] * 15 + [0] * 5
    assert rpi(small, [1] * 20, large).value == 1.5
    assert rpi(small, [0] * 20, large).value == -0.5


@given(problems)
def test_there_is_an_rpi_exactly_where_the_gap_is_above_two_standard_errors(triples):
    small, hybrid, large = columns(triples)
    assert (rpi(small, hybrid, large, num_resamples=50) is not None) == told_apart(small, large)


@each(("gained", "count"), [(2, 3), (3, 9)])
def test_a_gap_of_exactly_two_standard_errors_is_not_above_them(gained, count):
    """2 of 3: mean 2/3, variance 1/3, standard error 1/3."""
    large = [1] * gained + [0] * (count - gained)
    assert rpi([0] * count, large, large) is None
    assert rpi([0] * (count - 1), large[:-1], large[:-1]) is not None


def test_no_gap_a_negative_gap_one_problem_and_no_problem_give_no_rpi():
    for small, large in [([0, 1] * 9, [1, 0] * 9), ([1] * 9, [0] * 9), ([1] * 9, [1] * 9), ([0], [1]), ([], [])]:
        assert rpi(small, small, large) is None


@pytest.mark.slow
@each(
    "triples",
    [
        [(0, 0, 1), (0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1)],
        [(0, 1, 1), (0, 1, 1), (1, 1, 1), (0, 1, 0), (0, 0, 1), (0, 1, 1)],
        [(0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 1, 1), (0, 0, 1), (1, 0, 1)],
        # One in 64 of its resamples has no gap; read as anything but unbounded, the lower end would move.
        [(1, 0, 1), (1, 1, 1), (0, 1, 1), (1, 0, 1), (0, 0, 1), (0, 1, 1)],
    ],
)
def test_the_interval_is_that_of_an_enumeration_of_every_resample(triples):
    """Equal, since the level lies further from a step of the law than 100,000 draws stray (4 standard errors)."""
    small, hybrid, large = columns(triples)
    lower, upper = enumerated(small, hybrid, large)
    low, low_margin = quantile(lower, Fraction(1, 40))
    high, high_margin = quantile({-x: p for x, p in upper.items()}, Fraction(1, 40))
    assert min(low_margin, high_margin) > 4 * math.sqrt(0.025 / 100_000)
    found = rpi(small, hybrid, large, num_resamples=100_000)
    assert (found.low, found.high) == pytest.approx((low, -high))


def test_where_too_many_resamples_have_no_gap_the_interval_has_no_ends():
    """2.8 % of them have none. Leaving those out would say "1, surely" of a ratio over noise."""
    small, large = [0] * 40 + [1] * 24, [1] * 40 + [0] * 24
    assert rpi(small, large, large) == Estimate(1.0, -math.inf, math.inf)


def test_the_scores_of_a_problem_are_drawn_together():
    """A hybrid that equals the large model problem by problem recovers the gap for certain; another may not."""
    small = [0] * 20 + [1] * 10
    large, shuffled = [1] * 25 + [0] * 5, [0] * 5 + [1] * 25
    assert rpi(small, large, large) == Estimate(1.0, 1.0, 1.0)
    apart = rpi(small, shuffled, large)
    assert apart.value == 1.0
    assert apart.low < 1.0 < apart.high


def test_the_order_of_the_problems_does_not_matter_and_the_seed_does():
    rng = np.random.default_rng(5)
    small, hybrid, large = (rng.random(60) < share for share in (0.4, 0.8, 0.95))
    first = rpi(small, hybrid, large, num_resamples=50)  # few, so that another draw shows
    assert {rpi(small, hybrid, large, num_resamples=50) for _ in range(5)} == {first}
    assert rpi(small[::-1], hybrid[::-1], large[::-1], num_resamples=50) == first
    assert len({rpi(small, hybrid, large, seed=seed, num_resamples=50) for seed in range(5)}) > 1
    assert first.low < first.value < first.high


@each(("count", "place"), [(1, 1), (39, 1), (40, 1), (41, 2), (80, 2), (81, 3), (10_000, 250)])
def test_an_end_is_the_first_value_with_a_fortieth_at_or_below_it(count, place):
    values = np.random.default_rng(1).permutation(np.arange(1.0, count + 1))
    assert order_statistic(values, 0.025) == place


@each(
    "scores",
    [([0, 1], [0, 1, 1], [1, 1]), ([0, 2], [0, 1], [1, 1]), ([0, -1], [0, 1], [1, 1]), ([[0], [1]],) * 3],
    ids=["unpaired", "two points", "a negative score", "no list"],
)
def test_scores_that_are_not_paired_bits_are_refused(scores):
    with pytest.raises(ValueError, match="score"):
        rpi(*scores)


# ---- shares of right answers ---------------------------------------------------------------------------------------

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
QUANTILE = NormalDist().inv_cdf(0.975)


def score_statistic(right, count, share):
    """How many standard deviations, under ``share``, the count lies above what was to be expected. Exact but the root.

    Where ``share`` leaves no room for chance it is infinite, or 0 where that is what came.
    """
    gap, var = right - count * Fraction(share), count * Fraction(share) * (1 - Fraction(share))
    if var == 0:
        return math.copysign(math.inf, gap) if gap else 0.0
    return float(gap) / math.sqrt(var)


@given(counts)
def test_the_score_statistic_is_at_its_quantile_at_both_ends_of_wilsons_interval(case):
    """Or the end is 0 or 1, which a test does not reject where no answer, or every one, was right."""
    right, count = case
    found = wilson(right, count)
    low, high = (score_statistic(right, count, end) for end in (found.low, found.high))
    assert low == 0.0 if right == 0 else low == pytest.approx(QUANTILE, rel=1e-6)
    assert high == 0.0 if right == count else high == pytest.approx(-QUANTILE, rel=1e-6)


@given(counts, st.fractions(0, 1))
def test_wilsons_interval_holds_the_shares_that_a_score_test_does_not_reject(case, share):
    statistic = score_statistic(*case, share)
    assume(abs(abs(statistic) - QUANTILE) > 1e-6)
    found = wilson(*case)
    assert (found.low <= share <= found.high) == (abs(statistic) < QUANTILE)


@given(counts)
def test_wilsons_interval_lies_within_0_and_1_and_holds_its_share(case):
    found = wilson(*case)
    assert found.value == case[0] / case[1]
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0


@given(counts)
def test_wrong_answers_have_the_mirror_image_of_the_right_ones_interval(case):
    right, count = case
    found, mirrored = wilson(right, count), wilson(count - right, count)
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low))


@each("count", [1, 3, 100])
def test_all_and_none_right_leave_room_for_doubt(count):
    """Two standard errors around such a share would say "surely"."""
    none, every = wilson(0, count), wilson(count, count)
    assert none == Estimate(0.0, 0.0, pytest.approx(QUANTILE**2 / (count + QUANTILE**2)))
    assert every == Estimate(1.0, pytest.approx(count / (count + QUANTILE**2)), 1.0)


@each(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_the_literature(right, count, low, high):
    """Newcombe 1998, Statistics in Medicine 17, table I, method 3."""
    found = wilson(right, count)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_no_problem_tells_nothing():
    found = wilson(0, 0)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0.0, 1.0)


@each(("right", "count"), [(3, 2), (-1, 2), (1, 0), (0, -1)])
def test_counts_that_cannot_be_are_refused(right, count):
    with pytest.raises(ValueError, match=f"{right} right answers of {count}"):
        wilson(right, count)


# ---- the order of scores -------------------------------------------------------------------------------------------

# Few values, so that most lists hold ties.
scored = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30)


def ranked(pairs):
    return auroc(np.array([score for score, _ in pairs], dtype=float), np.array([bit for _, bit in pairs], dtype=bool))


def counted(pairs):
    """Every positive beside every negative: a half point for a tie."""
    beside = [(p, n) for p, bit in pairs if bit for n, other in pairs if not other]
    return sum(1.0 if p > n else 0.5 if p == n else 0.0 for p, n in beside) / len(beside) if beside else None


@given(scored)
def test_the_auroc_is_the_share_of_pairs_in_the_right_order(pairs):
    assert ranked(pairs) == (pytest.approx(counted(pairs)) if counted(pairs) is not None else None)


@given(st.lists(st.tuples(st.floats(-1e300, 1e300), st.booleans()), min_size=2, max_size=12))
def test_the_auroc_takes_any_numbers(pairs):
    assert ranked(pairs) == (pytest.approx(counted(pairs)) if counted(pairs) is not None else None)


@given(scored, st.sampled_from([np.exp, np.cbrt, np.arctan, lambda x: 5 * x - 7]))
def test_the_auroc_knows_nothing_but_the_order(pairs, rising):
    assert ranked([(rising(score), bit) for score, bit in pairs]) == ranked(pairs)


@given(scored)
def test_the_opposite_scores_and_the_opposite_bits_have_the_opposite_auroc(pairs):
    assume(len({bit for _, bit in pairs}) == 2)
    opposite = pytest.approx(1 - ranked(pairs))
    assert ranked([(-score, bit) for score, bit in pairs]) == opposite
    assert ranked([(score, not bit) for score, bit in pairs]) == opposite


def test_positives_above_all_others_have_an_auroc_of_1_and_equal_scores_of_a_half():
    assert ranked([(2, True), (3, True), (1, False), (0, False), (1, False)]) == 1.0
    assert ranked([(4, True), (4, False), (4, False)]) == 0.5
    assert ranked([(1, True), (2, False), (0, False), (2, True)]) == (1 + 1.5) / 4


@each("pairs", [[], [(1, True), (2, True)], [(1, False), (2, False)]])
def test_without_both_kinds_there_is_no_auroc(pairs):
    assert ranked(pairs) is None


def test_so_many_problems_give_intervals_of_the_wanted_half_width():
    """By the bootstrap of many data sets: one model alone solves some problems, and the hybrid takes either answer."""
    gap, discordance, width = 0.3, 0.4, 0.15
    num, rng, seen = num_for_rpi(width, gap, discordance), np.random.default_rng(0), []
    for _ in range(200):
        kind = rng.choice(3, size=num, p=[1 - discordance, (discordance + gap) / 2, (discordance - gap) / 2])
        small, large = (kind == 2).astype(int), (kind == 1).astype(int)
        hybrid = np.where(rng.random(num) < 0.5, large, small)
        found = rpi(small, hybrid, large, num_resamples=500)
        if found is not None:
            seen.append((found.high - found.low) / 2)
    assert len(seen) > 190
    assert np.mean(seen) == pytest.approx(width, rel=0.1)
    assert num_for_rpi(width / 2, gap, discordance) == pytest.approx(4 * num, abs=4)
    assert num_for_rpi(width, gap, discordance, share=1.0) == 0


def test_so_many_problems_show_a_difference_in_four_of_five_runs():
    """An exact enumeration would be of trinomials; 4,000 draws tell 80 % within 2 points (three standard errors)."""
    difference, discordance = 0.1, 0.3
    num = num_for_difference(difference, discordance)
    more, less = (
        np.random.default_rng(1)
        .multinomial(num, [(discordance + difference) / 2, (discordance - difference) / 2, 1 - discordance], size=4000)[
            :, :2
        ]
        .T
    )
    z = (more - less) / np.sqrt(more + less)
    assert np.mean(z > 1.96) == pytest.approx(0.8, abs=0.03)
