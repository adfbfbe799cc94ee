"""Greatest common divisors by Euclid's repeated subtraction, each difference worked digit by digit.

Subtraction instead of division keeps every step within one-digit tables. Three numbers are the hardest level: who never
saw three is done after two.
"""

from __future__ import annotations

from hybrid.bench.tasks import column
from hybrid.bench.tasks.problem import Family, Level, Problem, Rng
from hybrid.bench.tasks.wording import Wording

WORDING = Wording()
ASK = ("What is the greatest common divisor of {}?", "Find the gcd of {}.", "gcd of {}?")
LEVELS = (
    Level("two numbers of two digits", 0.15),
    Level("two numbers, the larger of three digits", 0.45),
    Level("three numbers of two or three digits", 0.4),
)
# So many columns of differences at most, of about fifteen tokens each: 190 tokens.
MOST_COLUMNS = (10, 12, 12)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; the order of the numbers makes twins."""
    while True:
        numbers = _numbers(rng, level)
        work, result, num_columns = _worked(numbers)
        if 0 < num_columns <= MOST_COLUMNS[level - 1]:
            break
    rng.shuffle(numbers)
    asked = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    worked = WORDING.text(rng, work, str(result))
    canonical = f"gcd: {' '.join(map(str, sorted(numbers)))}"
    return Problem("gcd", level, rng.choice(ASK).format(asked), worked, str(result), canonical)


def _numbers(rng: Rng, level: int) -> list[int]:
    """Draw different multiples of one number, the largest first."""
    low, high = (10, 99) if level == 1 else (100, 999)
    while True:
        divisor = rng.randint(2, 49) if level == 1 else rng.randint(11, 333)
        numbers = sorted(divisor * factor for factor in rng.sample(range(1, 10), 3 if level == 3 else 2))
        if numbers[0] >= 10 and low <= numbers[-1] <= high:
            return numbers[::-1]


def _worked(numbers: list[int]) -> tuple[str, int, int]:
    """Return the work, the result and the number of columns in which digits were subtracted."""
    first, *others = numbers
    steps, num_columns = [], 0
    for other in others:
        high, low = max(first, other), min(first, other)
        while high != low:
            width = len(str(high))
            num_columns += width
            steps.append(f"{high}-{low:0{width}d}: {column.subtracted(high, low, columns_first=False)};")
            high, low = max(low, high - low), min(low, high - low)
        steps.append(f"{high}={low};")
        first = high
    return " ".join(steps), first, num_columns


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or at the end of a worked answer, whatever the steps were."""
    return problem.final in WORDING.finals(text)


FAMILY = Family("gcd", "reasoning", LEVELS, generate, grade, len(WORDING))
