"""The scheduler of chains: its recursion beside a simulation, its choice beside brute force, its patience."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from cases import each

from hybrid.pairs.timings import CloudCosts
from hybrid.run.chain import (
    CLOUD,
    LEAST_COMPARED,
    SPANS,
    ChainStatistics,
    LevelCost,
    PairAcceptance,
)

NAMES = ("small", "mid", "big")
FREE = CloudCosts(check_ms=20.0)


def known(costs, shares, names=NAMES):
    """A scheduler that has seen so many milliseconds a token (a batch is as dear as its tokens) and such shares."""
    scheduler = ChainStatistics(names)
    for name, ms in zip(names, costs, strict=True):
        scheduler.costs[name] = LevelCost(ms)
    for pair, share in shares.items():
        scheduler.pairs[pair] = PairAcceptance(share, 1.0, LEAST_COMPARED)
    return scheduler


def random_case(seed):
    rng = random.Random(seed)
    costs = sorted(rng.uniform(0.1, 10) for _ in NAMES)
    return known(costs, {pair: rng.uniform(0.2, 0.99) for pair in combinations((*NAMES, CLOUD), 2)})


def simulated(scheduler, models, spans, num=6_000):
    """The milliseconds a token of a chain whose tokens are accepted by independent coins."""
    rng = random.Random(1)

    def token_costs(level):
        if level == 0:
            while True:
                yield scheduler.costs[models[0]].batch_ms(1)
        below, share = token_costs(level - 1), scheduler.pairs[models[level - 1], models[level]].share
        while True:
            took = sum(next(below) for _ in range(spans[level - 1]))
            took += scheduler.costs[models[level]].batch_ms(spans[level - 1] + 1)
            kept = 0
            while kept < spans[level - 1] and rng.random() < share:
                kept += 1
            yield took
            yield from [0.0] * kept

    costs = token_costs(len(models) - 1)
    return sum(next(costs) for _ in range(num)) / num


@each("seed", [0, 1, 2])
def test_the_recursion_is_what_a_simulation_takes(seed):
    scheduler = random_case(seed)
    for models in (NAMES, NAMES[:2]):
        chain = scheduler.predict(models, None, None)
        assert simulated(scheduler, models, chain.spans) == pytest.approx(chain.ms_per_token, rel=0.05)


@each("seed", range(8))
def test_the_best_of_all_chains_and_spans_is_chosen(seed):
    scheduler = random_case(seed)

    def taken(models, spans):
        ms = scheduler.costs[models[0]].batch_ms(1)
        for lower, upper, g in zip(models, models[1:], spans, strict=False):
            share = scheduler.pairs[lower, upper].share
            ms = (g * ms + scheduler.costs[upper].batch_ms(g + 1)) * (1 - share) / (1 - share ** (g + 1))
        share = scheduler.pairs[models[-1], CLOUD].share
        return (8 * ms + FREE.check_ms) * (1 - share) / (1 - share**9)

    chains = [models for num in (1, 2, 3) for models in combinations(NAMES, num)]
    brute = min(taken(models, spans) for models in chains for spans in product(SPANS, repeat=len(models) - 1))
    assert scheduler.choose("auto", 8, FREE, free=True).ms_per_token == pytest.approx(brute)
    on_top = [models for models in chains if models[-1] == "big"]
    brute = min(taken(models, spans) for models in on_top for spans in product(SPANS, repeat=len(models) - 1))
    scheduler.chosen = None
    assert scheduler.choose("auto", 8, FREE).ms_per_token == pytest.approx(brute)


def test_before_anything_is_known_the_whole_chain_that_was_named_is_used():
    assert ChainStatistics(NAMES).choose("auto", 8, FREE, free=True).models == NAMES
    timed = known((1.0, 3.0, 9.0), {})
    assert timed.choose("auto", 8, FREE, free=True).models == NAMES, "a model left out is compared with nobody"


def test_another_chain_is_taken_for_a_clear_gain_and_not_at_once():
    scheduler = known((1.0, 1.2, 9.0), dict.fromkeys(combinations((*NAMES, CLOUD), 2), 0.9))
    scheduler.chosen = scheduler.predict(("mid", "big"), None, None)
    best = ("small", "big")
    hardly = scheduler.choose("auto", None, None)
    assert hardly.models == ("mid", "big"), "a gain of less than a twentieth"
    scheduler.costs["small"] = LevelCost(0.1)
    assert scheduler.choose("auto", None, None).models == ("mid", "big"), "too soon"
    scheduler.num_shown = 64
    assert scheduler.choose("auto", None, None).models == best
    assert scheduler.num_shown == 0


def num_shown(share, span):
    """Tokens that a round of so many shows: the naive sum."""
    return sum(share**i for i in range(span + 1))


def test_cheap_asks_for_the_fewest_checks_whatever_their_time():
    shares = dict.fromkeys(combinations(NAMES, 2), 0.9)
    shares |= {("small", CLOUD): 0.5, ("mid", CLOUD): 0.6, ("big", CLOUD): 0.95}
    scheduler = known((0.1, 1.0, 50.0), shares)
    cloud = CloudCosts(check_ms=1.0, check_nanousd=1000.0)
    assert scheduler.choose("cheap", 8, cloud, free=True).models[-1] == "big"
    assert scheduler.choose("cheap", 8, cloud, free=True).nanousd_per_token == pytest.approx(
        1000.0 / num_shown(0.95, 8)
    )
    scheduler.chosen = None
    assert scheduler.choose("auto", 8, cloud, free=True).models[-1] != "big"


def test_where_nothing_is_accepted_the_cloud_writes_alone():
    scheduler = known((1.0,), {("small", CLOUD): 0.05}, NAMES[:1])
    cloud = CloudCosts(check_ms=50.0, token_ms=20.0, check_nanousd=900.0, token_nanousd=400.0)
    assert scheduler.choose("auto", 8, cloud, free=True).models == ()
    scheduler.chosen = None
    assert scheduler.choose("auto", 8, cloud).models == NAMES[:1], "where the text is not the cloud's own it may not"


def test_a_wrong_estimate_of_acceptance_costs_little():
    """A tenth too high or too low costs at most a seventh of the best chain's time, over random cases."""
    worst = 0.0
    for seed in range(40):
        true = random_case(seed)
        for off in (-0.1, 0.1):
            told = random_case(seed)
            for pair in told.pairs.values():
                pair.accepted = min(0.999, max(0.0, pair.accepted + off))
            taken = told.choose("auto", None, None)
            ms = true.costs[taken.models[0]].batch_ms(1)
            for lower, upper, g in zip(taken.models, taken.models[1:], taken.spans, strict=False):
                ms = (g * ms + true.costs[upper].batch_ms(g + 1)) / num_shown(true.pairs[lower, upper].share, g)
            worst = max(worst, ms / true.choose("auto", None, None).ms_per_token - 1.0)
    assert worst < 1 / 7


