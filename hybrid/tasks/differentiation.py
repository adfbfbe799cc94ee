"""Derivatives of polynomials; the coefficients are products of two digits.

The hardest level has a bracket to multiply out first: the typical mistake stops after that.
"""

from __future__ import annotations

from hybrid.tasks import polynomial
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("Differentiate {}.", "What is the derivative of {}?", "Find the derivative of {}.")
LEVELS = (
    TaskLevel("one or two terms with plus signs", 0.3),
    TaskLevel("three or four terms with either sign", 0.35),
    TaskLevel("a power of x times a bracket of two terms", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one polynomial with exponents up to six."""
    mistake = ""
    if level == 3:
        power, high = rng.randint(1, 3), rng.randint(1, 3)
        inner = {high: rng.randint(1, 9), rng.randrange(high): rng.choice((1, -1)) * rng.randint(1, 9)}
        terms = {exponent + power: coefficient for exponent, coefficient in inner.items()}
        asked = f"{polynomial.term(1, power)}({polynomial.write(inner)})"
        mistake = polynomial.write(terms)
    else:
        num_terms = rng.randint(1, 2) if level == 1 else rng.randint(3, 4)
        exponents = sorted(rng.sample(range(7), num_terms), reverse=True)
        if exponents == [0]:
            exponents = [1]
        signs = (1,) if level == 1 else (1, -1)
        terms = {exponent: rng.choice(signs) * rng.randint(1, 9) for exponent in exponents}
        asked = polynomial.write(terms)
    final = polynomial.write({e - 1: c * e for e, c in terms.items() if e})
    worked = WORDING.text(rng, f"{polynomial.write(terms)};", final) if level == 3 else final
    canonical = f"differentiation: {polynomial.write(terms)}"
    return Problem("differentiation", level, rng.choice(ASK).format(asked), worked, final, canonical, mistake)


def grade(problem: Problem, text: str) -> bool:
    """Accept the terms in any order, alone or at the end of a worked answer."""
    derivative = polynomial.read(problem.final)
    return any(polynomial.read(found) == derivative for found in WORDING.finals(text) if found)


FAMILY = TaskFamily("differentiation", "reasoning", LEVELS, generate, grade, len(WORDING))
