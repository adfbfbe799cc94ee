"""The laws of a chain: the whole loop over three models and more, by enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each

from hybrid.policy import PRESETS, CoinKey, PolicyOptions, SeededCoin, preset
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import ExactSampling, GreedyMatch
from hybrid.policy.stages import Stage
from hybrid.policy.target_sampler import TargetSampler
from hybrid.types import Sampling

GREEDY, AT_ONE = Sampling(), Sampling(1.0)
LENGTH = 12


def models(toys, number, share=0.5):
    small = toys.Toy(f"small{number}")
    mid = toys.Mix(small, f"mid{number}", share)
    return small, mid, toys.Mix(mid, f"large{number}", share)


def sampled(judge):
    sampler = TargetSampler(AT_ONE)
    return {
        "exact": ExactSampling(sampler),
        "block": BlockVerification(sampler),
        "kl": DivergenceThreshold(0.0, sampler=sampler),
        "kl, who writes": DivergenceThreshold(0.0),
    }[judge]


@each("span", [1, 2, 5])
@each("inner", [1, 3])
def test_greedy_chains_give_the_clouds_own_text(toys, span, inner):
    stage = Stage(inner, GreedyMatch(), GREEDY)
    policy = replace(preset("greedy-exact", PolicyOptions(span=span)), stages=(stage,))
    for number in range(20):
        small, mid, large = models(toys, number)
        shown, _ = toys.play(policy, small, large, None, LENGTH, mids=(mid,))
        assert tuple(token.id for token in shown) == toys.greedy_text(large, LENGTH)


@each("judge", [GreedyMatch(), DivergenceThreshold(0.0), DivergenceThreshold(0.0, sampler=TargetSampler(GREEDY))])
def test_a_greedy_stage_alone_gives_its_models_own_text(toys, judge):
    policy = replace(PRESETS["local"].build(PolicyOptions()), stages=(Stage(3, judge, GREEDY),))
    for number in range(20):
        small, mid, _ = models(toys, number)
        shown, _ = toys.play(policy, small, mid, None, LENGTH, mids=(mid,))
        assert tuple(token.id for token in shown) == toys.greedy_text(mid, LENGTH)
        assert {token.source for token in shown} == {"local"}
        assert {token.writer for token in shown} <= {0, 1}


@each("judge", ["exact", "block", "kl", "kl, who writes"])
@each("bonus", [True, False])
def test_a_sampled_stage_alone_has_its_models_own_law(toys, judge, bonus):
    for span in (1, 2):
        small, mid, _ = models(toys, span)
        stage = Stage(span, sampled(judge), AT_ONE, bonus=bonus)
        policy = replace(PRESETS["local"].build(PolicyOptions(sampling=AT_ONE)), stages=(stage,))
        law = toys.law_of(lambda coin, p=policy, s=small, m=mid: toys.play(p, s, m, coin, 3, mids=(m,)), 3)
        assert toys.distance(law, toys.own_law(mid, 3)) < 1e-12


@each("inner", ["exact", "block", "kl"])
@each("outer", ["exact", "block"])
@pytest.mark.parametrize("spans", [(1, 2), (2, 1), pytest.param((2, 3), marks=pytest.mark.slow)])
def test_an_exact_chain_of_three_has_the_clouds_own_law(toys, inner, outer, spans):
    small, mid, large = models(toys, 7)
    policy = preset(outer, PolicyOptions(span=spans[1], sampling=AT_ONE, cloud_top_k=3))
    policy = replace(policy, stages=(Stage(spans[0], sampled(inner), AT_ONE),))
    for k in (1, 3):
        law = toys.law_of(lambda coin, k=k: toys.play(policy, small, large, coin, 2, k=k, mids=(mid,)), 2)
        assert toys.distance(law, toys.own_law(large, 2)) < 1e-12


@each("inner", ["exact", "block", "kl"])
def test_no_coin_is_tossed_twice_in_a_chain(toys, inner):
    """A seeded coin falls alike for one key: two tosses of one key would be one."""
    small, mid, large = models(toys, 3)
    policy = preset("block", PolicyOptions(span=2, sampling=AT_ONE, cloud_top_k=3))
    policy = replace(policy, stages=(Stage(2, sampled(inner), AT_ONE),))

    for seed in range(60):
        tossed, coin = [], SeededCoin(seed)

        def toss(probs, key=None, tossed=tossed, coin=coin):
            tossed.append(key or CoinKey(len(tossed), "cloud", 0))
            return coin(probs, tossed[-1])

        toys.play(policy, small, large, toss, LENGTH, mids=(mid,), keyed=True, end=-1)
        assert len(set(tossed)) == len(tossed) > LENGTH
