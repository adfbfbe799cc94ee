"""Boosted trees as arrays, read by numpy: whoever runs them needs no library that fits trees.

The law (``tests/defer/test_trees.py``): the log-odds are those of the library that fitted them, and whatever a file
holds, no index leaves its array and no walk is endless. N rows, F features, B trees, M nodes of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid.defer.packed import pack_floats, pack_ints, read_number, unpack_floats, unpack_ints
from hybrid.prob import Floats

# Beyond any number of statistics.
MOST_FEATURES = 2**20


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """``start`` plus one leaf's number of each tree, in log-odds.

    ``roots``, shape (B,): the trees' first nodes. Shapes (M,): at a node whose ``feature`` is at most its ``number``
    the walk goes to ``left``, else to ``right``. Children stand after their parents; a leaf is its own child.
    """

    start: float
    num_features: int
    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    number: Floats
    left: NDArray[np.int64]
    right: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Raise ValueError for arrays that are no trees."""
        num, own = len(self.feature), np.arange(len(self.feature))
        if any(len(each) != num for each in (self.number, self.left, self.right)):
            raise ValueError("trees whose arrays differ in length")
        leaf = (self.left == own) & (self.right == own)
        if not (leaf | ((self.left > own) & (self.right > own))).all():
            raise ValueError("a tree whose child stands before its parent")
        bounds = ((self.roots, num), (self.left, num), (self.right, num), (self.feature, self.num_features))
        if any(((each < 0) | (each >= most)).any() for each, most in bounds):
            raise ValueError("a tree that asks for a node or a feature that there is not")

    def log_odds(self, features: Floats) -> Floats:
        """Return the sum of the leaves' numbers that rows reach, shape (N, F) -> (N,). No feature may be NaN."""
        flat = np.ascontiguousarray(features, dtype=np.float64).ravel()
        row = np.arange(0, flat.size, self.num_features)[:, None]
        node = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while True:
            low = flat[row + self.feature[node]] <= self.number[node]
            child = np.where(low, self.left[node], self.right[node])
            if np.array_equal(child, node):
                return np.asarray(self.start + self.number[node].sum(axis=1))
            node = child

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        ints = {name: pack_ints(getattr(self, name)) for name in ("roots", "feature", "left", "right")}
        return {"start": self.start, "num_features": self.num_features, "number": pack_floats(self.number), **ints}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> BoostedTrees:
        """Read what ``to_json`` gave. Raises ValueError or KeyError."""
        roots, feature, left, right = (unpack_ints(kept[name]) for name in ("roots", "feature", "left", "right"))
        number = unpack_floats(kept["number"])
        num_features = int(read_number(kept["num_features"], 1, MOST_FEATURES))
        return cls(read_number(kept["start"]), num_features, roots, feature, number, left, right)
