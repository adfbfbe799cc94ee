"""Directions of tokens: rows of an output matrix without what all of them have in common.

Vectors share a mean and a few strong components, which tell how frequent a token is and not what it means; without them
cosines part " US" from " us" (.17 instead of .57 in SmolLM2) and leave " begin" beside " start" (.76). Mu and Viswanath
2018 (arXiv:1702.01417). Vectors are read in blocks, so that a large matrix is never in memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hybrid.errors import UsageError
from hybrid.partitions.normal_form import TokenKind, normal_form

__all__ = [
    "NUM_REMOVED",
    "Directions",
    "EmbeddingAgreement",
    "RowSource",
    "ShareEstimate",
    "blocks_of",
    "compare_embeddings",
    "directions",
    "linear_cka",
    "nearest",
    "shared_words",
    "unit",
]


Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
# Mu and Viswanath take width / 100; of SmolLM2's 576 components the first three hold 15 % of the variance.
NUM_REMOVED = 3
# Further components say little of a cosine, and the matrix of a large model has thousands.
_MOST_COMPONENTS = 1024
_BLOCK = 4096


class RowSource(Protocol):
    """Vectors by their numbers, as ``engine.token_table`` reads them."""

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


# How alike two models' embeddings are on words that both have: what the draft paper calls embedding consistency.
#
# Two measures. Linear CKA compares all inner products of the words (Kornblith et al. 2019, arXiv:1905.00414), here from
# unbiased estimates (Song et al. 2012), so that unlike matrices give 0 and not the ratio of width to words. The overlap
# of nearest neighbours asks what a partition uses: of the ``k`` words nearest to one, how many are the same in the
# other.
#
# The laws (``tests/partitions/test_consistency.py``): a rotation, a shift or a scale of all rows changes nothing; equal
# rows give 1; independent rows give 0, or chance; and the interval holds what larger samples give.

NEIGHBOURS = 10
# Unbiased estimates need four words, blocks of a jackknife more.
LEAST_WORDS = 50
# All pairs of words are compared. An interval of 8,000 words is narrow enough to tell models apart.
MOST_WORDS = 8000
_BLOCKS = 20
_95 = 1.96


@dataclass(frozen=True)
class ShareEstimate:
    """A number from 0 to 1 with its interval of 95 %. An unbiased estimate may lie a little below 0."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EmbeddingAgreement:
    """``words``: compared, of ``shared``. ``chance``: the overlap of neighbours that unlike embeddings have."""

    words: int
    shared: int
    cka: ShareEstimate
    overlap: ShareEstimate
    chance: float


def shared_words(first: Sequence[bytes], second: Sequence[bytes]) -> tuple[Ids, Ids]:
    """Return the ids of the words that two vocabularies spell alike, in the order of the first.

    Words are tokens whose bytes have a normal form of letters. Bytes that stand for two tokens are the first one's.
    """
    in_second: dict[bytes, int] = {}
    for token, piece in enumerate(second):
        in_second.setdefault(piece, token)
    pairs: dict[bytes, tuple[int, int]] = {}
    for token, piece in enumerate(first):
        form = normal_form(piece) if piece in in_second else None
        if form is not None and form.token_class is TokenKind.WORD:
            pairs.setdefault(piece, (token, in_second[piece]))
    both = np.array(list(pairs.values()), dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def compare_embeddings(
    first: tuple[RowSource, Sequence[bytes]], second: tuple[RowSource, Sequence[bytes]], *, seed: int = 0
) -> EmbeddingAgreement:
    """Compare two embeddings on shared words. Raises UsageError where there are too few of them."""
    sides = shared_words(first[1], second[1])
    shared = sides[0].size
    if shared < LEAST_WORDS:
        msg = f"the two vocabularies share {shared} words, and a comparison needs {LEAST_WORDS}"
        raise UsageError(msg)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(shared)[:MOST_WORDS])
    raw, near = [], []
    for (source, pieces), ids in zip((first, second), sides, strict=True):
        wanted = np.sort(ids[chosen])
        back = np.searchsorted(wanted, ids[chosen])
        raw.append(_rows(source, wanted)[back])
        near.append(nearest(directions(source, len(pieces), wanted, _silent).rows[back], NEIGHBOURS, _silent)[0])
    return EmbeddingAgreement(
        chosen.size,
        shared,
        cka_interval(raw[0], raw[1], rng.permutation(chosen.size) % _BLOCKS),
        _overlap(near[0], near[1]),
        NEIGHBOURS / (chosen.size - 1),
    )


