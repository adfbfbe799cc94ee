"""Multiplication with partial products, each worked digit by digit, and their sum worked column by column."""

from __future__ import annotations

import re

from hybrid.tasks import column
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("What is {}?", "Compute {}.", "Multiply: {}.", "Work out {}.")
LEVELS = (
    TaskLevel("a number of two to four digits times one digit", 0.35),
    TaskLevel("two digits times two digits", 0.35),
    TaskLevel("three digits times two digits", 0.3),
)
# Digits of the first factor (fewest, most) and of the second.
DIGITS = ((2, 4, 1), (2, 2, 2), (3, 3, 2))


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; the second factor has no zero, and the two factors may stand in either order."""
    fewest, most, digits = DIGITS[level - 1]
    long = rng.randint(fewest, most)
    first = rng.randrange(10 ** (long - 1), 10**long)
    second = int("".join(str(rng.randint(2 if digits == 1 else 1, 9)) for _ in range(digits)))
    factors = [first, second] if rng.random() < 0.5 else [second, first]
    question = rng.choice(ASK).format(" * ".join(map(str, factors)))
    result = str(first * second)
    worked = WORDING.text(rng, _work(first, second), result)
    low, high = sorted(factors)
    return Problem("multiplication", level, question, worked, result, f"multiplication: {low} * {high}")


def _work(first: int, second: int) -> str:
    digits = [int(digit) for digit in reversed(str(second))]
    steps = [f"{first}*{digit}: {column.write_product(first, digit)};" for digit in digits]
    if len(digits) > 1:
        rows = [first * digit * 10**place for place, digit in enumerate(digits)]
        steps.append(f"{'+'.join(map(str, rows))}: {column.write_sum(rows)};")
    return " ".join(steps)


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or at the end of a worked answer, whatever the steps were; or the whole equation."""
    asked = re.search(r"\d[\d *]*", problem.question)
    equation = f"{asked[0]} =" if asked else ""
    return any(found.removeprefix(equation).strip() == problem.final for found in WORDING.finals(text))


FAMILY = TaskFamily("multiplication", "reasoning", LEVELS, generate, grade, len(WORDING))
