"""Base conversion by repeated long division; the digits found so far stand in brackets, the last one first.

The hardest level has bases above ten, whose digits go on with letters: a model that never saw them stays with digits.
"""

from __future__ import annotations

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

DIGITS = "0123456789ABCDEF"
WORDING = Wording()
ASK = ("Write {} in base {}.", "Convert {} to base {}.", "What is {} in base {}?")
LEVELS = (
    TaskLevel("numbers of two digits to base 2 to 9", 0.3),
    TaskLevel("numbers of three digits to base 3 to 9", 0.4),
    TaskLevel("numbers of three digits to base 11 to 16", 0.3),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one number, written in base ten, and the base to write it in."""
    number = rng.randint(10, 99) if level == 1 else rng.randint(100, 999)
    base = rng.randint(*((2, 9), (3, 9), (11, 16))[level - 1])
    steps, rest, done = [], number, ""
    while rest:
        division, rest, digit = _write_division(rest, base)
        done = DIGITS[digit] + done
        steps.append(f"{division} [{done}]")
    worked = WORDING.text(rng, f"{' '.join(steps)};", done)
    return Problem("base", level, rng.choice(ASK).format(number, base), worked, done, f"base: {number} to {base}")


def _write_division(number: int, base: int) -> tuple[str, int, int]:
    """Return the long division as text, the quotient and the remainder."""
    steps, quotient, rest = [], "", 0
    for digit in str(number):
        current = 10 * rest + int(digit)
        rest = current % base
        quotient += str(current // base)
        steps.append(f"{current}/{base}={current // base}r{rest}")
    return f"{number}: {' '.join(steps)}", int(quotient), rest


def grade(problem: Problem, text: str) -> bool:
    """Accept the digits, letters of either case, alone or at the end of a worked answer, whatever the steps were."""
    return any(found.upper() == problem.final for found in WORDING.finals(text))


FAMILY = TaskFamily("base", "reasoning", LEVELS, generate, grade, len(WORDING))