def cka_interval(first: Vectors, second: Vectors, blocks: Ids) -> ShareEstimate:
    """Return debiased linear CKA with a jackknife over blocks of words. Shapes (N, a), (N, b), (N,)."""
    value = linear_cka(first, second)
    without = np.array([linear_cka(first[blocks != each], second[blocks != each]) for each in np.unique(blocks)])
    spread = float(np.sqrt((without.size - 1) / without.size * np.square(without - without.mean()).sum()))
    return ShareEstimate(value, value - _95 * spread, min(1.0, value + _95 * spread))


def linear_cka(first: Vectors, second: Vectors) -> float:
    """Return debiased linear CKA, in [-1, 1]; 0 where the rows of one side are all alike. Shapes (N, a), (N, b), N > 3.

    >>> rows = np.array([[0, 0], [1, 0], [0, 1], [3, 3], [5, 4], [2, 7]], dtype=np.float32)
    >>> round(linear_cka(rows, 5 * rows[:, ::-1] + 1), 5)
    1.0
    """
    sides = [side - side.mean(axis=0) for side in (first, second)]
    sides = [side / (np.abs(side).max() or 1.0) for side in sides]
    across, one, other = (_hsic(*pair) for pair in (sides, (sides[0], sides[0]), (sides[1], sides[1])))
    return across / float(np.sqrt(one * other)) if one > 0.0 and other > 0.0 else 0.0


def _hsic(first: Vectors, second: Vectors) -> float:
    """Estimate the Hilbert-Schmidt independence criterion of linear kernels without bias, up to 1 / (N (N - 3)).

    Song et al.'s equation 5, with the kernels' diagonals taken out and no matrix of N x N.
    """
    num = first.shape[0]
    squares = [np.square(side).sum(axis=1, dtype=np.float64) for side in (first, second)]
    totals = [side.sum(axis=0, dtype=np.float64) for side in (first, second)]
    sums = [side @ total - square for side, total, square in zip((first, second), totals, squares, strict=True)]
    trace = float(np.square(first.T @ second, dtype=np.float64).sum()) - float(squares[0] @ squares[1])
    product = float(sums[0].sum() * sums[1].sum()) / ((num - 1) * (num - 2))
    crossed = 2.0 * float(sums[0] @ sums[1]) / (num - 2)
    return float(trace + product - crossed)


def _overlap(first: Ids, second: Ids) -> ShareEstimate:
    """Return the mean share of neighbours that are the same, words taken as independent. Shapes (N, k), (N, k)."""
    same = [len(set(here) & set(there)) for here, there in zip(first.tolist(), second.tolist(), strict=True)]
    shares: npt.NDArray[np.float64] = np.array(same) / first.shape[1]
    value, spread = float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(shares.size))
    return ShareEstimate(value, max(0.0, value - _95 * spread), min(1.0, value + _95 * spread))


def _rows(source: RowSource, wanted: Ids) -> Vectors:
    """Return some rows as they stand in the matrix; ``wanted`` ascends."""
    rows = np.empty((wanted.size, source.width), dtype=np.float32)
    for here, block in blocks_of(source, wanted):
        rows[here] = block
    return rows


def _silent(_: str) -> None:
    """Report nothing: a comparison of a few thousand words takes seconds."""
