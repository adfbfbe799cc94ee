"""The floor: an alarm that is rarely false."""

import math

import numpy as np

from hybrid.defer import FLOOR, RAISED_FLOOR, DraftOutcome, floor_coin
from hybrid.defer.dials import ALARM, LEAST_CHANCE, ODDS_RATIO, RAISED_QUESTIONS, floor_after, raised_for


def outcome(chance, turned_down, keeps=True, floor=FLOOR, after="start"):
    numbers = () if turned_down is None else (0.0,) * 15
    return DraftOutcome(chance, chance, keeps, floor, turned_down, after, statistics=numbers)


def test_a_coin_of_one_key_falls_alike_and_coins_of_many_keys_evenly():
    assert floor_coin(3, "a", (1, 2)) == floor_coin(3, "a", (1, 2))
    assert len({floor_coin(3, 1), floor_coin(31), floor_coin("3", 1), floor_coin(1, 3)}) == 4
    falls = np.sort([floor_coin(seed, 7) for seed in range(4000)])
    assert falls[0] >= 0
    assert falls[-1] < 1
    assert np.abs(falls - np.arange(4000) / 4000).max() < 1.63 / math.sqrt(4000)  # Kolmogorov's distance at 1 %


def naive_raised_for(outcomes):
    """Page's sum as the largest sum over all beginnings since the last alarm."""
    alarm_at, evidence, raised = None, [], 0
    for number, each in enumerate(outcomes):
        if each.keeps and each.turned_down is not None:
            told = min(max(each.chance, LEAST_CHANCE), 1 - LEAST_CHANCE)
            other = told * ODDS_RATIO / (1 - told) / (1 + told * ODDS_RATIO / (1 - told))
            evidence.append(math.log(other / told) if each.turned_down else math.log((1 - other) / (1 - told)))
            if max(sum(evidence[first:]) for first in range(len(evidence))) >= ALARM:
                alarm_at, evidence = number, []
    if alarm_at is not None:
        raised = max(0, RAISED_QUESTIONS - sum(each.after == "start" for each in outcomes[alarm_at + 1 :]))
    return raised


def test_the_sum_is_the_naive_one_and_an_alarm_raises_the_floor_for_a_hundred_questions():
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(60):
        outcomes = [
            outcome(
                rng.uniform(0, 0.4),
                [None, True, False][rng.integers(3)],
                bool(rng.random() < 0.7),
                after=("start", "block")[int(rng.random() < 0.2)],
            )
            for _ in range(rng.integers(1, 40))
        ]
        assert raised_for(outcomes) == naive_raised_for(outcomes)
        alarms += raised_for(outcomes) > 0
    assert 10 < alarms < 60
    bad = [outcome(0.03, turned_down=True)] * 3
    assert floor_after([]) == floor_after(bad[:1]) == FLOOR == 0.05
    assert floor_after(bad) == RAISED_FLOOR == 0.25
    kept = [outcome(0.03, None)] * (RAISED_QUESTIONS - 1)
    assert floor_after([*bad, *kept]) == RAISED_FLOOR
    assert floor_after([*bad, *kept, kept[0]]) == FLOOR


def test_where_the_chances_are_true_an_alarm_is_rare_and_where_they_are_a_tenth_of_the_truth_it_comes():
    """At most one in fifty verdicts by the bound; the level is that of 200 streams of 50."""
    rng = np.random.default_rng(1)

    def alarmed(scale):
        chances = rng.uniform(0.02, 0.09, 50)
        return raised_for([outcome(c, bool(rng.random() < min(1.0, c * scale))) for c in chances]) > 0

    assert np.mean([alarmed(1) for _ in range(200)]) < 0.2
    assert np.mean([alarmed(10) for _ in range(200)]) > 0.95
