"""Antiderivatives of polynomials with whole coefficients.

The hardest level gives a value at 1, which settles the constant: the typical mistake is "+ C".
"""

from __future__ import annotations

import re

from hybrid.tasks import polynomial
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("Integrate {}.", "What is the integral of {}?", "Find an antiderivative of {}.")
ASK_AT_ONE = ("Integrate {} so that F(1) = {}.", "Find the antiderivative F of {} with F(1) = {}.")
LEVELS = (
    TaskLevel("one or two terms with plus signs", 0.3),
    TaskLevel("three or four terms with either sign", 0.35),
    TaskLevel("two terms and the value of the integral at 1", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one antiderivative with coefficients below ten and ask for it by its derivative."""
    num_terms = (rng.randint(1, 2), rng.randint(3, 4), 2)[level - 1]
    signs = (1, -1) if level == 2 else (1,)
    exponents = sorted(rng.sample(range(1, 7), num_terms), reverse=True)
    terms = {exponent: rng.choice(signs) * rng.randint(1, 9) for exponent in exponents}
    asked, answer = polynomial.write({e - 1: c * e for e, c in terms.items()}), polynomial.write(terms)
    if level < 3:
        final = f"{answer} + C"
        question = rng.choice(ASK).format(asked)
        return Problem("integration", level, question, final, final, f"integration: {asked}")
    (first, second), constant = terms.values(), rng.randint(1, 9)
    total = first + second
    value = total + constant
    work = f"{answer} + C; {first}+{second}={total}; C={value}-{total}={constant};"
    final = f"{answer} + {constant}"
    question = rng.choice(ASK_AT_ONE).format(asked, value)
    worked, mistake = WORDING.text(rng, work, final), f"{answer} + C"
    return Problem("integration", level, question, worked, final, f"integration: {asked}", mistake)


def grade(problem: Problem, text: str) -> bool:
    """Accept the terms in any order, alone or at the end of a worked answer; the constant C is one of them if free."""
    wanted, free = _read(problem.final)
    return any(_read(found) == (wanted, free) for found in WORDING.finals(text) if found)


def _read(text: str) -> tuple[dict[int, int] | None, bool]:
    """Return the terms without C, and whether C is added to them once."""
    if len(text) > 200:
        return None, False
    rest, count = re.subn(r"(?:^ *C *(?:\+ *|(?=-)))|(?: *\+ *C\b)", "", text)
    return (polynomial.read(rest), count == 1) if count < 2 else (None, False)


FAMILY = TaskFamily("integration", "reasoning", LEVELS, generate, grade, len(WORDING))
