"""Each rule of rules/ against a separate program written down without the loop, its limits, and what it guarantees.

Most rules decide each position by itself: their program is one choice between two tokens. ``bild`` is the exception.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from naive_divergence import law, naive_jensen_shannon, naive_kl, naive_overlap, naive_reverse, pairs
from naive_rules import accepted, undecided

from hybrid.policy import Choices, Place, preset
from hybrid.policy.drawing import Drawing
from hybrid.policy.gates import ALWAYS
from hybrid.policy.judges import Case
from hybrid.policy.requests import Check, Held, Write
from hybrid.policy.rules.bild import RollBack
from hybrid.prob import Additive, Dense, Greedy, Multiplicative, TopK, TopM, Typical, certificate, warp
from hybrid.types import Sampling

SIZE, LENGTH, NUM_PAIRS = 5, 12, 20
ALL = range(1, SIZE + 1)
SPANS = (1, 3, 8)
AT_ONE = Sampling(1.0)


@pytest.fixture(scope="module")
def pairs_of(toys):
    """Models on five tokens that part at many positions; their texts do not end early."""

    @lru_cache
    def made(share):
        smalls = [toys.Toy(f"small{i}", SIZE) for i in range(NUM_PAIRS)]
        return [(small, toys.Mix(small, f"large{i}", share)) for i, small in enumerate(smalls)]

    return made


@pytest.fixture
def both(pairs_of):
    return pairs_of(0.5)


@pytest.fixture
def written(toys):
    """What a policy shows of the greedy decoding of a pair."""

    def play(policy, pair, k=SIZE):
        return toys.play(policy, *pair, None, LENGTH, k=k, end=-1)[0]

    return play


def text(shown):
    return tuple(held.id for held in shown)


def walk(choose):
    """Write token by token."""
    shown = ()
    while len(shown) < LENGTH:
        shown += (choose(shown),)
    return shown


# ---- rules that choose between the two models' best tokens at each position ----------------------------------------


def stands(rule):
    """Whether the local model's best token is accepted by the cloud's row."""
    return lambda local, cloud: local.best in accepted(cloud.probs, rule)


def near(measure, threshold):
    return lambda local, cloud: measure(cloud.probs, local.probs) <= threshold


def undeferred(deferral, alpha):
    def keeps(local, cloud):
        best, other = local.probs.max(), cloud.probs.max()
        apart = np.abs(local.probs - cloud.probs).sum() / 2
        return best >= {"chow": 1 - alpha, "diff": other - alpha, "opt": other - alpha * apart}[deferral]

    return keeps


def certain(bound):
    """The nearest cloud row that has another favourite pools the two best tokens at their geometric mean."""

    def keeps(local, cloud):
        first, second = sorted(local.probs, reverse=True)[:2]
        return -math.log(1 - (math.sqrt(first) - math.sqrt(second)) ** 2) > bound or local.best == cloud.best

    return keeps


def unperturbed(limit):
    def keeps(local, cloud):
        agree = [warp(local, Sampling(t)).probs[local.best] for t in np.arange(1, 9) / 4]
        return 1 - np.mean(agree) <= limit or local.best == cloud.best

    return keeps


def below_certificate(share):
    rule = Multiplicative(share)
    return lambda local, cloud: naive_kl(cloud.probs, local.probs) < certificate(cloud, rule)


def naive_tv(target, draft):
    return 1 - naive_overlap(target, draft)


SHOWN = (1, 2, SIZE)
WHOLE = (SIZE,)
# How the policy is called, when the local token is kept, and the top k from which that is known.
RULES = {
    "fsd 0.1": ("fsd", {"threshold": 0.1}, near(naive_jensen_shannon, 0.1), WHOLE),
    "fsd 0.02 strict": ("fsd", {"threshold": 0.02, "strict": True}, near(naive_jensen_shannon, 0.02), WHOLE),
    "kl": ("fsd", {"judge": "kl:0.2"}, near(naive_kl, 0.2), WHOLE),
    "reverse kl": ("fsd", {"judge": "reverse-kl:0.2"}, near(naive_reverse, 0.2), WHOLE),
    "js": ("relaxed", {"judge": "js:0.05"}, near(naive_jensen_shannon, 0.05), WHOLE),
    "tv": ("relaxed", {"judge": "tv:0.25"}, near(naive_tv, 0.25), WHOLE),
    "relaxed": ("relaxed", {"threshold": 0.6}, stands(Multiplicative(0.6)), SHOWN),
    "additive": ("relaxed", {"judge": "additive:0.1"}, stands(Additive(0.1)), SHOWN),
    "multiplicative": ("fsd", {"judge": "multiplicative:0.8"}, stands(Multiplicative(0.8)), SHOWN),
    "top-m": ("relaxed", {"judge": "top-m:2"}, stands(TopM(2)), (2, 3, SIZE)),
    "typical": ("relaxed", {"judge": "typical:0.5"}, stands(Typical(0.5, math.sqrt(0.5))), WHOLE),
    "greedy": ("relaxed", {"judge": "greedy"}, stands(Greedy()), SHOWN),
    "certified judge": ("relaxed", {"judge": "certified:0.7"}, below_certificate(0.7), WHOLE),
    "certified": ("certified", {"threshold": 0.05}, certain(0.05), SHOWN),
    "cascade": ("cascade", {"threshold": 0.3}, undeferred("opt", 0.3), WHOLE),
    "cascade-chow": ("cascade", {"judge": "cascade-chow:0.5"}, undeferred("chow", 0.5), SHOWN),
    "cascade-diff": ("cascade", {"judge": "cascade-diff:0.1"}, undeferred("diff", 0.1), SHOWN),
    "u-hlm": ("u-hlm", {"threshold": 0.4}, unperturbed(0.4), SHOWN),
}


@pytest.mark.parametrize("called", RULES)
def test_a_rule_equals_a_separate_naive_program(both, written, called):
    """Whatever the span, and from as few shown tokens as it needs."""
    name, choices, keeps, shown_k = RULES[called]
    kept = set()
    for small, large in both:

        def choose(prefix, small=small, large=large):
            kept.add(keeps(small(prefix), large(prefix)) and small(prefix).best != large(prefix).best)
            return (small if keeps(small(prefix), large(prefix)) else large)(prefix).best

        expected = walk(choose)
        for k, span in [*((k, 3) for k in shown_k), (SIZE, 1), (SIZE, 8)]:
            assert text(written(preset(name, Choices(span=span, **choices)), (small, large), k)) == expected
    assert kept == ({False} if "greedy" in called else {True, False})  # it is neither model's text
