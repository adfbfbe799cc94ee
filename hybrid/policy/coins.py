"""Coins: the only randomness of decoding, as a port, so that whole answers can be enumerated and repeated.

A coin takes probabilities and returns an index. The seeded one is keyed by (seed, position, role, rejections so far,
level): with the position alone as key, a position drafted again after a rejection would repeat the rejected token, and
two levels of a chain would toss alike. The first level's key names no level: so it was when there was no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from hybrid.prob import Floats


class CoinKey(NamedTuple):
    """What a toss is for; ``level``: the level of a chain whose token or judge it is, 1 for a draft."""

    position: int
    role: str
    rejections: int
    level: int = 1


Coin: TypeAlias = Callable[[Floats, CoinKey], int]


class SeededCoin:
    """The same toss of the same seed always falls alike, on every machine."""

    def __init__(self, seed: int) -> None:
        """Take any integer."""
        self._seed = seed

    def __call__(self, probs: Floats, toss: CoinKey) -> int:
        """Return an index drawn from ``probs``, shape (V,). An index of probability 0 is never drawn."""
        above = f"/{toss.level}" if toss.level > 1 else ""
        key = f"{self._seed}/{toss.position}/{toss.role}/{toss.rejections}{above}".encode()
        # 53 bits are what a float holds; one more could round up to 1 and draw an index that is not there.
        uniform = (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11) / 2**53
        ladder = np.cumsum(probs)
        return int(np.searchsorted(ladder, uniform * ladder[-1], side="right"))
