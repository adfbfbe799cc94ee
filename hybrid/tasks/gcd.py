"""Greatest common divisors by Euclid's repeated subtraction, each difference worked digit by digit.

Subtraction instead of division keeps every step within one-digit tables. Three numbers are the hardest level: a model
that never saw three is done after two.
"""

from __future__ import annotations

from hybrid.tasks import column
from hybrid.tasks.problem import Problem, Rng, TaskFamily, TaskLevel, Wording

WORDING = Wording()
ASK = ("What is the greatest common divisor of {}?", "Find the gcd of {}.", "gcd of {}?")
LEVELS = (
    TaskLevel("two numbers of two digits", 0.15),
    TaskLevel("two numbers, the larger of three digits", 0.45),
    TaskLevel("three numbers of two or three digits", 0.4),
)
# So many columns of differences at most, of about fifteen tokens each: 190 tokens.
MOST_COLUMNS = (10, 12, 12)


def generate(rng: Rng, level: int) -> Problem:
    """Draw one problem; the order of the numbers makes twins."""
    while True:
        numbers = _numbers(rng, level)
        pairs = _write_subtraction(numbers)
        if 0 < sum(len(str(high)) for high, low in pairs if high != low) <= MOST_COLUMNS[level - 1]:
            break
    result = pairs[-1][1]
    rng.shuffle(numbers)
    asked = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    worked = WORDING.text(rng, " ".join(_step(high, low) for high, low in pairs), str(result))
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


def _write_subtraction(numbers: list[int]) -> list[tuple[int, int]]:
    """Return what is subtracted from what, up to two that are equal, for each further number."""
    first, *others = numbers
    pairs = []
    for other in others:
        high, low = max(first, other), min(first, other)
        while high != low:
            pairs.append((high, low))
            high, low = max(low, high - low), min(low, high - low)
        pairs.append((high, low))
        first = high
    return pairs


def _step(high: int, low: int) -> str:
    """Write one difference, digit by digit, or that there is none."""
    if high == low:
        return f"{high}={low};"
    return f"{high}-{low:0{len(str(high))}d}: {column.write_difference(high, low, columns_first=False)};"


def grade(problem: Problem, text: str) -> bool:
    """Accept the number alone or at the end of a worked answer, whatever the steps were."""
    return problem.final in WORDING.finals(text)


FAMILY = TaskFamily("gcd", "reasoning", LEVELS, generate, grade, len(WORDING))
