"""The laws of a chain: the whole loop over three models and four, by enumeration.

The strongest is the shortest: a chain plays as its largest local model alone would. Then it has every law that a policy
of two models has. ``test_wrong_chains.py`` holds that the same enumeration turns wrong chains down.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from cases import each, each_of
from told_plays import WAYS, choices_of, told
from wrong_judges import AcceptsEverything

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, CoinKey, PolicyOptions, SeededCoin, preset
from hybrid.policy.gates import BaseGate
from hybrid.policy.progress import Progress
from hybrid.policy.requests import Check, Draft, Emit, ids
from hybrid.policy.rules.block import BlockVerification
from hybrid.policy.rules.divergence_threshold import DivergenceThreshold
from hybrid.policy.rules.exact import ExactSampling, GreedyMatch
from hybrid.policy.stages import ChainLevel, draft
from hybrid.policy.target_sampler import TargetSampler
from hybrid.types import Sampling

GREEDY, AT_ONE = Sampling(), Sampling(1.0)
LENGTH, SIZE = 12, 5
# Greedy, any lower level may be used: the cloud's text does not depend on what was drafted.
LOWER = {
    "greedy": GreedyMatch(),
    "kl at 0": DivergenceThreshold(0.0),
    "kl, which recovers": DivergenceThreshold(0.3, sampler=TargetSampler(GREEDY)),
    "keeps all": DivergenceThreshold(math.inf),
    "accepts everything": AcceptsEverything(TargetSampler(GREEDY)),
    "relaxed": preset("relaxed", PolicyOptions()).judge,
}
# How a stage of exact sampling may be built.
STAGES = ((1, True, 0), (3, True, 0), (2, False, 0), (4, True, 2))
SLOW = pytest.mark.slow


def models(toys, number, share=0.5, size=3):
    """A model, one that is half of it, and one that is half of that."""
    small = toys.Toy(f"small{number}", size)
    mid = toys.Mix(small, f"mid{number}", share)
    return small, mid, toys.Mix(mid, f"large{number}", share)


def sampled(judge, sampling=AT_ONE):
    sampler = TargetSampler(sampling)
    return {
        "exact": ExactSampling(sampler),
        "block": BlockVerification(sampler),
        "kl": DivergenceThreshold(0.0, sampler=sampler),
        "kl, who writes": DivergenceThreshold(0.0),
    }[judge]


def text(shown):
    return tuple(token.id for token in shown)


def law(toys, policy, models, length, **how):
    """The law of a policy's text over a small model, those between, and the cloud; coins fall alike for one key."""
    small, *mids, large = models
    how = {"mids": tuple(mids), "keyed": True, **how}
    found = toys.law_of(lambda coin: toys.play(policy, small, large, coin, length, **how), length)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    return found


def own(toys, model, length, sampling=AT_ONE):
    return toys.own_law(toys.Made(lambda prefix: model.law(prefix, sampling)), length)


# ---- greedy ----------------------------------------------------------------------------------------------------------


@each("span", [1, 2, 5])
@each("inner", [1, 3])
@each("k", [1, 2, 3])
@each("bonus", [True, False])
def test_greedy_chains_give_the_clouds_own_text(toys, span, inner, k, bonus):
    policy = preset("greedy-exact", PolicyOptions(span=span, bonus=bonus))
    policy = replace(policy, stages=(ChainLevel(inner, GreedyMatch(), GREEDY, bonus=bonus),))
    for number in range(6):
        small, mid, large = models(toys, number)
        shown, _ = toys.play(policy, small, large, None, LENGTH, k=k, mids=(mid,))
        assert text(shown) == toys.greedy_text(large, LENGTH)


@each("lower", LOWER)
@pytest.mark.parametrize("count", [4, pytest.param(60, marks=SLOW)])
def test_greedy_any_lower_level_may_be_used(toys, lower, count):
    """However wrong it is; with another below it, a cloud that answers few rows, and text that it writes itself."""
    for number in each_of(range(count)):
        small, mid, large = models(toys, number)
        for span, handoff, short in ((1, 0, None), (4, 0, 2), (5, 2, None)):
            stages = [ChainLevel(2, judge, GREEDY, handoff_tokens=handoff) for judge in (GreedyMatch(), LOWER[lower])]
            for used, mids in ((stages[1:], (mid,)), (stages, (mid, toys.Mix(mid, "next", 0.4)))):
                policy = replace(preset("greedy-exact", PolicyOptions(span=span)), stages=tuple(used))
                shown, _ = toys.play(policy, small, large, None, LENGTH, k=1, short=short, mids=mids)
                assert text(shown) == toys.greedy_text(large, LENGTH)


