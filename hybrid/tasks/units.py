"""Unit conversion to the smaller unit, freely worded.

The hardest level has an amount in two units: the typical mistake converts the first alone.
"""

from __future__ import annotations

import re

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording, draw

# Larger unit, smaller unit, how many of the latter.
METRIC = (
    ("km", "m", 1000),
    ("m", "cm", 100),
    ("m", "mm", 1000),
    ("cm", "mm", 10),
    ("kg", "g", 1000),
    ("g", "mg", 1000),
    ("l", "ml", 1000),
    ("l", "cl", 100),
)
TIME = (("h", "min", 60), ("min", "s", 60), ("weeks", "days", 7), ("years", "months", 12))
ASK = ("Convert {} to {}.", "How much is {} in {}?", "What is {} in {}?", "Give {} in {}.")
RULES = (
    "One {0} is {2} {1}.",
    "{2} {1} are in one {0}.",
    "There are {2} {1} in one {0}.",
    "We take {2} {1} for one {0}.",
)
ONE = {"weeks": "week", "years": "year"}
WORDING = Wording(closings=("That is", "So we get", "It makes", "The answer is"))
LEVELS = (
    TaskLevel("a whole number of a metric unit or a unit of time", 0.3),
    TaskLevel("a metric amount with a decimal", 0.35),
    TaskLevel("an amount in two units: 3 m 45 cm, 2 h 15 min", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one amount."""
    work, first, more = "", "", 0
    if level == 1:
        large, small, factor = rng.choice((*METRIC, *METRIC, *TIME))
        count = rng.randint(2, 99 if factor % 10 == 0 and factor != 60 else 9)
        asked, total = f"{count} {large}", count * factor
    elif level == 2:
        large, small, factor = rng.choice(METRIC)
        whole, tenths = rng.randint(1, 99), rng.randint(1, 9)
        asked, total = f"{whole}.{tenths} {large}", (10 * whole + tenths) * factor // 10
    else:
        large, small, factor = rng.choice((*METRIC, *TIME[:2]))
        count, more = rng.randint(2, 99 if factor != 60 else 9), rng.randint(2, min(99, factor - 1))
        asked, total = f"{count} {large} {more} {small}", count * factor + more
        first = f"{count * factor} {small}"
        work = f"{count} {large} = {first} and {more} more."
    rule = draw(rng, RULES).format(ONE.get(large, large), small, factor)
    final = f"{total} {small}"
    worked = WORDING.text(rng, f"{rule} {work}".strip(), final)
    question = rng.choice(ASK).format(asked, small)
    mistake = worked.replace(f" and {more} more", "").replace(f"{final}.", f"{first}.") if work else ""
    return Problem("units", level, question, worked, final, f"units: {asked} to {small}", mistake)


def grade(problem: Problem, text: str) -> bool:
    """Accept the amount alone or after any closing, with the unit or without it."""
    number, unit = problem.final.split()
    form = re.compile(rf"{number}(?: ?{unit})?")
    return any(form.fullmatch(found) for found in WORDING.finals(text))


FAMILY = TaskFamily("units", "assistant", LEVELS, generate, grade, len(WORDING) * len(RULES))
