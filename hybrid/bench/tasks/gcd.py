"""Greatest common divisors by Euclid's repeated subtraction, each difference worked digit by digit.

Subtraction instead of division keeps every step within one-digit tables. Three numbers are the hardest level.
"""

from __future__ import annotations

from hybrid.bench.tasks import column
from hybrid.bench.tasks.problem import Family, Level, Problem, Rng
from hybrid.bench.tasks.wording import Wording

WORDING = Wording()
ASK = ("What is the greatest common divisor of {}?", "Find the gcd of {}.", "gcd of {}?")
LEVELS = (
    Level("two numbers of two digits, two or three subtractions", 0.35),
    Level("two numbers: of two digits, four or five subtractions, or of three digits, two or three", 0.35),
    Level("three numbers of two digits, up to five subtractions", 0.3),
)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; the order of the numbers makes twins."""
    while True:
        numbers = _numbers(rng, level)
        if numbers and (found := _worked(numbers, level)):
            break
    work, result = found
    rng.shuffle(numbers)
    asked = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    worked = WORDING.text(rng, work, str(result))
    canonical = f"gcd: {' '.join(map(str, sorted(numbers)))}"
    return Problem("gcd", level, rng.choice(ASK).format(asked), worked, str(result), canonical)


def _numbers(rng: Rng, level: int) -> list[int] | None:
    """Draw different multiples of one number; the level's number of digits, or none."""
    digits = 3 if level == 2 and rng.random() < 0.5 else 2
    divisor = rng.randint(2, 30) if digits == 2 else rng.randint(11, 150)
    numbers = sorted({divisor * rng.randint(1, 9) for _ in range(3 if level == 3 else 2)}, reverse=True)
    fit = len(numbers) == (3 if level == 3 else 2) and all(len(str(number)) == digits for number in numbers)
    return numbers if fit else None


def _worked(numbers: list[int], level: int) -> tuple[str, int] | None:
    """Return the work and the result, or nothing where the number of subtractions is not the level's."""
    least, most = ((2, 3), (4, 5), (2, 5))[level - 1]
    if level == 2 and numbers[0] > 99:
        least, most = 2, 3
    first, *others = numbers
    steps = []
    for other in others:
        high, low = max(first, other), min(first, other)
        while high != low:
            width = len(str(high))
            steps.append(f"{high}-{low:0{width}d}: {column.subtracted(high, low, columns_first=False)};")
            high, low = max(low, high - low), min(low, high - low)
        steps.append(f"{high}={low};")
        first = high
    num_subtractions = len(steps) - len(others)
    return (" ".join(steps), first) if least <= num_subtractions <= most else None


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or at the end of a worked answer, whatever the steps were."""
    return problem.final in WORDING.finals(text)


FAMILY = Family("gcd", "reasoning", LEVELS, generate, grade, len(WORDING))
