"""Polynomials in x as text, and read back: what integration and differentiation share. Tested with their graders."""

from __future__ import annotations

import re
from collections.abc import Mapping

TERM = re.compile(r"([+-]?)(\d{0,6})\*?(x?)(?:\^(\d{1,2}))?", re.ASCII)


def write(terms: Mapping[int, int]) -> str:
    """Write exponent-to-coefficient terms in their order, with spaces around signs; coefficients are not 0."""
    text = ""
    for exponent, coefficient in terms.items():
        sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
        text += sign + term(abs(coefficient), exponent)
    return text


def term(coefficient: int, exponent: int) -> str:
    """Write one term with a positive coefficient: ``12x^3``, ``x``, ``5``."""
    if exponent == 0:
        return str(coefficient)
    power = "x" if exponent == 1 else f"x^{exponent}"
    return power if coefficient == 1 else f"{coefficient}{power}"


def read(text: str) -> dict[int, int] | None:
    """Read terms in any order, like ones summed; None where the text is no such polynomial.

    >>> read("3 + 2x^2 - x")
    {0: 3, 2: 2, 1: -1}
    """
    if len(text) > 200:  # longer than any answer: what a model that repeats itself has written
        return None
    text = re.sub(r" *([+-]) *", r"\1", text.strip())
    terms: dict[int, int] = {}
    position = 0
    while position < len(text):
        found = TERM.match(text, position)
        if not found or not (found[2] or found[3]) or (position and not found[1]) or (found[4] and not found[3]):
            return None
        exponent = int(found[4] or 1) if found[3] else 0
        terms[exponent] = terms.get(exponent, 0) + int(f"{found[1]}{found[2] or 1}")
        position = found.end()
    return {exponent: coefficient for exponent, coefficient in terms.items() if coefficient} or None
