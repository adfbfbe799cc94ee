"""Comparisons made by hand: answers that no model wrote, with what was asked and charged for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from event_streams import handoffs

from hybrid.lab import demo
from hybrid.lab.arms import Comparison, Plan, Trial
from hybrid.record.answer import Answer, Timing, Token, Usage
from hybrid.spend import Bill
from hybrid.tasks import FAMILIES, Problem


def _answer(*tokens: Token, requests=0, nanousd=0, degraded=None) -> Answer:
    cloud = sum(token.source == "cloud" for token in tokens)
    return Answer(
        text="".join(token.text for token in tokens),
        finish_reason="stop",
        tokens=tokens,
        usage=replace(Usage(*[0] * 9), local_tokens=len(tokens) - cloud, cloud_tokens=cloud, cloud_requests=requests),
        bill=Bill(nanousd, None),
        handoffs=handoffs(tokens),
        degraded=degraded,
        degraded_kind=None if degraded is None else "unreachable",
        notes=(),
        timing=Timing(1.0, 2.0),
        seed=0,
        policy="kl:0.5",
        guarantee="",
    )


@pytest.fixture
def answer():
    """Make an answer of tokens."""
    return _answer


@pytest.fixture
def compared():
    """Make a comparison of five families: ``right`` maps an arm's name to its graded problems, a string of 0 and 1.

    An arm that it does not name is as right as the small model.
    """

    def make(right, arms=demo.ARMS, answers=None, split="test"):
        count = len(next(iter(right.values())))
        plain = (_answer(Token(0, "yes", "local", "unchecked")),) * count
        trials = {
            arm.name: Trial(
                arm,
                (answers or {}).get(arm.name, plain),
                tuple(bit == "1" for bit in right.get(arm.name, right["small"])),
            )
            for arm in arms
        }
        problems = tuple(
            Problem(FAMILIES[number % 5].name, 1, f"What is {number}?", "", "", f"{number}") for number in range(count)
        )
        return Comparison(Plan(count, split, 7), problems, trials)

    return make
