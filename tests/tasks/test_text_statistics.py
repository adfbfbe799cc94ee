"""The recovered share of a loss, its bill, its advantage over a coin: by loops and enumeration; repeated n-grams."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from statistics import mean, stdev

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.tasks.statistics import Estimate, Resamples, bill_ratio, estimate, loss_shares, ratio, rpi

nats = st.integers(-40, 40).map(lambda n: n / 8)
questions = st.lists(st.tuples(nats, nats, nats), max_size=30)
bits = st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=2, max_size=30)

LOCAL, HYBRID, CLOUD = [2.0, 0.5, 3.0, 1.0, 4.0, 0.25], [1.0, 0.5, 0.75, 1.5, 2.0, 0.25], [0.5, 0.75, 0.5, 0.5, 1.0, 0]
BILLS, CLOUD_BILLS = [3.0, 0.0, 7.0, 1.0, 2.0, 0.0], [5.0, 2.0, 6.0, 4.0, 8.0, 3.0]


def advantage(local, hybrid, cloud, bills, cloud_bills, *, seed=0, num_resamples=10_000):
    """A recovered share less the bill, of one bootstrap: the losses and the bills of a question are drawn together."""
    losses, paid = (np.array(rows, dtype=np.float64) for rows in ((local, hybrid, cloud), (bills, cloud_bills)))
    if not losses.size:
        return None
    draws = Resamples(losses.shape[1], seed, num_resamples)
    return estimate(loss_shares(draws, *losses) - ratio(*draws.sums(paid)))


def recovered_share(local, hybrid, cloud, seed=0, num_resamples=10_000):
    """The advantage of what costs nothing."""
    free, paid = [0.0] * len(local), [1.0] * len(local)
    return advantage(local, hybrid, cloud, free, paid, seed=seed, num_resamples=num_resamples)


def columns(rows):
    return [list(column) for column in zip(*rows, strict=True)] or [[], [], []]


def told_apart(local, cloud):
    """The mean paired difference is above two of its standard errors."""
    gap = [a - b for a, b in zip(local, cloud, strict=True)]
    return len(gap) > 1 and mean(gap) > 2 * stdev(gap) / math.sqrt(len(gap))


def unlike_a_tie(local, cloud):
    """Whether the rule above is not decided by rounding."""
    gap = [a - b for a, b in zip(local, cloud, strict=True)]
    return len(gap) < 2 or abs(mean(gap) - 2 * stdev(gap) / math.sqrt(len(gap))) > 1e-9


def enumerated(value_of, count):
    """The exact law of the bootstrap from every resample, read for the lower end and, negated, for the upper one.

    A value of None is as low or as high as one likes.
    """
    lower, upper = Counter(), Counter()
    for drawn in itertools.product(range(count), repeat=count):
        value = value_of(drawn)
        lower[-math.inf if value is None else value] += Fraction(1, count**count)
        upper[-math.inf if value is None else -value] += Fraction(1, count**count)
    return lower, upper


def quantile(law, share):
    """The smallest value with at least that share at or below it."""
    values = sorted(law)
    return values[next(i for i, below in enumerate(itertools.accumulate(law[v] for v in values)) if below >= share)]


def share_of(drawn):
    gap = sum(LOCAL[i] - CLOUD[i] for i in drawn)
    return sum(LOCAL[i] - HYBRID[i] for i in drawn) / gap if gap > 0 else None


def ratio_of(drawn):
    return round(sum(BILLS[i] for i in drawn) / sum(CLOUD_BILLS[i] for i in drawn), 12)


def advantage_of(drawn):
    share = share_of(drawn)
    return None if share is None else round(share - ratio_of(drawn), 12)


# ---- the recovered share -------------------------------------------------------------------------------------------


@given(questions)
def test_the_value_is_the_ratio_of_the_differences_of_the_means_where_there_is_a_gap(rows):
    local, hybrid, cloud = columns(rows)
    assume(unlike_a_tie(local, cloud))
    found = recovered_share(local, hybrid, cloud, num_resamples=20)
    assert (found is not None) == told_apart(local, cloud)
    if found is not None:
        expected = (mean(local) - mean(hybrid)) / (mean(local) - mean(cloud))
        assert found.value == pytest.approx(expected)


@given(bits)
def test_on_losses_of_0_and_1_it_is_rpi(rows):
    """A wrong answer loses 1. The resamples are others, the law is one."""
    small, hybrid, large = columns(rows)
    losses = [[1 - right for right in scores] for scores in (small, hybrid, large)]
    assume(unlike_a_tie(losses[0], losses[2]))
    ours, theirs = recovered_share(*losses, num_resamples=20), rpi(small, hybrid, large, num_resamples=20)
    assert (ours is None) == (theirs is None)
    assert ours is None or ours.value == pytest.approx(theirs.value)


@pytest.mark.slow
def test_the_ends_are_those_of_an_enumeration_of_every_resample():
    """Of the share, of the bill and of the advantage alike, as far as 100,000 draws stray (4 standard errors)."""
    every, strays = range(len(LOCAL)), 4 * math.sqrt(0.025 * 0.975 / 100_000)
    for value_of, found in (
        (share_of, recovered_share(LOCAL, HYBRID, CLOUD, num_resamples=100_000)),
        (ratio_of, bill_ratio(BILLS, CLOUD_BILLS, num_resamples=100_000)),
        (advantage_of, advantage(LOCAL, HYBRID, CLOUD, BILLS, CLOUD_BILLS, num_resamples=100_000)),
    ):
        assert found.value == pytest.approx(value_of(every))
        for end, law in each_of(zip((found.low, -found.high), enumerated(value_of, len(LOCAL)), strict=True)):
            least, most = (quantile(law, 0.025 + off) for off in (-strays, strays))
            assert least - 1e-9 <= end <= most + 1e-9, value_of.__name__
            assert most - least < 0.15, value_of.__name__


def test_the_numbers_of_a_question_are_drawn_together():
    """A hybrid that loses what the cloud loses recovers all for certain; with the same losses elsewhere it may not."""
    local, cloud, elsewhere = [4.0] * 20, [1.0, 2.0] * 10, [1.0] * 10 + [2.0] * 10
    assert recovered_share(local, cloud, cloud) == Estimate(1.0, 1.0, 1.0)
    apart = recovered_share(local, elsewhere, cloud)
    assert apart.low < apart.value == 1.0 < apart.high


def test_where_too_many_resamples_have_no_gap_there_are_no_ends():
    """Leaving those out would say "1, surely" of a ratio over noise."""
    local, cloud = [1.0] * 40 + [0.0] * 24, [0.0] * 40 + [1.0] * 24
    assert recovered_share(local, cloud, cloud) == Estimate(1.0, -math.inf, math.inf)
    assert advantage(local, cloud, cloud, [1.0] * 64, [1.0] * 64) == Estimate(0.0, -math.inf, math.inf)


@given(st.floats(0.1, 10.0), st.integers(-8, 8))
def test_neither_the_unit_of_the_losses_nor_what_all_three_lose_matters(unit, offset):
    moved = [[unit * (loss + offset) for loss in losses] for losses in (LOCAL, HYBRID, CLOUD)]
    ours, theirs = recovered_share(*moved, num_resamples=50), recovered_share(LOCAL, HYBRID, CLOUD, num_resamples=50)
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


def test_the_same_seed_gives_the_same_interval_and_another_one_another():
    found = [recovered_share(LOCAL, HYBRID, CLOUD, seed, num_resamples=50) for seed in (0, 0, 1, 2, 3)]
    assert found[0] == found[1]
    assert len(set(found)) > 1
    assert found[0].low < found[0].value < found[0].high


def test_a_hybrid_may_lose_less_than_the_cloud_or_more_than_the_local_model():
    assert recovered_share([2.0, 2.0], [0.0, 0.0], [1.0, 1.0]).value == 2.0
    assert recovered_share([2.0, 2.0], [3.0, 3.0], [1.0, 1.0]).value == -1.0


# ---- the bill, and what a coin recovers for it ---------------------------------------------------------------------


@each("num_sent", range(7))
def test_whole_questions_sent_at_random_have_no_advantage(num_sent):
    """Over every choice of that many questions at one price; what they recover and what they cost, each in the mean."""
    found = []
    for sent in itertools.combinations(range(6), num_sent):
        hybrid = [CLOUD[i] if i in sent else LOCAL[i] for i in range(6)]
        bills = [2.0 if i in sent else 0.0 for i in range(6)]
        found.append(advantage(LOCAL, hybrid, CLOUD, bills, [2.0] * 6, num_resamples=1).value)
    assert mean(found) == pytest.approx(0.0)


def test_the_losses_and_the_bills_of_a_question_are_drawn_together():
    """Of questions alike in gap and price, those that are sent recover what they cost, whichever are drawn again."""
    sent = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]
    found = advantage([3.0] * 8, [3.0 - 2 * s for s in sent], [1.0] * 8, sent, [1.0] * 8)
    assert (found.value, found.low, found.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert bill_ratio(sent, [1.0] * 8).low < 0.5 < bill_ratio(sent, [1.0] * 8).high


def test_a_bill_of_half_the_clouds_everywhere_is_half_for_certain():
    found = bill_ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert found == Estimate(0.5, 0.5, 0.5)


def test_there_is_an_advantage_where_there_is_a_share():
    flat = [1.0] * 6
    assert recovered_share(flat, HYBRID, flat) is None
    assert advantage(flat, HYBRID, flat, BILLS, CLOUD_BILLS) is None
    found = advantage(LOCAL, HYBRID, CLOUD, BILLS, CLOUD_BILLS).value
    assert found == pytest.approx(recovered_share(LOCAL, HYBRID, CLOUD).value - bill_ratio(BILLS, CLOUD_BILLS).value)


def test_numbers_that_cannot_be_are_refused():
    for losses in (([0, 1], [0, 1, 1], [1, 1]), ([[0.0]],) * 3, ([0, math.inf], [0, 1], [0, 0]), ([math.nan],) * 3):
        with pytest.raises(ValueError, match=r"numbers of the same questions|not finite"):
            bill_ratio(*losses[:2])
    for bills in (([1.0, -1.0], [1.0, 1.0]), ([0.0], [0.0]), ([1.0], [-1.0]), ([], [])):
        with pytest.raises(ValueError, match="bill"):
            bill_ratio(*bills)