@each("judge", [GreedyMatch(), DivergenceThreshold(0.0), DivergenceThreshold(0.0, sampler=TargetSampler(GREEDY))])
@each("handoff", [0, 3])
def test_a_greedy_stage_alone_gives_its_models_own_text(toys, judge, handoff):
    policy = PRESETS["local"].build(PolicyOptions())
    policy = replace(policy, span=LENGTH, stages=(ChainLevel(3, judge, GREEDY, handoff_tokens=handoff),))
    for number, end in itertools.product(range(10), (0, -1)):
        small, mid, _ = models(toys, number, share=0.9, size=SIZE)
        shown, _ = toys.play(policy, small, mid, None, LENGTH, mids=(mid,), end=end)
        assert text(shown) == toys.greedy_text(mid, LENGTH, end)
        assert {token.source for token in shown} == {"local"}
        assert {token.writer for token in shown} <= {0, 1}


class EndsAfter(BaseGate):
    """Ends a draft with so many tokens kept."""

    when_full = "check"

    def __init__(self, num: int) -> None:
        self.num = num

    def after(self, row, token, place):
        return "write" if len(place.drafted) + 1 == self.num else None


@each("num", [1, 2, 3, 5])
@each("handoff", [0, 3])
def test_where_a_gate_ends_a_draft_its_next_row_is_the_levels_own_behind_what_is_kept(toys, num, handoff):
    """Gates are asked about it, and a divergence of the next position is measured with it."""
    known = 0
    for number in range(8):
        small, mid, large = models(toys, number, size=SIZE)
        player = toys.Player(small, large, None, LENGTH, mids=(mid,), end=-1)
        progress = Progress(player.toss, level=2, stage_rejections=[0])
        stage = ChainLevel(4, GreedyMatch(), GREEDY, handoff_tokens=handoff)
        flow, reply = draft((stage,), progress, Draft((), 8, EndsAfter(num))), None
        try:
            while True:
                reply = player.answer(flow.send(reply))
        except StopIteration as done:
            drafted = done.value
        assert (len(drafted.span), drafted.decision) == (num, "write")
        if drafted.next_row is not None:
            known += 1
            assert drafted.next_row.probs == pytest.approx(mid(ids(drafted.span)).probs)
    assert known > 0


def asked_of_the_cloud(log, num_stages):
    """What the cloud is asked and what is shown, in words.

    What follows the last place of an answer is nobody's, and a bonus may stand on a local row that happened to be read.
    """
    num_shown = 0
    for request in log:
        match request:
            case Draft():
                continue
            case Check(at, span):
                follows = len(at + ids(span)) < LENGTH
                if request.level > num_stages:
                    yield told(replace(request, wants_next_row=request.wants_next_row and follows))
            case Emit(tokens):
                bonus = {"draft_row": None, "kl": None}
                tokens = [replace(token, **bonus) if token.how == "bonus" else token for token in tokens]
                yield told(replace(request, tokens=tuple(tokens[: LENGTH - num_shown])))
                num_shown += len(tokens)
            case _:
                yield told(request)


@pytest.mark.parametrize("names", [["greedy-exact", "kl", "doubt", "paper"], pytest.param(list(PRESETS), marks=SLOW)])
def test_a_greedy_chain_plays_as_its_largest_local_model_alone_would(toys, names):
    """Every preset: the same requests to the cloud, the same tokens for the same reasons, whatever the cloud does."""
    for name, share in each_of(itertools.product(names, (0.5, 0.95))):
        small, mid, _ = models(toys, 0, size=SIZE)
        large = toys.Mix(mid, "large", share)
        for number, choices in each_of(enumerate(choices_of(name, LENGTH))):
            try:
                policy = preset(name, PolicyOptions(max_tokens=LENGTH, **choices))
            except UsageError:
                continue
            for way, end in zip((WAYS[number % len(WAYS)], WAYS[number - 3]), (4, -1), strict=True):
                how = {"k": 3, "end": end, **way}
                _, alone = toys.play(policy, mid, large, None, LENGTH, **how)
                for span, bonus, handoff in STAGES:
                    stage = ChainLevel(span, GreedyMatch(), GREEDY, bonus=bonus, handoff_tokens=handoff)
                    chain = replace(policy, stages=(stage,))
                    _, log = toys.play(chain, small, large, None, LENGTH, mids=(mid,), **how)
                    said = f"{name} {choices} {way} end {end}, a stage of {span}, {bonus}, {handoff}"
                    assert list(asked_of_the_cloud(log, 1)) == list(asked_of_the_cloud(alone, 0)), said


