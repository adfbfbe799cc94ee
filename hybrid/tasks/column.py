"""Column arithmetic as text: what the worked answers of several families share.

Columns carry letters, ``a`` for the ones, so that a digit is found by its letter. A step names its digits and what is
carried in; after the bar stands the result so far, so that the last step ends in the result. The law: every equation is
true, and the last bar's digits are the result (``tests/tasks/test_truth.py``). The letters are the index hints of
Zhou et al. 2023 (arXiv:2310.16028), which made addition learnable for small transformers.

>>> write_sum([57, 8])
'b5+0 a7+8; a7+8+0=15|5 b5+0+1=06|65'
>>> write_difference(52, 17)
'b5-1 a2-7; a12-7-0=5|5 b05-1-1=3|35'
>>> write_product(57, 8)
'a7*8=56+0=56|6 b5*8=40+5=45|456'
"""

from __future__ import annotations

from collections.abc import Sequence

LETTERS = "abcdefgh"


def write_sum(numbers: Sequence[int]) -> str:
    """Add two or three numbers, the columns first."""
    columns = _columns(numbers)
    steps, carry, done = [], 0, ""
    for letter, digits in reversed(columns):
        total = sum(digits) + carry
        done = f"{total if letter == columns[0][0] else total % 10}{done}"
        steps.append(f"{letter}{_joined(digits, '+')}+{carry}={total:02d}|{done}")
        carry = total // 10
    return f"{_written(columns, '+')}; {' '.join(steps)}"


def write_difference(first: int, second: int, *, columns_first: bool = True) -> str:
    """Subtract a number that is not larger: the digit before the top digit is the ten that was borrowed."""
    columns = _columns((first, second))
    steps, borrowed, done = [], 0, ""
    for letter, (top, bottom) in reversed(columns):
        ten = int(top < bottom + borrowed)
        digit = 10 * ten + top - bottom - borrowed
        done = f"{digit}{done}"
        steps.append(f"{letter}{ten}{top}-{bottom}-{borrowed}={digit}|{done}")
        borrowed = ten
    return f"{_written(columns, '-')}; {' '.join(steps)}" if columns_first else " ".join(steps)


def write_product(number: int, digit: int) -> str:
    """Multiply a number by one digit."""
    columns = _columns([number])
    steps, carry, done = [], 0, ""
    for letter, (top,) in reversed(columns):
        total = top * digit + carry
        done = f"{total if letter == columns[0][0] else total % 10}{done}"
        steps.append(f"{letter}{top}*{digit}={top * digit:02d}+{carry}={total:02d}|{done}")
        carry = total // 10
    return " ".join(steps)


def _columns(numbers: Sequence[int]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the columns from the left, each with its letter."""
    width = len(str(max(numbers)))
    rows = [[int(digit) for digit in f"{number:0{width}d}"] for number in numbers]
    return list(zip(reversed(LETTERS[:width]), zip(*rows, strict=True), strict=True))


def _written(columns: list[tuple[str, tuple[int, ...]]], sign: str) -> str:
    return " ".join(f"{letter}{_joined(digits, sign)}" for letter, digits in columns)


def _joined(digits: tuple[int, ...], sign: str) -> str:
    return sign.join(map(str, digits))
