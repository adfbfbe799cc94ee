"""Arrays of numbers as text in JSON, exact to the last bit: little-endian bytes in base64."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from hybrid.prob import Floats


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