@each("span", [2, 4, 5, 7])
@each("number", range(2))
def test_nothing_is_drafted_or_read_after_the_end_of_an_answer(toys, span, number):
    """Its end token or its last place: a token beyond it would be read, checked and paid, and shown to nobody."""
    small, mid, large = models(toys, number, size=SIZE)
    mids = mid, toys.Mix(mid, "next", 0.4)
    for (inner, bonus, handoff), end in itertools.product(STAGES, (0, -1)):
        stages = (ChainLevel(2, GreedyMatch(), GREEDY), ChainLevel(inner, GreedyMatch(), GREEDY, bonus, handoff))
        policy = replace(preset("greedy-exact", PolicyOptions(span=span)), stages=stages)
        _, log = toys.play(policy, small, large, None, LENGTH, mids=mids, end=end)
        for request in each_of(log):
            if isinstance(request, Draft):
                assert end not in request.at
                assert len(request.at) < LENGTH
            if isinstance(request, Check):
                read = request.at + ids(request.span)
                assert end not in read[:-1]
                assert len(read) <= LENGTH


@each("number", range(6))
def test_a_token_names_who_wrote_it(toys, number):
    """The lowest level that drafted it: what a larger one accepts it did not write."""
    small, mid, large = models(toys, number, size=SIZE)
    policy = replace(preset("kl", PolicyOptions()), stages=(ChainLevel(3, GreedyMatch(), GREEDY),))
    shown, _ = toys.play(policy, small, large, None, LENGTH, mids=(mid,), end=-1)
    assert {token.writer for token in shown if token.source == "local"} == {0, 1}
    for i, token in each_of(enumerate(shown)):
        before = text(shown)[:i]
        if token.source == "local":
            assert (mid, small)[token.writer == 0](before).best == token.id
            assert token.draft_row is mid(before)
            assert token.below in ((small(before),), (None,))


@each("number", range(6))
def test_a_token_of_a_chain_of_four_has_a_place_for_each_level_and_no_row_in_another_ones(toys, number):
    """By it models are compared: a row in the place of a lower level would be that one's, and a missing place none."""
    small, mid, large = models(toys, number, size=SIZE)
    levels = small, mid, toys.Mix(mid, "next", 0.4)
    below = set()
    for inner, bonus, handoff in each_of(STAGES):
        stages = (ChainLevel(2, GreedyMatch(), GREEDY), ChainLevel(inner, GreedyMatch(), GREEDY, bonus, handoff))
        policy = replace(preset("kl", PolicyOptions(threshold=9.0)), stages=stages)
        shown, _ = toys.play(policy, small, large, None, LENGTH, mids=levels[1:], end=-1)
        for i, token in each_of(enumerate(shown)):
            if token.source == "local":
                rows = (*token.below, token.draft_row)
                assert len(rows) == len(levels)
                known = zip(rows, levels, strict=True)
                assert all(row is None or row is model(text(shown)[:i]) for row, model in known)
                below.add(tuple(row is not None for row in token.below))
    assert below >= {(True, True), (False, True), (False, False)}


# ---- sampled ---------------------------------------------------------------------------------------------------------


@each("judge", ["exact", "block", "kl", "kl, who writes"])
@each("bonus", [True, False])
def test_a_sampled_stage_alone_has_its_models_own_law(toys, judge, bonus):
    for span in (1, 2):
        _, mid, _ = chosen = models(toys, span)
        stage = ChainLevel(span, sampled(judge), AT_ONE, bonus=bonus)
        policy = replace(PRESETS["local"].build(PolicyOptions(sampling=AT_ONE)), span=3, stages=(stage,))
        assert toys.distance(law(toys, policy, chosen, 2), own(toys, mid, 2)) < 1e-12


CHAINS = (
    # inner judge, outer judge, its span, the stage's span and bonus and tokens of its own, shown tokens, more
    ("block", "exact", 2, (2, False, 0), 3, {}),
    ("exact", "block", 3, (2, True, 0), 2, {}),
    ("block", "block", 2, (1, True, 0), 1, {}),
    ("exact", "exact", 3, (2, False, 1), 2, {"hold": 2, "lead": 1}),
    ("exact", "exact", 3, (2, True, 2), 3, {"bonus": False}),
    ("block", "exact", 3, (2, True, 0), 2, {"gate": "max-prob:0.45:check"}),
    ("exact", "block", 3, (2, True, 0), 2, {"gate": "survival:0.4"}),
)


def chain(toys, inner, outer, span, stage, chosen, sampling=AT_ONE):
    of, bonus, handoff = stage
    policy = preset(outer, PolicyOptions(span=span, sampling=sampling, **chosen))
    return replace(policy, stages=(ChainLevel(of, sampled(inner, sampling), sampling, bonus, handoff),))


