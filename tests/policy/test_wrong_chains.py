"""Chains that read well and are wrong: the enumeration that holds a chain's laws turns each of them down.

The models have nothing in common, so that a wrong law is far off; the distance is in total variation of whole texts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each
from wrong_judges import AcceptsEverything

from hybrid.errors import UsageError
from hybrid.policy import CoinKey, PolicyOptions, preset, stages
from hybrid.policy.presets import with_stages
from hybrid.policy.progress import Progress
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import ExactSampling, GreedyMatch
from hybrid.policy.stages import ChainLevel
from hybrid.policy.target_sampler import TargetSampler
from hybrid.types import Sampling

AT_ONE = Sampling(1.0)
SAMPLER = TargetSampler(AT_ONE)
EXACT, BLOCK = ExactSampling(SAMPLER), BlockVerification(SAMPLER)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def strangers(toys):
    return toys.Toy("q5"), toys.Toy("m5"), toys.Toy("p5")


@pytest.fixture(scope="module")
def relatives(toys):
    """Models that accept much of each other, so that texts go through many rounds."""
    small = toys.Toy("q")
    mid = toys.Mix(small, "m", 0.6)
    return small, mid, toys.Mix(mid, "p", 0.6)


def error(toys, models, stage, length=2):
    """Half of the sum of all differences between the law of the chain's text and the cloud's own."""
    small, mid, large = models
    policy = replace(preset("exact", PolicyOptions(span=2, sampling=AT_ONE)), stages=(stage,))
    how = {"k": 3, "mids": (mid,), "keyed": True}
    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, length, **how), length)
    own = toys.own_law(large, length)
    return sum(abs(found.get(text, 0.0) - own.get(text, 0.0)) for text in {*found, *own}) / 2


def test_tested_against_the_smallest_models_law_the_text_is_wrong(toys, strangers, monkeypatch):
    """A token that leaves a level has been drawn by that level's law: law 3."""
    stage = ChainLevel(2, EXACT, AT_ONE, bonus=False)
    assert error(toys, strangers, stage) < 1e-12
    raised = stages._raised

    def forgets(stage, level, token, row):
        return replace(raised(stage, level, token, row), drawn_from=token.draft_row or row)

    with monkeypatch.context() as patch:
        patch.setattr(stages, "_raised", forgets)
        assert error(toys, strangers, stage) > 0.5


@each(
    ("judge", "at_least"),
    [(AcceptsEverything(SAMPLER), 0.35), (GreedyMatch(), 0.45), (DivergenceThreshold(2.0), 0.35)],
)
def test_sampled_a_lossy_level_under_an_exact_one_is_wrong(toys, strangers, judge, at_least):
    """What leaves it does not have the law that is tested above: law 4. A policy refuses it."""
    stage = ChainLevel(2, judge, AT_ONE, bonus=False)
    assert not stage.is_exact
    assert error(toys, strangers, stage) > at_least


def one_level(self, probs, position, role, level):
    """Coins without the level."""
    return self.coin(probs, CoinKey(position, role, self.rejections_at(level)))


def never(self, level):
    """Rejections of a stage that are not counted."""


def own_alone(self, level):
    """Rejections above that do not change the coins below."""
    return self.stage_rejections[max(0, level - 1)] if level <= len(self.stage_rejections) else self.rejections


WRONG_COINS = (("toss_at", one_level, 0.03), ("reject", never, 0.005), ("rejections_at", own_alone, 0.005))


@pytest.mark.parametrize(
    ("name", "wrong", "at_least"), [WRONG_COINS[0], *(pytest.param(*each, marks=SLOW) for each in WRONG_COINS[1:])]
)
def test_a_coin_that_is_tossed_twice_is_seen_in_the_law(toys, relatives, name, wrong, at_least, monkeypatch):
    """Laws 1 and 2: a key has its level, and counts the rejections of its own level and of all above it."""
    stage, length = ChainLevel(2, BLOCK, AT_ONE, bonus=False), 2 if wrong is one_level else 3
    assert error(toys, relatives, stage, length=length) < 1e-12
    monkeypatch.setattr(Progress, name, wrong)
    assert error(toys, relatives, stage, length=length) > at_least


LOSSY = (AcceptsEverything(SAMPLER), GreedyMatch(), DivergenceThreshold(0.5))


@each("lossy", LOSSY)
@each("name", ["exact", "block", "cascade", "u-hlm"])
def test_a_lossy_sampled_stage_under_a_judge_of_draws_is_refused_in_a_sentence(lossy, name):
    """Under the policy's own judge, and under a stage between: its law would be the wrong one for what is above."""
    policy = preset(name, PolicyOptions(sampling=AT_ONE))
    fine, wrong = ChainLevel(2, BLOCK, AT_ONE), ChainLevel(2, lossy, AT_ONE)
    for chain in ((wrong,), (fine, wrong), (wrong, fine)):
        with pytest.raises(UsageError, match=rf"^the stage .* changes its model's law, and {name} .* --temperature 0$"):
            with_stages(policy, chain)
    with pytest.raises(UsageError, match=r"^the stage .* changes its model's law"):
        with_stages(preset("kl", PolicyOptions(sampling=AT_ONE)), (wrong, fine))
    assert with_stages(policy, (fine, fine)).stages == (fine, fine)


@each("lossy", LOSSY)
def test_where_no_law_is_promised_or_all_is_compared_any_stage_may_stand(lossy):
    """A lossy policy promises no law of its drafts; greedy texts do not depend on what was drafted."""
    stage = ChainLevel(2, lossy, AT_ONE)
    assert with_stages(preset("kl", PolicyOptions(sampling=AT_ONE, threshold=0.5)), (stage,)).stages == (stage,)
    stage = ChainLevel(2, lossy, Sampling())
    assert with_stages(preset("greedy-exact", PolicyOptions()), (stage,)).stages == (stage,)
