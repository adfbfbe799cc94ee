"""A policy of one local model plays as it did before there were chains: requests, tokens and coins, by their hash.

``plays.json`` was recorded from the loop of two models. A test that fails here is a change of what users have: a seeded
answer that no longer repeats, or a trace that no longer replays. Where that is meant, the failure shows what to record.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import pytest
from toy_score import ToyScore

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, CoinKey, Policy, PolicyOptions, SeededCoin, preset
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.policy.requests import Check, Draft, Emit, Write
from hybrid.spend import AskPrices
from hybrid.types import Sampling

RECORDED = json.loads(Path(__file__).with_name("plays.json").read_text("utf-8"))
LENGTH, SIZE = 12, 5
# How far the models are apart, and which token ends a text.
PAIRS = ((0.5, 4), (0.9, -1), (0.95, 4))
# The last digits of a logarithm are a processor's own. Of a thousand numbers one rounds differently in 10^7 runs.
DIGITS = 6
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0, seed=3), "cut": Sampling(0.7, top_p=0.8, seed=3)}
WAYS = ({}, {"told": False}, {}, {"short": 1}, {"fails": lambda n: n == 2}, {}, {"fails": lambda n: n >= 3})
CHOICES = ({}, {"span": 2}, {"lead": 2}, {"hold": 3}, {"bonus": True, "span": 3})
PLANNED = (
    {"worth": Worth(0.0)},
    {"worth": Worth(2.0)},
    {"worth": Worth(1e6)},
    {"worth": Worth(2.0), "block": 4, "stream": "blocks", "floor": 0.5, "floor_key": 0.25},
    {"worth": Worth(2.0), "stream": "early"},
)


def number(value) -> str:
    return f"{value:.{DIGITS}g}"


def told(value) -> str:
    """A request, a token or a toss in words: only what was there before chains, each number rounded."""
    match value:
        case Policy():
            return str(value)
        case Draft():
            return f"draft {value.at} {value.limit} {value.gate} {value.wants_next_row} {value.rejections}"
        case Check():
            span = [told(token) for token in value.span]
            return f"check {value.at} {span} {value.wants_next_row} {planned(value.plan)}"
        case Write():
            how = (value.wants_draft_rows, value.wants_target_rows, value.note, planned(value.plan))
            return f"write {value.at} {value.limit} {sorted(value.ban)} {how}"
        case Emit():
            return f"emit {[told(token) for token in value.tokens]} {planned(value.plan)} {value.judged}"
    nats = None if value.kl is None else number(value.kl.lower)
    certificate = None if value.certificate is None else number(value.certificate)
    rows = [None if row is None else number(row.logprobs[0]) for row in (value.draft_row, value.target_row)]
    law = None if value.drawn_from is None else number(value.drawn_from.probs.max())
    return f"{value.id} {value.source} {value.how} {nats} {value.why} {certificate} {rows} {law}"


def planned(plan) -> object:
    return plan and (plan.action, plan.at, plan.limit, plan.why)


class Told(SeededCoin):
    """A seeded coin that keeps a note of its tosses; the cloud's own have no key."""

    def __init__(self, seed):
        super().__init__(seed)
        self.tosses = []

    def __call__(self, probs, key=None):
        key = key or CoinKey(len(self.tosses), "cloud", 0)
        self.tosses.append(f"{key[:3]} {number(max(probs))} {(index := super().__call__(probs, key))}")
        return index


@pytest.fixture(scope="module")
def pairs(toys):
    small = toys.Toy("small", SIZE)
    return [((small, toys.Mix(small, "large", share)), end) for share, end in PAIRS]


def choices_of(name):
    """Each policy as it stands and otherwise composed; a planner with what it decides by, too."""
    yield from CHOICES
    if name in {"auto", "route"}:
        prices = AskPrices(1.0, 0.5, 2.0, closing=1.0)
        for changed in PLANNED:
            score = ToyScore(hazard=(0.05,) * LENGTH, excess=(0.02,) * LENGTH)
            yield {"planner": Planner(score=score, prices=prices, prompt_tokens=7, **changed)}


def plays(toys, pairs, name, sampling):
    """What is asked, shown and tossed by a preset: every choice over every pair, the ways to answer it in turn."""
    for number, ((pair, end), choices) in enumerate(itertools.product(pairs, choices_of(name))):
        try:
            policy = preset(name, PolicyOptions(sampling=sampling, max_tokens=LENGTH, **choices))
        except UsageError as refused:
            yield str(refused)
            continue
        coin = None if sampling.greedy else Told(number)
        how = {"k": 3, "end": end, "law": sampling, "keyed": True, **WAYS[number % len(WAYS)]}
        shown, log = toys.play(policy, *pair, coin, LENGTH, **how)
        yield from map(told, [policy, *log, *shown])
        yield from () if coin is None else coin.tosses


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_preset_plays_as_it_was_recorded(toys, pairs, sampling):
    found = {
        name: hashlib.sha256("\n".join(plays(toys, pairs, name, SAMPLINGS[sampling])).encode()).hexdigest()[:16]
        for name in PRESETS
    }
    assert found == RECORDED[sampling], f"recorded was another play; now it is {json.dumps(found)}"
