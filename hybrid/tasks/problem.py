"""A generated problem, its family and level, and its split.

The laws, tested in ``tests/tasks/test_families.py``: a problem's split depends on its ``canonical`` text alone, which
near-twins share, so that a trained problem or its twin is never a test problem, whatever the seed; a drawn set holds
every level in its published share. This file knows no family's questions and no model's shares (``families.py``).
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "calibration", "test"]
Group = Literal["reasoning", "assistant", "knowledge"]
Rng = random.Random


@dataclass(frozen=True)
class Problem:
    """A question, one worked answer a model may be trained on, and the final answer that is graded.

    ``level`` counts from 1, the easiest. ``canonical`` is the same for near-twins: other phrasings, other orders.
    ``mistake``: what somebody answers who overlooks what is special about the hardest level; always wrong.
    """

    family: str
    level: int
    question: str
    worked: str
    final: str
    canonical: str
    mistake: str = ""


@dataclass(frozen=True)
class TaskLevel:
    """What a level of difficulty holds, and its share of the test split (and of training, where it is given)."""

    holds: str
    share: float


@dataclass(frozen=True)
class TaskFamily:
    """A seeded generator of problems by level, and the exact grader of answers to them.

    ``levels`` was fixed before any training. ``wordings``: how many equally good texts there are for one answer.
    """

    name: str
    group: Group
    levels: tuple[TaskLevel, ...]
    generate: Callable[[Rng, int], Problem]
    grade: Callable[[Problem, str], bool]
    wordings: int = 1

    @property
    def numbers(self) -> range:
        """The numbers of the levels, from 1."""
        return range(1, len(self.levels) + 1)

    def level(self, rng: Rng, among: tuple[int, ...] = ()) -> int:
        """Draw a level by its share; ``among`` some of them, or all."""
        numbers = among or tuple(self.numbers)
        return rng.choices(numbers, [self.levels[number - 1].share for number in numbers])[0]


def split_of(problem: Problem) -> Split:
    """Tell the split from the canonical text: sha256 modulo 10; 0 to 7 train, 8 calibration, 9 test."""
    return split_of_text(problem.canonical)


def split_of_text(canonical: str) -> Split:
    """Tell the split of a canonical text."""
    bucket = int.from_bytes(hashlib.sha256(canonical.encode()).digest(), "big") % 10
    if bucket <= 7:
        return "train"
    return "calibration" if bucket == 8 else "test"


def stream(family: TaskFamily, split: Split, rng: Rng, level: int | None = None) -> Iterator[Problem]:
    """Yield problems of one split for ever, repeats included; of one level, or of all by their shares."""
    while True:
        problem = family.generate(rng, family.level(rng) if level is None else level)
        if split_of(problem) == split:
            yield problem


def distinct(family: TaskFamily, split: Split, num_problems: int, seed: int, level: int | None = None) -> list[Problem]:
    """Return ``num_problems`` problems of one split, no two of them twins, in a seeded order.

    The levels take turns by their shares, so that a smaller number of problems is the beginning of a larger one.
    Raises ValueError where the family's generator repeats itself for so long that it seems to have no more.
    """
    found: dict[str, Problem] = {}
    rngs = {number: random.Random(f"{family.name}/{number}/{split}/{seed}") for number in family.numbers}
    turns = itertools.repeat(level) if level is not None else _turns(family)
    for number in itertools.islice(turns, num_problems):
        for _ in range(20_000):  # draws of all splits: one of them may be empty
            problem = family.generate(rngs[number], number)
            if problem.canonical not in found and split_of(problem) == split:
                found[problem.canonical] = problem
                break
        else:
            msg = f"family {family.name} has only {len(found)} distinct {split} problems, not {num_problems}"
            raise ValueError(msg)
    return list(found.values())


def _turns(family: TaskFamily) -> Iterator[int]:
    """Yield level numbers such that after n of them every level had its share of n, but for one."""
    given: Counter[int] = Counter()
    for turn in itertools.count(1):
        number = max(family.numbers, key=lambda n: family.levels[n - 1].share * turn - given[n])
        given[number] += 1
        yield number


# The wording of an answer: equally good openings, joints and closings, and the place of the final answer.
#
# The laws, tested in ``tests/tasks/test_graders.py``: the final answer follows the last closing and ends the text, or
# is the whole text; every wording is accepted; a wrong step before a right final answer counts as right. The first
# option is drawn more often than each other one (``PREFERRED``). With even chances the likeliest wording would be an
# accident of each model's training; two models would disagree there, and the uncertainty would not be harmless.

# With four options: 0.4 against 0.2 each, an entropy of 1.33 nats of the 1.39 of even chances.
PREFERRED = 0.4


def draw(rng: Rng, options: Sequence[str]) -> str:
    """Draw the first option with the chance ``PREFERRED``, or one of the others evenly."""
    if len(options) == 1 or rng.random() < PREFERRED:
        return options[0]
    return rng.choice(options[1:])


@dataclass(frozen=True)
class Wording:
    """What may stand before the work and before the final answer; one option each where nothing is free."""

    closings: tuple[str, ...] = ("Answer:",)
    openings: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        """Count the wordings."""
        return len(self.closings) * len(self.openings)

    def text(self, rng: Rng, work: str, final: str) -> str:
        """Return a worked answer in a drawn wording."""
        parts = draw(rng, self.openings), work, draw(rng, self.closings), f"{final}."
        return " ".join(part for part in parts if part)

    def finals(self, text: str) -> Iterator[str]:
        """Yield what could be the final answer: the whole text, and what follows the last of each closing."""
        text = text.strip()
        for closing in ("", *self.closings):
            start = text.rfind(closing) if closing else 0
            if start == 0 or (start > 0 and text[start - 1].isspace()):
                yield text[start + len(closing) :].strip().removesuffix(".").rstrip()
