"""Sampled at temperature 1, exact rules draw what the large model draws: the bundled pair, llama.cpp and HTTP.

A two-sample test against the large model drawing by itself; the same test at the same n and level turns down three
wrong variants.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from acting import acting
from cases import each
from wrong_judges import AcceptsEverything, ForgetsTheTail

import hybrid
from hybrid.policy import PRESETS, Preset, preset
from hybrid.policy.judges import Verdict
from hybrid.policy.rules.exact import ExactSampling
from hybrid.policy.target_sampler import TargetSampler
from hybrid.tasks import FAMILIES, distinct

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Freely worded families: their first tokens are drawn. Rows of two tokens leave a tail that matters.
QUESTIONS = [
    next(iter(distinct(family, "test", 1, seed=3))).question
    for family in FAMILIES
    if family.name in {"word_problem", "equation", "ordering", "units"}
]
# The subtlest of the wrong variants has p = 0.0035 at n = 75 and 0.0002 at 100.
N, LENGTH, TOP_K, LEVEL, DRAWS = 100, 6, 2, 0.005, 4000


def p_value(ours, theirs, rng):
    """Two-sample permutation test of the summed chi-squared statistics of several questions' texts, N each.

    How many of each text a random half of both samples holds is multivariate hypergeometric.
    """
    statistic = np.zeros(1 + DRAWS)  # the first is what was seen
    for one, other in zip(ours, theirs, strict=True):
        first, both = Counter(one), Counter(one + other)
        pooled = np.array([both[key] for key in sorted(both)])
        half = rng.multivariate_hypergeometric(pooled, len(one), DRAWS)
        half = np.vstack([[first[key] for key in sorted(both)], half])
        statistic += ((2 * half - pooled) ** 2 / pooled).sum(axis=1)
    return np.mean(statistic >= statistic[0] - 1e-9)  # sums of the same numbers in another order are the same


@pytest.fixture(scope="module")
def direct(oracles):
    """N texts of each question, drawn by the large model itself."""
    rng = np.random.default_rng(17)
    return [[oracles[1].sample(question, rng, LENGTH) for _ in range(N)] for question in QUESTIONS]


# Ends a draft where the words are free, so that the cloud's row there gives the token: what is drawn from a list alone.
ASKS_FIRST = "max-prob:0.9:check"


def sampled(stub, policy, gate=None):
    """N texts of each question under a policy, each with a seed of its own."""
    settings = {"temperature": 1.0, "max_tokens": LENGTH, "cloud_top_k": TOP_K}
    with hybrid.open(local="small", cloud=stub.url, **acting(policy, span=3, gate=gate), **settings) as client:
        return [
            [tuple(t.id for t in client.generate(question, seed=seed).tokens) for seed in range(N)]
            for question in QUESTIONS
        ]


@each(
    ("policy", "gate"),
    [("exact", None), ("block", ASKS_FIRST), ("cloud", None)],
)
def test_sampled_text_passes_a_two_sample_test_against_the_large_model(stub, direct, policy, gate):
    found = p_value(sampled(stub, policy, gate), direct, np.random.default_rng(5))
    print(f"{policy}, gate {gate}: p = {found:.4f} at n = {N} for each of {len(QUESTIONS)} questions")
    assert found > LEVEL


@dataclass(frozen=True)
class Drops(ExactSampling):
    """Forgets a drawn token that it finds unlikely, and has it drawn again."""

    def __call__(self, case):
        for i, (held, _) in enumerate(case.judged):
            if i == 0 and held.drawn_from.probs[held.id] < 0.3:
                return Verdict((), None, rejected=True, why="wrong")
        return super().__call__(case)


@pytest.mark.parametrize(("judge", "gate"), [(AcceptsEverything, None), (ForgetsTheTail, ASKS_FIRST), (Drops, None)])
def test_the_same_test_turns_down_wrong_variants(stub, direct, judge, gate, monkeypatch):
    def make(choices, _):
        return replace(preset("exact", choices), judge=judge(TargetSampler(choices.sampling)))

    monkeypatch.setitem(PRESETS, "wrong", Preset("wrong", "wrong", source="nobody", make=make))
    found = p_value(sampled(stub, "wrong", gate), direct, np.random.default_rng(5))
    print(f"{judge.__name__}: p = {found:.4f}")
    assert found < LEVEL
