"""Addition and subtraction of numbers of up to five digits, worked column by column.

A third addend and a negative result are the hardest level: a model that never saw them adds two of the three, or
subtracts the wrong way round, and is sure.
"""

from __future__ import annotations

import re

from hybrid.tasks import column
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("What is {}?", "Compute {}.", "Calculate {}.", "Work out {}.")
LEVELS = (
    TaskLevel("two numbers of two or three digits, the result not negative", 0.25),
    TaskLevel("two numbers of four or five digits, the result not negative", 0.4),
    TaskLevel("three addends of three to five digits, or a negative difference of numbers of two to five digits", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; "12 + 34" and "34 + 12" are twins."""
    low, high = ((2, 3), (4, 5), (3, 5))[level - 1]
    if level == 3 and rng.random() < 0.5:
        return _subtraction(rng, level, 2, 5)
    if level < 3 and rng.random() < 0.5:
        return _subtraction(rng, level, low, high)
    numbers = [_number(rng, low, high) for _ in range(3 if level == 3 else 2)]
    text = " + ".join(map(str, numbers))
    return _problem(rng, level, text, column.write_sum(numbers), sum(numbers), " + ".join(map(str, sorted(numbers))))


def _subtraction(rng: Rng, level: int, low: int, high: int) -> Problem:
    small, large = sorted((_number(rng, low, high), _number(rng, low, high)))
    if small == large:
        large += 1
    work = column.write_difference(large, small)
    if level == 3:
        text, work, result = f"{small} - {large}", f"{small}<{large}; {work}", small - large
    else:
        text, work, result = f"{large} - {small}", f"{large}>{small}; {work}", large - small
    return _problem(rng, level, text, work, result, f"{large} - {small}")


def _number(rng: Rng, low: int, high: int) -> int:
    digits = rng.randint(low, high)
    return rng.randrange(10 ** (digits - 1), 10**digits)


def _problem(rng: Rng, level: int, text: str, work: str, result: int, canonical: str) -> Problem:
    question = rng.choice(ASK).format(text)
    worked = WORDING.text(rng, f"{work};", str(result))
    return Problem("arithmetic", level, question, worked, str(result), f"arithmetic: {canonical}")


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or at the end of a worked answer, whatever the steps were; or the whole equation."""
    asked = re.search(r"\d[\d +-]*", problem.question)
    equation = f"{asked[0]} =" if asked else ""
    return any(found.removeprefix(equation).strip() == problem.final for found in WORDING.finals(text))


FAMILY = TaskFamily("arithmetic", "reasoning", LEVELS, generate, grade, len(WORDING))
