"""Numbers in JSON, exact to the last bit: arrays as little-endian bytes in base64, single ones as they are.

The law (``tests/defer/test_packed.py``): what is no number, or none that there can be, is a ValueError.
"""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Floats

# Beyond it a whole number has no float.
LARGEST = 1e300


def read_number(kept: object, least: float = -LARGEST, most: float = LARGEST) -> float:
    """Read a number of a file. Raises ValueError for text, true, false, NaN, and what is not within bounds."""
    if isinstance(kept, bool) or not isinstance(kept, int | float) or not least <= kept <= most:
        msg = f"{str(kept)[:40]} is no number from {least:g} to {most:g}"
        raise ValueError(msg)
    return float(kept)


def read_numbers(kept: object) -> Floats:
    """Read numbers of a file, of any shape. Raises ValueError or TypeError, for numbers that are not finite as well."""
    try:
        numbers = np.array(kept, dtype=np.float64)
    except OverflowError:
        raise ValueError("a number that is none") from None
    if not np.isfinite(numbers).all():
        raise ValueError("a number that is none")
    return numbers


def scatter(places: object, numbers: Floats, num: int) -> Floats:
    """Return an array of shape (num,) of zeros, but for numbers at places, shapes (N,). Raises ValueError."""
    at = np.array(places)
    whole = at.ndim == 1 and (at.dtype.kind == "i" or not at.size)
    if not whole or at.shape != numbers.shape or ((at < 0) | (at >= num)).any():
        raise ValueError("numbers that have no place")
    spread = np.zeros(num)
    spread[at.astype(np.int64)] = numbers
    return spread


def pack_floats(numbers: Floats) -> str:
    """Return an array of shape (N,) as text."""
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f8").tobytes()).decode("ascii")


def unpack_floats(text: str) -> Floats:
    """Read what ``pack_floats`` gave, shape (N,). Raises ValueError, for numbers that are not finite as well."""
    numbers = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError("a number that is none")
    return numbers


def pack_ints(numbers: NDArray[np.int64]) -> str:
    """Return an array of shape (N,), of numbers between -2**31 and 2**31, as text."""
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<i4").tobytes()).decode("ascii")


def unpack_ints(text: str) -> NDArray[np.int64]:
    """Read what ``pack_ints`` gave, shape (N,). Raises ValueError."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<i4").astype(np.int64)
