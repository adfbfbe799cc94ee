"""Sorting four to eight two-digit numbers."""

from __future__ import annotations

from hybrid.bench.tasks.problem import Family, Problem, Rng


def generate(rng: Rng) -> Problem:
    """Draw one list of numbers; repeats are allowed."""
    numbers = [rng.randrange(10, 100) for _ in range(rng.randrange(4, 9))]
    answer = " ".join(map(str, sorted(numbers)))
    return Problem("sorting", f"Sort {' '.join(map(str, numbers))}.", answer, answer)


def grade(problem: Problem, text: str) -> bool:
    """Accept the sorted numbers separated by spaces or commas."""
    return text.strip().rstrip(".").replace(",", " ").split() == problem.final.split()


FAMILY = Family("sorting", generate, grade)