def test_a_batchs_time_is_learned_and_an_outlier_moves_little():
    cost = LevelCost(1.0)
    assert cost.batch_ms(8) == pytest.approx(4.3)
    rng = random.Random(0)
    for _ in range(600):
        num = rng.randint(1, 16)
        cost.observe(num, (2.0 + 0.25 * num) * rng.uniform(0.9, 1.1))
    assert cost.batch_ms(12) == pytest.approx(5.0, rel=0.05)
    cost.observe(4, 1e6)
    assert cost.batch_ms(4) < 4.0


def test_the_share_that_is_accepted_is_learned_from_its_prior_on():
    pair = PairAcceptance()
    assert pair.share == pytest.approx(2 / 3)
    for number in range(4000):
        pair.observe(float(number % 10 > 0))
    assert pair.share == pytest.approx(0.9, abs=0.01)
    assert pair.num == 4000


@each("num", [1, 6, 9])
def test_a_batch_of_another_size_is_foreseen_where_one_size_alone_was_timed_for_long(num):
    """One size tells no slope: the prior's shape stands, at the height that was seen, and no rounding error does."""
    cost, rng = LevelCost(10.0), random.Random(0)
    for _ in range(5000):
        cost.observe(num, 20.0 * rng.uniform(0.9, 1.1))
        assert 10.0 < cost.batch_ms(num) < 100.0
    shape = {size: 1.0 + (size - 1) * 3.3 / 7 for size in (1, 6, 9, 17)}
    for size, times in shape.items():
        assert cost.batch_ms(size) == pytest.approx(20.0 * times / shape[num], rel=0.05)


def test_a_time_that_grows_faster_than_its_tokens_never_begins_below_nothing():
    """A line through the two has a negative constant, and a token would take less than no time."""
    cost = LevelCost()
    for _ in range(400):
        cost.observe(4, 4.0)
        cost.observe(16, 80.0)
    assert cost.batch_ms(1) > 0.0
    assert cost.batch_ms(8) == pytest.approx(8 * cost.batch_ms(1)), "in proportion, then"
    assert 32.0 < cost.batch_ms(16) < 80.0


def test_a_batch_that_took_no_time_teaches_nothing():
    cost = LevelCost()
    cost.observe(1, 0.0)
    cost.observe(1, 10.0)
    assert cost.batch_ms(1) == pytest.approx(10.0)


def test_what_nobody_knows_of_the_cloud_alone_is_never_the_least():
    scheduler = known((1.0,), {("small", CLOUD): 0.05}, NAMES[:1])
    told = CloudCosts(check_ms=50.0, check_nanousd=900.0, token_nanousd=400.0)
    assert scheduler.choose("auto", 8, told, free=True).models == NAMES[:1]
    scheduler.chosen = None
    assert scheduler.choose("cheap", 8, told, free=True).models == ()


def test_no_model_is_left_out_before_every_two_were_compared_often_enough():
    scheduler = known((1.0, 5.0, 50.0), dict.fromkeys(combinations((*NAMES, CLOUD), 2), 0.9))
    scheduler.pairs["mid", CLOUD].num = LEAST_COMPARED - 1
    assert scheduler.choose("auto", 8, FREE, free=True).models == NAMES
    scheduler.num_shown = 64
    scheduler.pairs["mid", CLOUD].observe(0.9)
    assert scheduler.choose("auto", 8, FREE, free=True).models != NAMES
