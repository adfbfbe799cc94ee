"""Directions of tokens: rows of an output matrix without what all of them have in common.

Vectors share a mean and a few strong components, which tell how frequent a token is and not what it means; without them
cosines part " US" from " us" (.17 instead of .57 in SmolLM2) and leave " begin" beside " start" (.76). Mu and Viswanath
2018 (arXiv:1702.01417). Vectors are read in blocks, so that a large matrix is never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
# Mu and Viswanath take width / 100; of SmolLM2's 576 components the first three hold 15 % of the variance.
NUM_REMOVED = 3
# Further components say little of a cosine, and the matrix of a large model has thousands.
_MOST_COMPONENTS = 1024
_BLOCK = 4096


class RowSource(Protocol):
    """Vectors by their numbers, as ``engine.output_rows`` reads them."""

    num_rows: int
    width: int

    def read(self, start: int, stop: int) -> Vectors:
        """Return some rows, shape (stop - start, width)."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Unit vectors, ``rows`` of shape (N, d), of the tokens ``ids``, in ascending order. A row of zeros stays zero."""

    ids: Ids
    rows: Vectors


def directions(source: RowSource, num_tokens: int, wanted: Ids, report: Callable[[str], None]) -> Directions:
    """Return the directions of some tokens, with mean and components taken over all ``num_tokens``.

    ``wanted`` ascends. Vectors with a number that is none count as zero.
    """
    total, products = np.zeros(source.width), np.zeros((source.width, source.width))
    for start in range(0, num_tokens, _BLOCK):
        block = _finite(source.read(start, min(start + _BLOCK, num_tokens)))
        total += block.sum(axis=0, dtype=np.float64)
        products += block.T @ block
        report(f"{min(start + _BLOCK, num_tokens):,} of {num_tokens:,} embedding rows read")
    mean = total / num_tokens
    removed = min(NUM_REMOVED, source.width - 1)
    _, vectors = np.linalg.eigh(products / num_tokens - np.outer(mean, mean))  # ascending
    kept = vectors[:, ::-1][:, removed : removed + _MOST_COMPONENTS].astype(np.float32)
    rows = np.empty((wanted.size, kept.shape[1]), dtype=np.float32)
    for here, block in blocks_of(source, wanted):
        rows[here] = (block - mean.astype(np.float32)) @ kept
    return Directions(wanted, unit(rows))


def blocks_of(source: RowSource, wanted: Ids) -> Iterator[tuple[slice, Vectors]]:
    """Yield some rows in blocks: where a block stands among those that are ``wanted``, which ascend, and its vectors.

    Numbers that are none count as zero.
    """
    for start in range(0, int(wanted[-1]) + 1 if wanted.size else 0, _BLOCK):
        first, last = np.searchsorted(wanted, (start, start + _BLOCK)).tolist()
        if first < last:
            read = source.read(start, int(wanted[last - 1]) + 1)
            yield slice(first, last), _finite(read[wanted[first:last] - start])


def unit(rows: Vectors) -> Vectors:
    """Return rows of length 1; a row of zeros stays zero. Shape (N, d) -> (N, d)."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    lengths[lengths == 0.0] = 1.0
    scaled: Vectors = (rows / lengths).astype(np.float32)
    return scaled


def nearest(rows: Vectors, count: int, report: Callable[[str], None]) -> tuple[Ids, Vectors]:
    """Return for each unit vector the ``count`` nearest others and their cosines, shapes (N, count), in no order."""
    num_rows, count = rows.shape[0], min(count, rows.shape[0] - 1)
    found = np.empty((num_rows, count), dtype=np.int64)
    cosines = np.empty((num_rows, count), dtype=np.float32)
    block = max(1, (1 << 24) // max(1, num_rows))  # 64 MiB of cosines
    for start in range(0, num_rows, block):
        stop = min(start + block, num_rows)
        scores = rows[start:stop] @ rows.T
        scores[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        found[start:stop] = np.argpartition(-scores, count - 1, axis=1)[:, :count] if count else 0
        cosines[start:stop] = np.take_along_axis(scores, found[start:stop], axis=1)
        report(f"neighbours of {stop:,} of {num_rows:,} words found")
    return found, cosines


def _finite(rows: Vectors) -> Vectors:
    return np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)


__all__ = ["NUM_REMOVED", "Directions", "RowSource", "blocks_of", "directions", "nearest", "unit"]
