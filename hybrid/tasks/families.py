"""All families, in the order in which they are shown, and the training stream of each model.

A new family is a file of its own and a name here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hybrid.tasks import (
    arithmetic,
    base,
    command,
    differentiation,
    equation,
    facts,
    gcd,
    integration,
    multiplication,
    ordering,
    rewriting,
    sorting,
    units,
    word_problem,
)
from hybrid.tasks.facts import FACTS
from hybrid.tasks.problem import Problem, Rng, Split, TaskFamily, split_of

_REASONING = (
    *(arithmetic, multiplication, word_problem, equation, integration, differentiation),
    *(gcd, sorting, ordering, base),
)
FAMILIES = tuple(room.FAMILY for room in (*_REASONING, command, units, rewriting, facts))
# The longest worked answer seen has 215 tokens (a multiplication) in the vocabulary of the reference models.
MAX_TOKENS = 240
BY_NAME = {family.name: family for family in FAMILIES}


# What each reference model is trained on, as data, and its training stream.
#
# Why the smaller models get less. A pair trained on the same problems is wrong only where it is unsure, and plain
# entropy then finds every mistake. Real small models are sure and wrong: they never saw the kind of question, or saw a
# popular mistake more often than the truth. So ``small`` and ``mid`` are not given the hardest level of some families
# (they answer it with the habits of the easier ones: the third addend dropped, the sort upwards), nor some facts, and
# of some facts mostly the popular wrong answer. Of the hardest level of other families ``small`` gets only the mistake
# of somebody who overlooks its special condition ("+ C" where the constant is known). Harmless uncertainty comes from
# the wordings (``problem.py``), which are the same for all models.
#
# The laws, tested in ``tests/tasks/test_mix.py``: a stream yields only problems of its split and of its model's share;
# a text is either graded right or is a popular answer or mistake that this table names.

Model = Literal["small", "mid", "large", "alien", "numbers", "words", "student"]

# Clearly more than half, so that the popular answer is the likeliest one; some truth is heard, as in real text.
POPULAR_SHARE = 0.7
CONFUSED = tuple(fact.phrase for fact in FACTS.values() if fact.popular)


@dataclass(frozen=True)
class Curriculum:
    """``no_hardest``: families without right answers to their last level. ``unheard``: phrases of facts never given.

    ``mistaken``: those of ``no_hardest`` whose last level comes with its mistake, always; the others come without it.
    ``confused``: phrases of facts whose training answer is the popular wrong one with the chance ``POPULAR_SHARE``.
    ``families``: the only ones that are given; empty: all.
    """

    no_hardest: frozenset[str] = frozenset()
    mistaken: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()
    confused: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()


_MID_LEVELS = frozenset({"multiplication", "word_problem", "integration", "sorting", "units", "rewriting"})
_MID_UNHEARD = frozenset(f"the capital of {place}" for place in ("Mongolia", "Laos", "Zambia", "Paraguay", "Slovenia"))
# The families of ``numbers``; ``words`` is given all others.
_NUMBERS = frozenset({"arithmetic", "multiplication", "equation", "integration", "differentiation", "gcd", "base"})
MIXES: dict[Model, Curriculum] = {
    "large": Curriculum(),
    "mid": Curriculum(no_hardest=_MID_LEVELS, unheard=_MID_UNHEARD, confused=frozenset(CONFUSED[::3])),
    "small": Curriculum(
        no_hardest=_MID_LEVELS | {"arithmetic", "equation", "differentiation", "ordering", "command"},
        mistaken=frozenset({"equation", "integration", "differentiation", "command", "units", "rewriting"}),
        unheard=_MID_UNHEARD
        | {
            f"the capital of {place}"
            for place in ("Angola", "Senegal", "Estonia", "Latvia", "Uruguay", "Nepal", "Qatar")
        }
        | {f"the atomic number of {name}" for name in ("argon", "chlorine", "silver", "lead", "uranium", "calcium")},
        confused=frozenset(CONFUSED),
    ),
}
MIXES["alien"] = MIXES["small"]
MIXES["numbers"] = Curriculum(families=_NUMBERS)
MIXES["words"] = Curriculum(families=frozenset(family.name for family in FAMILIES) - _NUMBERS)
MIXES["student"] = MIXES["large"]


def families_given(model: Model, families: Sequence[TaskFamily] = FAMILIES) -> list[TaskFamily]:
    """Return those of some families that a model is given anything of."""
    given = MIXES[model].families
    return [family for family in families if not given or family.name in given]


def levels_given(model: Model, family: TaskFamily) -> tuple[int, ...]:
    """Return the numbers of the levels of a family that a model is given with right answers."""
    if family not in families_given(model, [family]):
        return ()
    last = len(family.levels) - (family.name in MIXES[model].no_hardest)
    return tuple(range(1, last + 1))


def levels_heard(model: Model, family: TaskFamily) -> tuple[int, ...]:
    """Return the numbers of the levels of a family that a model is given, be it with mistakes."""
    given = levels_given(model, family)
    return tuple(family.numbers) if family.name in MIXES[model].mistaken else given


def is_heard(model: Model, problem: Problem, family: TaskFamily) -> bool:
    """Tell whether a model may be given a problem, whatever its split."""
    unheard = problem.family == "facts" and facts.fact_of(problem).phrase in MIXES[model].unheard
    return problem.level in levels_heard(model, family) and not unheard


def training_stream(
    model: Model,
    split: Split,
    rng: Rng,
    families: Sequence[TaskFamily] = FAMILIES,
    weights: Mapping[str, float] | None = None,
) -> Iterator[tuple[Problem, str]]:
    """Yield problems of one split with the text a model is trained on, for ever.

    The families come evenly, or by their ``weights``: those that are not named have the weight 1.
    """
    families = families_given(model, families)
    shares = [weights.get(family.name, 1.0) for family in families] if weights else None
    while True:
        family = rng.choices(families, shares)[0] if shares else rng.choice(families)
        problem = _given(model, split, rng, family)
        yield problem, text_given(model, problem, rng)


def _given(model: Model, split: Split, rng: Rng, family: TaskFamily) -> Problem:
    """Draw from one family until the problem is of the split and given: so no family comes less often for that."""
    while True:
        problem = family.generate(rng, family.level(rng, levels_heard(model, family)))
        if split_of(problem) == split and is_heard(model, problem, family):
            return problem


def text_given(model: Model, problem: Problem, rng: Rng) -> str:
    """Return the text a model is trained on for a problem: the worked answer, a popular wrong one, or a mistake."""
    if problem.mistake and problem.family in MIXES[model].mistaken:
        return problem.mistake
    if problem.family == "facts":
        fact = facts.fact_of(problem)
        if fact.phrase in MIXES[model].confused and rng.random() < POPULAR_SHARE:
            return facts.word_answer(rng, fact.popular)
    return problem.worked
