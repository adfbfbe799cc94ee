"""Greedy, every exact rule gives the large model's own text, token for token: the bundled pair, llama.cpp and HTTP."""

from __future__ import annotations

from collections import Counter

import pytest
from cases import each

import hybrid
from hybrid.tasks import FAMILIES, distinct

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Eight of each of 14 families, which take turns.
BY_FAMILY = [[problem.question for problem in distinct(family, "test", 8, seed=11)] for family in FAMILIES]
PROMPTS = [questions[i] for i in range(8) for questions in BY_FAMILY]
MAX_TOKENS = 40
# The first rule and the first chain are asked all; the others, which differ in when they ask, four of each family.
FEWER = 4 * len(FAMILIES)


@pytest.fixture(scope="module")
def greedy_texts(oracles):
    """The large model's own, with where a near tie makes another one as good."""
    return [oracles[1].text(question, MAX_TOKENS) for question in PROMPTS]


def check_texts(stub, expected_texts, policy, choices):
    """Compare as many texts as are expected, from the first prompt on; return how many tokens each model wrote."""
    parted, written_by = 0, Counter()
    choices = {"local": "small", "cloud": stub.url, "max_tokens": MAX_TOKENS, **choices}
    with hybrid.open(policy=policy, **choices) as client:
        for question, (expected, tie) in zip(PROMPTS, expected_texts, strict=False):
            answer = client.generate(question)
            got = tuple(token.id for token in answer.tokens)
            written_by += Counter(token.model for token in answer.tokens)
            parted += got != expected
            assert got[:tie] == expected[:tie], question
    print(f"{policy}: {parted} of {len(expected_texts)} texts part, each at a near tie")
    assert parted <= len(expected_texts) // 10
    return written_by


@each(
    ("num", "policy", "choices"),
    [
        (len(PROMPTS), "greedy-exact", {}),
        (FEWER, "kl", {"threshold": 0.0}),
        (FEWER, "greedy-exact", {"gate": "survival:0.5", "span": 32}),
    ],
    ids=str,
)
def test_greedy_rules_give_the_large_models_text_on_eight_prompts_of_each_family(
    stub, greedy_texts, num, policy, choices
):
    assert len(greedy_texts) == 8 * 14
    check_texts(stub, greedy_texts[:num], policy, choices)


@each(("policy", "choices"), [("exact", {}), ("block", {}), ("relaxed", {"threshold": 1.0})], ids=str)
def test_at_temperature_zero_rules_that_sample_give_it_too_on_two_prompts_of_each_family(
    stub, greedy_texts, policy, choices
):
    """At temperature 0 they check as greedy-exact does, and are enumerated in ``tests/policy``."""
    check_texts(stub, greedy_texts[: 2 * len(BY_FAMILY)], policy, choices)


@each(
    ("num", "policy", "choices"),
    [
        (len(PROMPTS), "greedy-exact", {"chain": "small>mid"}),
        (FEWER, "greedy-exact", {"chain": "small*8>mid", "span": 16}),
        (FEWER, "block", {"chain": "small*1>mid", "bonus": False}),
    ],
    ids=str,
)
def test_a_greedy_chain_gives_the_large_models_text_on_eight_prompts_of_each_family(
    stub, greedy_texts, num, policy, choices
):
    """The small model drafts for the middle one, which drafts for the large one; each is seen to have written."""
    assert len(greedy_texts[:num]) == num
    choices = {"local": "mid", "drafters": ("small",), **choices}
    written_by = check_texts(stub, greedy_texts[:num], policy, choices)
    print(f"{policy} {choices}: {dict(written_by)}")
    assert min(written_by["small"], written_by["mid"], written_by.total() - written_by["small"] - written_by["mid"]) > 0
