"""Linear equations with a whole solution, freely worded.

Every product is of two digits. The hardest level has a bracket: the typical mistake takes the value of the
bracket for the unknown.
"""

from __future__ import annotations

import re

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording(
    closings=("So", "The solution is", "Hence", "This gives"),
    openings=("We have", "Step by step:", "Simplify:", "From this,"),
)
ASK = ("Solve {} for {}.", "Solve {}; find {}.", "If {}, what is {}?")
LEVELS = (
    TaskLevel("the unknown on one side: 3x + 5 = 26", 0.3),
    TaskLevel("the unknown on both sides: 7x - 4 = 3x + 12", 0.35),
    TaskLevel("a bracket: 4(x + 3) + 5 = 33", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one equation; the name of the unknown and the two sides' order make twins."""
    x, name = rng.randint(2, 9), rng.choice("xynt")
    left, right, work = (_one_side, _both_sides, _bracket)[level - 1](rng, x)
    sides = [left, right] if rng.random() < 0.7 else [right, left]
    question = rng.choice(ASK).format(" = ".join(sides), "x").replace("x", name)
    worked = WORDING.text(rng, f"{work}.".replace("x", name), f"{name} = {x}")
    mistake = _in_brackets(worked, f"{name} = {x}") if level == 3 else ""
    return Problem("equation", level, question, worked, f"{name} = {x}", f"equation: {left} = {right}", mistake)


def _in_brackets(worked: str, final: str) -> str:
    """Return the answer of somebody who finds what the bracket is worth and takes it for the unknown."""
    last = worked.split(". ", maxsplit=1)[0].rsplit(", ", 1)[1]
    held, name = last.split("-")[0], final[0]
    return worked.replace(f", {last}.", ".").replace(f"{final}.", f"{name} = {held}.")


def _constant(rng: Rng, least: int = -9) -> int:
    return rng.choice([c for c in range(least, 10) if c])


def _one_side(rng: Rng, x: int) -> tuple[str, str, str]:
    factor = rng.randint(2, 9)
    constant = _constant(rng, max(-9, 1 - factor * x))
    total = factor * x + constant
    return f"{factor}x {_signed(constant)}", str(total), _isolate(factor, constant, total)


def _both_sides(rng: Rng, x: int) -> tuple[str, str, str]:
    second = rng.randint(2, 7)
    first = second + rng.randint(2, 9 - second)
    constant = _constant(rng, max(-9, 1 - (first - second) * x))
    total = (first - second) * x + constant
    work = f"{first}x-{second}x={first - second}x, {_isolate(first - second, constant, total)}"
    return f"{first}x {_signed(constant)}", f"{second}x + {total}", work


def _bracket(rng: Rng, x: int) -> tuple[str, str, str]:
    factor, inner, constant = rng.randint(2, 9), rng.randint(1, 9), rng.randint(1, 9)
    held = x + inner
    factor = min(factor, 90 // held)
    total = factor * held + constant
    work = f"{_isolate(factor, constant, total)}, {held}-{inner}={x}"
    return f"{factor}(x + {inner}) + {constant}", str(total), work


def _isolate(factor: int, constant: int, total: int) -> str:
    rest = total - constant
    return f"{total}{-constant:+d}={rest}, {rest}/{factor}={rest // factor}"


def _signed(number: int) -> str:
    return f"{'+' if number > 0 else '-'} {abs(number)}"


def grade(problem: Problem, text: str) -> bool:
    """Accept the value, alone or as "x = 7" and "7 = x", after any closing, whatever the steps were."""
    name, value = problem.final.split(" = ")
    spaces = re.compile(r"\s+")
    accepted = {value, f"{name}={value}", f"{value}={name}", f"{name}is{value}"}
    return any(spaces.sub("", found) in accepted for found in WORDING.finals(text) if len(found) <= 12)


FAMILY = TaskFamily("equation", "reasoning", LEVELS, generate, grade, len(WORDING))
