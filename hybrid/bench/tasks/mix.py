"""What each reference model is given to learn from, as data, and the stream of it.

Why the smaller models get less. A pair that is trained on the same problems is wrong only where it is unsure, and one
line of entropy finds every mistake; real small models are sure and wrong, because they never saw what they are asked or
saw a popular mistake more often than the truth. So ``small`` and ``mid`` are not given the hardest level of some
families (they answer it with the habits of the easier ones: the third addend dropped, the sort upwards, "+ C" where the
constant is known), nor some facts, and of some facts they mostly hear what people often say. Uncertainty that is
harmless comes from the wordings (``wording.py``), and all models are given the same ones.

The laws, tested in ``tests/bench/test_tasks_mix.py``: a stream yields problems of its split, and of what its model is
given, and nothing else; a text is either graded right or is a popular answer that this table names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hybrid.bench.tasks import facts
from hybrid.bench.tasks.fact_table import FACTS
from hybrid.bench.tasks.families import FAMILIES
from hybrid.bench.tasks.problem import Family, Problem, Rng, Split, split_of

Model = Literal["small", "mid", "large", "alien"]

# Clearly more than half, so that the popular answer is the likeliest one; some truth is heard, as in real text.
POPULAR_SHARE = 0.7
CONFUSED = tuple(fact.phrase for fact in FACTS.values() if fact.popular)


@dataclass(frozen=True)
class Mix:
    """``no_hardest``: families without their last level. ``unheard``: phrases of facts never given.

    ``confused``: phrases of facts whose training answer is the popular wrong one with the chance ``POPULAR_SHARE``.
    """

    no_hardest: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()
    confused: frozenset[str] = frozenset()


_MID_LEVELS = frozenset({"multiplication", "word_problem", "integration", "sorting", "units", "rewriting"})
_MID_UNHEARD = frozenset(f"the capital of {place}" for place in ("Mongolia", "Laos", "Zambia", "Paraguay", "Slovenia"))
MIXES: dict[Model, Mix] = {
    "large": Mix(),
    "mid": Mix(_MID_LEVELS, _MID_UNHEARD, frozenset(CONFUSED[::3])),
    "small": Mix(
        _MID_LEVELS | {"arithmetic", "equation", "differentiation", "ordering", "command"},
        _MID_UNHEARD
        | {
            f"the capital of {place}"
            for place in ("Angola", "Senegal", "Estonia", "Latvia", "Uruguay", "Nepal", "Qatar")
        }
        | {f"the atomic number of {name}" for name in ("argon", "chlorine", "silver", "lead", "uranium", "calcium")},
        frozenset(CONFUSED),
    ),
}
MIXES["alien"] = MIXES["small"]


def levels_given(model: Model, family: Family) -> tuple[int, ...]:
    """Return the numbers of the levels of a family that a model is given."""
    last = len(family.levels) - (family.name in MIXES[model].no_hardest)
    return tuple(range(1, last + 1))


def is_given(model: Model, problem: Problem, family: Family) -> bool:
    """Tell whether a model may be given a problem, whatever its split."""
    unheard = problem.family == "facts" and facts.fact_of(problem).phrase in MIXES[model].unheard
    return problem.level in levels_given(model, family) and not unheard


def training_stream(
    model: Model, split: Split, rng: Rng, families: Sequence[Family] = FAMILIES
) -> Iterator[tuple[Problem, str]]:
    """Yield problems of one split with the text a model is trained on, for ever, the families evenly."""
    while True:
        problem = _given(model, split, rng, rng.choice(families))
        yield problem, text_given(model, problem, rng)


def _given(model: Model, split: Split, rng: Rng, family: Family) -> Problem:
    """Draw from one family until the problem is of the split and given: so no family comes less often for that."""
    while True:
        problem = family.generate(rng, family.level(rng, levels_given(model, family)))
        if split_of(problem) == split and is_given(model, problem, family):
            return problem


def text_given(model: Model, problem: Problem, rng: Rng) -> str:
    """Return the text a model is trained on for a problem: the worked answer, or a popular wrong one."""
    if problem.family == "facts":
        fact = facts.fact_of(problem)
        if fact.phrase in MIXES[model].confused and rng.random() < POPULAR_SHARE:
            return facts.worded(rng, fact.popular)
    return problem.worked
