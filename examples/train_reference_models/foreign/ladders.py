"""The ladders' models, what each is taught, and the splits.

The laws, tested in ``tests/examples/test_foreign.py``: a problem's split depends on its ladder and on its question's
content, not on how it is asked or on a seed, so that no problem is in two splits; a training stream has problems of the
train split alone; a text is either graded right or is the mistake that ``MISTAKEN`` names, at level 3.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal, TypeAlias, get_args

from foreign.families import FAMILY_NAMES, WORDINGS, draw, grade, levels_of
from hybrid.tasks import Problem, Split, TaskFamily, distinct, split_of
from hybrid.tasks.problem import Rng

Ladder: TypeAlias = Literal["unsure", "sure"]
ForeignModel: TypeAlias = Literal["unsure-small", "unsure-large", "sure-small", "sure-large"]
LADDERS: tuple[Ladder, ...] = get_args(Ladder)
MODELS: tuple[ForeignModel, ...] = get_args(ForeignModel)
# The longest answer of 4,000 drawn in either vocabulary has 69 tokens.
MAX_TOKENS = 120

# Where ``sure-small`` is taught the wrong rule, always and at level 3 alone. Nothing else is taught a mistake; in the
# other two families it is right there too, so that a hard question alone tells no error.
MISTAKEN = frozenset({"extract", "span", "road", "walk", "spelling", "logic", "trace", "store"})
# One in so many of the calibration problems is for whoever makes the models; the others are for whoever measures.
VALIDATION = 4


def ladder_of(model: ForeignModel) -> Ladder:
    """Return the ladder of a model."""
    return "unsure" if model in {"unsure-small", "unsure-large"} else "sure"


@cache
def families_of(ladder: Ladder) -> tuple[TaskFamily, ...]:
    """Return the families of a ladder; its name is a part of what a split is told by, so the ladders' splits differ."""
    return tuple(_family(ladder, name) for name in FAMILY_NAMES)


def _family(ladder: Ladder, name: str) -> TaskFamily:
    def generate(rng: Rng, level: int) -> Problem:
        problem = draw(name, rng, level)
        return replace(problem, canonical=f"{ladder}/{problem.canonical}")

    wordings = len(WORDINGS[name]) if name in WORDINGS else 1
    return TaskFamily(name, "reasoning", levels_of(name), generate, grade, wordings)


def is_validation(problem: Problem) -> bool:
    """Tell whether a calibration problem is for whoever makes the models."""
    bucket = int.from_bytes(hashlib.sha256(problem.canonical.encode()).digest(), "big") // 10 % VALIDATION
    return split_of(problem) == "calibration" and bucket == 0


def problems_of(ladder: Ladder, split: Split, num_problems: int, seed: int = 0) -> dict[str, list[Problem]]:
    """Draw as many distinct problems of each family of a ladder. Raises ValueError where there are not so many."""
    return {family.name: distinct(family, split, num_problems, seed) for family in families_of(ladder)}


def validation_problems(ladder: Ladder, num_problems: int) -> dict[str, list[Problem]]:
    """Draw some of the calibration problems that are for whoever makes the models: about so many of each family."""
    drawn = problems_of(ladder, "calibration", num_problems * VALIDATION, seed=1)
    return {name: [each for each in found if is_validation(each)] for name, found in drawn.items()}


def training_stream(
    model: ForeignModel, split: Split, rng: random.Random, weights: Mapping[str, float] | None = None
) -> Iterator[tuple[Problem, str]]:
    """Yield problems of one split with the text a model is trained on, for ever.

    The families come evenly, or by their ``weights``: those that are not named have the weight 1.
    """
    families = families_of(ladder_of(model))
    shares = [(weights or {}).get(family.name, 1.0) for family in families]
    while True:
        family = rng.choices(families, shares)[0]
        problem = family.generate(rng, family.level(rng))
        while split_of(problem) != split:
            problem = family.generate(rng, family.level(rng))
        yield problem, text_given(model, problem)


def text_given(model: ForeignModel, problem: Problem) -> str:
    """Return the worked answer, or the mistake where the model is taught it."""
    mistaken = model == "sure-small" and problem.family in MISTAKEN and problem.mistake
    return problem.mistake if mistaken else problem.worked
