"""The bandit of ``kl:adaptive``: what it learns from, when it leaves the settings of the preset, what it finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from cases import each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.policy import PolicyOptions, preset
from hybrid.policy.adaptive import ARMS, PRESET_ARM, ArmCounts, choose_arm, lost_share, reward

NAMES = [str(arm) for arm in ARMS]
BETTER = 3
# As it is written where it is decided: the dearest bill that counts, and the share of the answers of others.
DEAREST, A_QUARTER = 3.0, 0.25


def play(rewards, num, seed=0):
    """Play ``num`` answers; ``rewards`` takes an arm's number and returns a reward. Return the arms' numbers."""
    coins, counts, chosen = np.random.default_rng(seed), {}, []
    for _ in range(num):
        number = ARMS.index(choose_arm(counts, coins.random()).arm)
        chosen.append(number)
        earned = rewards(number)
        counts[NAMES[number]] = counts.get(NAMES[number], ArmCounts()).plus(ArmCounts(1, 1, earned, earned**2))
    return np.array(chosen)


def drawn(means, spread, seed):
    """Rewards about a mean for each arm, within [-1, 0]."""
    rng = np.random.default_rng(1000 + seed)
    return lambda number: float(np.clip(rng.normal(means[number], spread), -1.0, 0.0))


# ---- what an answer teaches ----------------------------------------------------------------------------------------


def test_a_reward_falls_with_the_bill_and_with_what_is_lost_and_is_within_its_range():
    bills, losses = np.linspace(0.0, DEAREST + 1.0, 9), np.linspace(0.0, 1.0, 9)
    found = np.array([[reward(bill, lost) for lost in losses] for bill in bills])
    assert (np.diff(found, axis=0) <= 0.0).all()
    assert (np.diff(found, axis=1) < 0.0).all()
    assert (found[-1], found[0, 0], found.min()) == (pytest.approx(found[-2]), 0.0, -1.0)


def test_what_is_lost_counts_each_seen_position_by_the_inverse_of_the_share_that_was_seen():
    """Averaged over which positions are looked at, it is what all of them together say: looking at less hides none."""
    nats = (0.0, 0.1, 0.4, 1.3)
    for num in (1, 2, 3, 4):
        looks = itertools.combinations(range(len(nats)), num)
        lost = [lost_share([kl if i in look else None for i, kl in enumerate(nats)]) for look in looks]
        assert np.mean([-math.log1p(-each) for each in lost]) == pytest.approx(sum(nats))


def test_what_was_turned_down_counts_for_what_nobody_saw():
    """Else whoever looks seldom would know its kept tokens alone, which are the near ones."""
    assert lost_share([0.1, None], [2.0]) > lost_share([0.1, None]) > lost_share([0.1])
    assert lost_share([0.1], [2.0]) == lost_share([0.1]), "what the cloud wrote loses nothing"


def test_an_answer_that_nobody_looked_at_is_the_worst_however_cheap():
    assert lost_share([None, None]) is None
    assert reward(0.0, None) == -1.0 <= reward(DEAREST, 0.99)


@pytest.mark.parametrize("nats", [36.0, 37.0, 40.0, 700.0, 1e6])
def test_an_answer_that_is_seen_to_be_lost_whole_is_no_unseen_one(nats):
    """One less its likelihood is 1 in floating point there, and its bill counts all the same."""
    assert [reward(bill, lost_share([nats])) for bill in (0.0, 1.0)] == [
        reward(bill, 1.0 - math.exp(-min(nats, 700.0))) for bill in (0.0, 1.0)
    ]
    assert reward(0.0, lost_share([nats])) > reward(1.0, lost_share([nats])) > reward(0.0, None)


# ---- what is chosen ------------------------------------------------------------------------------------------------


def test_the_first_arm_is_the_presets_own_and_every_arm_is_another():
    own = preset("kl", PolicyOptions())
    assert own == preset("kl", PolicyOptions(**PRESET_ARM._asdict())) == preset("kl:adaptive", PolicyOptions())
    assert (ARMS[0], len(set(ARMS))) == (PRESET_ARM, len(ARMS))
    assert len(ARMS) <= 8


def naive_bounds(rewards):
    """Both ends by the formula of the paper, from the rewards themselves."""
    num = len(rewards)
    if num < 4:
        return -math.inf, math.inf
    time = num * 0.1 + 1
    half = np.std(rewards, ddof=1) * math.sqrt(2 * time / (num**2 * 0.1) * math.log(math.sqrt(time) / (0.05 / 7)))
    return np.mean(rewards) - half - 1 / num, np.mean(rewards) + half + 1 / num


@given(st.data())
def test_before_another_is_proven_better_others_have_at_most_their_share_whatever_comes(data):
    """For any rewards and any coins; and whoever is taken without being tried is proven, or the preset's own."""
    counts, seen = {}, {name: [] for name in NAMES}
    levels = data.draw(st.lists(st.floats(-1.0, 0.0), min_size=len(ARMS), max_size=len(ARMS)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    others = 0
    for number in each_of(range(1, data.draw(st.integers(1, 400)) + 1)):
        bounds = {name: naive_bounds(each) for name, each in seen.items()}
        proven = {name for name in NAMES if bounds[name][0] > bounds[NAMES[0]][1]}
        choice = choose_arm(counts, rng.random() * data.draw(st.sampled_from([0.0, 1.0]), label="coin"))
        name, is_tried = str(choice.arm), "tried" in choice.why
        if proven:
            assert is_tried or name == max(proven, key=lambda each: bounds[each][0])
        else:
            others += name != NAMES[0]
            assert others <= A_QUARTER * number
            assert is_tried == (name != NAMES[0])
        if proven:
            return
        earned = max(-1.0, min(0.0, levels[NAMES.index(name)] + rng.normal(0.0, 0.05)))
        seen[name].append(earned)
        counts[name] = counts.get(name, ArmCounts()).plus(ArmCounts(1, 1, earned, earned**2))


def test_the_better_arm_is_found_and_the_regret_is_stated():
    """Of 1,500 answers at a gap of 0.1 and a spread of 0.1, less than half of the preset's own regret is left."""
    means = [-0.3] * len(ARMS)
    means[BETTER] = -0.2
    for seed in range(10):
        chosen = play(drawn(means, 0.1, seed), 1500, seed)
        regret = (chosen != BETTER).mean()
        assert regret < 0.5, f"{regret} of the answers had another arm, seed {seed}"
        assert (chosen[-300:] == BETTER).mean() > 0.85
        tried = (chosen[-300:] != BETTER).mean()
        assert 0.0 < tried < 0.15, "and others are still tried"


def test_without_a_better_arm_the_presets_own_stays():
    """Over 20 histories of equal arms, none leaves it: that is told with a level of 0.05 for all of a history."""
    for seed in range(20):
        chosen = play(drawn([-0.3] * len(ARMS), 0.15, seed), 600, seed)
        assert (chosen != 0).mean() <= A_QUARTER


def test_an_arm_that_never_looks_is_never_taken_but_to_try_it():
    """It costs nothing and shows nothing: by its bill alone it would win against every other."""
    blind = reward(0.0, lost_share([None] * 9))
    rest = drawn([-0.8] * len(ARMS), 0.1, 0)
    chosen = play(lambda number: blind if number == BETTER else rest(number), 800)
    assert (chosen == BETTER).mean() < 0.05
    assert (chosen != 0).mean() <= A_QUARTER


def test_where_nothing_is_learned_nothing_is_tried():
    counts = {NAMES[0]: ArmCounts(100, 100, -50.0, 26.0)}
    assert not choose_arm(counts, 0.0, learns=False).learns
    assert choose_arm(counts, 0.0, learns=False).arm == PRESET_ARM != choose_arm(counts, 0.0).arm
    known = counts | {NAMES[BETTER]: ArmCounts(200, 200, -20.0, 3.0)}
    assert choose_arm(known, 0.0, learns=False).arm == ARMS[BETTER]
