"""One generated problem, and which split it belongs to.

The law: a problem's split depends on its question alone, so a problem seen in training can never be a test problem,
whatever the seed was (``tests/bench/test_tasks.py``).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "calibration", "test"]
Rng = random.Random


@dataclass(frozen=True)
class Problem:
    """A question, the worked answer a model is trained on, and the final answer that is graded."""

    family: str
    question: str
    worked: str
    final: str


@dataclass(frozen=True)
class Family:
    """A seeded generator of problems and the exact grader of answers to them."""

    name: str
    generate: Callable[[Rng], Problem]
    grade: Callable[[Problem, str], bool]


def split_of(problem: Problem) -> Split:
    """Tell the split from the question: sha256 modulo 10; 0 to 7 train, 8 calibration, 9 test."""
    bucket = int.from_bytes(hashlib.sha256(problem.question.encode()).digest(), "big") % 10
    if bucket <= 7:
        return "train"
    return "calibration" if bucket == 8 else "test"


def stream(family: Family, split: Split, rng: Rng) -> Iterator[Problem]:
    """Yield problems of one split for ever, repeats included."""
    while True:
        problem = family.generate(rng)
        if split_of(problem) == split:
            yield problem


def distinct(family: Family, split: Split, num_problems: int, seed: int) -> list[Problem]:
    """Return ``num_problems`` different problems of one split, in a seeded order.

    Raises ValueError where the family's generator repeats itself for so long that it seems to have no more.
    """
    found: dict[str, Problem] = {}
    rng = random.Random(f"{family.name}/{split}/{seed}")
    for _ in range(1000 * num_problems + 10_000):  # draws of all splits: one of them may be empty
        if len(found) == num_problems:
            return list(found.values())
        problem = family.generate(rng)
        if split_of(problem) == split:
            found.setdefault(problem.question, problem)
    msg = f"family {family.name} has only {len(found)} distinct {split} problems, not {num_problems}"
    raise ValueError(msg)
