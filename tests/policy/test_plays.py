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
from told_plays import WAYS, choices_of, rounded, told

from hybrid.errors import UsageError
from hybrid.policy import PRESETS, CoinKey, PolicyOptions, SeededCoin, preset, with_stages
from hybrid.types import Sampling

RECORDED = json.loads(Path(__file__).with_name("plays.json").read_text("utf-8"))
LENGTH, SIZE = 12, 5
# How far the models are apart, and which token ends a text.
PAIRS = ((0.5, 4), (0.9, -1), (0.95, 4))
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0, seed=3), "cut": Sampling(0.7, top_p=0.8, seed=3)}


class Told(SeededCoin):
    """A seeded coin that keeps a note of its tosses; the cloud's own have no key."""

    def __init__(self, seed):
        super().__init__(seed)
        self.tosses = []

    def __call__(self, probs, key=None):
        key = key or CoinKey(len(self.tosses), "cloud", 0)
        self.tosses.append(f"{key[:3]} {rounded(max(probs))} {(index := super().__call__(probs, key))}")
        return index


@pytest.fixture(scope="module")
def pairs(toys):
    small = toys.Toy("small", SIZE)
    return [((small, toys.Mix(small, "large", share)), end) for share, end in PAIRS]


def plays(toys, pairs, name, sampling):
    """What is asked, shown and tossed by a preset: every choice over every pair, the ways to answer it in turn."""
    for number, ((pair, end), choices) in enumerate(itertools.product(pairs, choices_of(name, LENGTH))):
        try:
            policy = preset(name, PolicyOptions(sampling=sampling, max_tokens=LENGTH, **choices))
        except UsageError as refused:
            yield str(refused)
            continue
        policy = with_stages(policy, ())
        coin = None if sampling.greedy else Told(number)
        how = {"k": 3, "end": end, "law": sampling, "keyed": True, **WAYS[number % len(WAYS)]}
        shown, log = toys.play(policy, *pair, coin, LENGTH, **how)
        yield from map(told, [policy, *log, *shown])
        yield from () if coin is None else coin.tosses


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_preset_plays_as_it_was_recorded(toys, pairs, sampling):
    found = {
        name: hashlib.sha256("\n".join(plays(toys, pairs, name, SAMPLINGS[sampling])).encode()).hexdigest()[:16]
        for name in PRESETS
    }
    assert found == RECORDED[sampling], f"recorded was another play; now it is {json.dumps(found)}"
