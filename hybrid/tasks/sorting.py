"""Sorting two-digit numbers by taking the smallest again and again, the rest written out each time.

The hardest level asks for the other direction: a model that never saw it sorts upwards.
"""

from __future__ import annotations

from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("Sort {}.", "Sort from low to high: {}.", "Put in order, smallest first: {}.")
ASK_DOWN = ("Sort downwards: {}.", "Sort from high to low: {}.", "Put in order, largest first: {}.")
LEVELS = (
    TaskLevel("four or five numbers, upwards", 0.3),
    TaskLevel("six or seven numbers, upwards", 0.35),
    TaskLevel("five to seven numbers, downwards", 0.35),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one list; repeats are allowed; its order makes twins."""
    numbers = [rng.randint(10, 99) for _ in range(rng.randint(*((4, 5), (6, 7), (5, 7))[level - 1]))]
    if numbers == sorted(numbers):
        numbers.reverse()
    down = level == 3
    question = rng.choice(ASK_DOWN if down else ASK).format(_spaced(numbers))
    final = _spaced(sorted(numbers, reverse=down))
    rest, steps = list(numbers), []
    while rest:
        taken = max(rest) if down else min(rest)
        rest.remove(taken)
        steps.append(f"{taken}: {_spaced(rest)};" if rest else f"{taken};")
    canonical = f"sorting: {_spaced(sorted(numbers))}"
    return Problem("sorting", level, question, WORDING.text(rng, " ".join(steps), final), final, canonical)


def _spaced(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def grade(problem: Problem, text: str) -> bool:
    """Accept the numbers in order, separated by spaces or commas, alone or at the end of a worked answer."""
    return any(found.replace(",", " ").split() == problem.final.split() for found in WORDING.finals(text))


FAMILY = TaskFamily("sorting", "reasoning", LEVELS, generate, grade, len(WORDING))
