"""The laws of the decoding rules on the bundled pair, through llama.cpp and HTTP.

Greedy: token for token on 200 prompts. Sampled at temperature 1: a two-sample test against the large model drawing by
itself, and the same test at the same n and level turns down three wrong variants.
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

# 14 families: 15 each of the first four, 14 each of the others.
PROMPTS = [
    problem.question
    for number, family in enumerate(FAMILIES)
    for problem in distinct(family, "test", 14 + (number < 4), seed=11)
]
MAX_TOKENS = 40


@pytest.fixture(scope="module")
def greedy_texts(oracles):
    """The large model's own, with where a near tie makes another one as good."""
    return [oracles[1].text(question, MAX_TOKENS) for question in PROMPTS]


@each(
    ("policy", "choices"),
    [
        ("greedy-exact", {}),
        ("exact", {}),
        ("block", {}),
        ("kl", {"threshold": 0.0}),
        ("relaxed", {"threshold": 1.0}),
        ("greedy-exact", {"gate": "survival:0.5", "span": 32}),
    ],
    ids=str,
)
def test_greedy_rules_give_the_large_models_text_on_200_prompts(stub, greedy_texts, policy, choices):
    assert len(PROMPTS) == 200
    parted = 0
    with hybrid.open(cloud=stub.url, max_tokens=MAX_TOKENS, policy=policy, **choices) as client:
        for question, (expected, tie) in zip(PROMPTS, greedy_texts, strict=True):
            got = tuple(token.id for token in client.generate(question).tokens)
            parted += got != expected
            assert got[:tie] == expected[:tie], question
    print(f"{policy}: {parted} of {len(PROMPTS)} texts part, each at a near tie")
    assert parted <= 20


# ---- sampled -------------------------------------------------------------------------------------------------------

# Freely worded families: their first tokens are drawn. Rows of two tokens leave a tail that matters.
QUESTIONS = [
    next(iter(distinct(family, "test", 1, seed=3))).question
    for family in FAMILIES
    if family.name in {"word_problem", "equation", "ordering", "units"}
]
N, LENGTH, TOP_K, LEVEL, DRAWS = 150, 6, 2, 0.005, 4000


def p_value(ours, theirs, rng):
    """Two-sample permutation test of the summed chi-squared statistics of several questions' texts, N each."""

    def statistic(first, second):
        keys = sorted({*first, *second})
        a, b = (np.array([found[key] for key in keys], dtype=float) for found in (first, second))
        return float((((a - b) ** 2) / (a + b)).sum())

    def shuffled(one, other):
        pool = one + other
        order = rng.permutation(len(pool))
        return [pool[i] for i in order[: len(one)]], [pool[i] for i in order[len(one) :]]

    seen = sum(statistic(Counter(a), Counter(b)) for a, b in zip(ours, theirs, strict=True))
    above = 0
    for _ in range(DRAWS):
        parts = [shuffled(a, b) for a, b in zip(ours, theirs, strict=True)]
        above += sum(statistic(Counter(a), Counter(b)) for a, b in parts) >= seen
    return (above + 1) / (DRAWS + 1)


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
    with hybrid.open(cloud=stub.url, **acting(policy, span=3, gate=gate), **settings) as client:
        return [
            [tuple(t.id for t in client.generate(question, seed=seed).tokens) for seed in range(N)]
            for question in QUESTIONS
        ]


@each(
    ("policy", "gate"),
    [("exact", None), ("exact", ASKS_FIRST), ("block", None), ("block", ASKS_FIRST), ("cloud", None)],
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
