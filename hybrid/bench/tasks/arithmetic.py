"""Addition and subtraction of two numbers of two or three digits, answered at once (no worked steps)."""

from __future__ import annotations

import re

from hybrid.bench.tasks.problem import Family, Problem, Rng


def generate(rng: Rng) -> Problem:
    """Draw one problem; both numbers have the same number of digits and the result is not negative."""
    digits = rng.choice((2, 3))
    first, second = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
    sign = rng.choice("+-")
    if sign == "-":
        first, second = max(first, second), min(first, second)
    result = first + second if sign == "+" else first - second
    question = f"What is {first} {sign} {second}?"
    return Problem("arithmetic", question, f"{first} {sign} {second} = {result}", str(result))


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or the full equation, with or without a closing full stop."""
    match = re.fullmatch(r"(?:\d+ [+-] \d+ = )?(\d+)\.?", text.strip())
    return match is not None and match[1] == problem.final


FAMILY = Family("arithmetic", generate, grade)