@pytest.mark.parametrize("length", [2, pytest.param(3, marks=SLOW)])
def test_an_exact_chain_of_three_has_the_clouds_own_law(toys, length):
    *_, large = three = models(toys, 7)
    for inner, outer, span, stage, k, chosen in each_of(CHAINS if length == 3 else CHAINS[:5]):
        policy = chain(toys, inner, outer, span, stage, chosen)
        found = law(toys, policy, three, length, k=k)
        assert toys.distance(found, own(toys, large, length)) < 1e-12, f"{inner} {outer} {span} {stage} {k}"


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["exact", "block", "kl"])
@pytest.mark.parametrize("outer", ["exact", "block", "kl"])
@each("bonus", [True, False])
@each("k", [1, 3])
def test_whatever_is_above_and_below_the_law_is_the_clouds(toys, inner, outer, bonus, k):
    """With kl at 0 above, which hands over: what the cloud writes is its own, and so is what it keeps."""
    *_, large = three = models(toys, 7)
    chosen = {"threshold": 0.0} if outer == "kl" else {"bonus": bonus}
    for span, short in ((2, None), (3, 1)):
        policy = chain(toys, inner, outer, span, (2, not bonus, 0), chosen)
        assert toys.distance(law(toys, policy, three, 2, k=k, short=short), own(toys, large, 2)) < 1e-12


@each("sampling", [Sampling(1.0, top_k=2), Sampling(0.7, top_p=0.8), Sampling(1.3, min_p=0.4)])
@pytest.mark.parametrize("length", [2, pytest.param(3, marks=SLOW)])
def test_an_exact_chain_has_the_clouds_law_under_the_users_sampling(toys, sampling, length):
    """Each level draws under it: what leaves a level has its model's law under it, and that is what is tested above."""
    *_, large = three = models(toys, 7)
    for inner, outer, span, stage, k, chosen in each_of(CHAINS[:3]):
        policy = chain(toys, inner, outer, span, stage, chosen, sampling)
        found = law(toys, policy, three, length, k=max(k, 2), law=sampling)
        assert toys.distance(found, own(toys, large, length, sampling)) < 1e-12, f"{inner} {outer} {span}"


@pytest.mark.parametrize("length", [2, pytest.param(3, marks=SLOW)])
def test_an_exact_chain_of_four_has_the_clouds_own_law(toys, length):
    small, mid, large = models(toys, 7)
    four = small, mid, toys.Mix(mid, "next", 0.4), large
    stages = (ChainLevel(2, sampled("block"), AT_ONE, bonus=False), ChainLevel(2, sampled("exact"), AT_ONE))
    policy = replace(preset("exact", PolicyOptions(span=3, sampling=AT_ONE)), stages=stages)
    assert toys.distance(law(toys, policy, four, length, k=3), own(toys, large, length)) < 1e-12


QUICK_NAMES = ["exact", "kl", "u-hlm", "random"]


@pytest.mark.parametrize("names", [QUICK_NAMES, pytest.param(sorted(set(PRESETS) - {"greedy-exact"}), marks=SLOW)])
def test_a_sampled_chain_has_the_law_of_its_largest_local_model_alone(toys, names):
    """Lossy rules, too: what is above a chain cannot tell it from one model."""
    sampling = Sampling(1.0, seed=4)
    _, mid, large = three = models(toys, 7)
    stages = [
        ChainLevel(span, sampled(judge), sampling, bonus)
        for judge, span, bonus in (("block", 2, False), ("exact", 2, True))
    ]
    for name, chosen in each_of(itertools.product(names, ({"span": 2}, {"span": 3, "hold": 1}))):
        policy = preset(name, PolicyOptions(max_tokens=2, sampling=sampling, **chosen))
        ways = WAYS[:1] if names is QUICK_NAMES else ({}, {"told": False}, {"short": 1}, {"fails": lambda n: n == 2})
        for way, stage in each_of(itertools.product(ways, stages[: len(ways)])):
            alone = law(toys, policy, (mid, large), 2, k=2, **way)
            found = law(toys, replace(policy, stages=(stage,)), three, 2, k=2, **way)
            assert toys.distance(found, alone) < 1e-12, f"{name} {chosen} {way} {stage.judge}"


@each("inner", ["exact", "block", "kl"])
def test_no_coin_is_tossed_twice_in_a_chain(toys, inner):
    """A seeded coin falls alike for one key: two tosses of one key would be one."""
    small, mid, large = models(toys, 3, share=0.9)
    policy = preset("block", PolicyOptions(span=2, sampling=AT_ONE, cloud_top_k=3))
    policy = replace(policy, stages=(ChainLevel(2, sampled(inner), AT_ONE),))

    for seed in range(20):
        tossed, coin = [], SeededCoin(seed)

        def toss(probs, key=None, tossed=tossed, coin=coin):
            tossed.append(key or CoinKey(len(tossed), "cloud", 0))
            return coin(probs, tossed[-1])

        toys.play(policy, small, large, toss, LENGTH, mids=(mid,), keyed=True, end=-1)
        assert len(set(tossed)) == len(tossed) > LENGTH
