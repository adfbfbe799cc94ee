"""Indefinite integrals of polynomials with one to four terms and integer coefficients."""

from __future__ import annotations

from hybrid.bench.tasks.problem import Family, Problem, Rng


def generate(rng: Rng) -> Problem:
    """Draw one polynomial whose antiderivative has integer coefficients."""
    exponents = sorted(rng.sample(range(6), rng.randrange(1, 5)), reverse=True)
    coefficients = [rng.randrange(1, 10) for _ in exponents]
    pairs = list(zip(coefficients, exponents, strict=True))
    integrand = " + ".join(_term(c * (e + 1), e) for c, e in pairs)
    answer = " + ".join(_term(c, e + 1) for c, e in pairs) + " + C"
    return Problem("integration", f"Integrate {integrand}.", answer, answer)


def _term(coefficient: int, exponent: int) -> str:
    if exponent == 0:
        return str(coefficient)
    power = "x" if exponent == 1 else f"x^{exponent}"
    return power if coefficient == 1 else f"{coefficient}{power}"


def grade(problem: Problem, text: str) -> bool:
    """Accept the terms in any order, the constant of integration among them."""
    return sorted(text.strip().rstrip(".").split(" + ")) == sorted(problem.final.split(" + "))


FAMILY = Family("integration", generate, grade)
