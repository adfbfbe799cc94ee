"""How familiar a question's words are: what was learned of other words says little of this question.

The law (``tests/defer/test_familiarity.py``): replacing a word that was seen by one that was never seen makes a
question no less strange, and seeing a question makes none stranger. At least nine of ten of the questions that were
seen are not strange at all, each among the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid.defer.packed import read_number, read_numbers, scatter
from hybrid.defer.words import BUCKETS
from hybrid.prob import Floats

# So many of the questions that were seen are usual. On the bundled pair 99 % of the questions of a family that was left
# out lie beyond; that the others' are raised costs 0.003 of the bill.
USUAL_SHARE = 0.9
# Where too few were seen to tell: what nine tenths of the bundled pair's questions stay below.
USUAL_NOVELTY = 0.24
FEWEST_QUESTIONS = 20
# A question half as novel again as a usual one is strange.
STRANGE = 1.5
# What is usual divides.
SMALLEST = 1e-9


@dataclass(frozen=True, eq=False)
class Familiarity:
    """How many questions with each bucket were seen, shape (BUCKETS,), and how novel a usual one of them is."""

    counts: Floats
    usual: float = USUAL_NOVELTY

    @classmethod
    def of(cls, questions: Sequence[tuple[int, ...]]) -> Familiarity:
        """Count the words of questions, each given as its ``word_buckets``."""
        counts = _counts(questions)
        if len(questions) < FEWEST_QUESTIONS:
            return cls(counts)
        among_others = [_novelty(counts, words, itself=1) for words in questions]
        return cls(counts, max(float(np.quantile(among_others, USUAL_SHARE)), 1.0 / len(questions)))

    def and_seen(self, questions: Iterable[tuple[int, ...]], weight: float = 1.0) -> Familiarity:
        """Count more questions, each as so many. What is usual stays."""
        return Familiarity(self.counts + weight * _counts(questions), self.usual)

    def only(self, words: tuple[int, ...]) -> Familiarity:
        """Forget all but a question's own buckets: it is as strange as before."""
        counts = np.zeros(BUCKETS)
        counts[list(words)] = self.counts[list(words)]
        return Familiarity(counts, self.usual)

    def novelty(self, words: tuple[int, ...]) -> float:
        """Return the root mean square of 1 / (1 + questions seen) over a question's buckets: 1 if none was seen."""
        return _novelty(self.counts, words)

    def strangeness(self, words: tuple[int, ...]) -> float:
        """Return 0 for a question as novel as usual, 1 for one half as novel again or more.

        Novelty is the root mean square of 1 / (1 + questions seen) over its buckets: a few unknown words make it.
        """
        over = _novelty(self.counts, words) / self.usual - 1.0
        return float(np.clip(over / (STRANGE - 1.0), 0.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``json.dumps``."""
        seen = np.flatnonzero(self.counts)
        return {"buckets": seen.tolist(), "counts": self.counts[seen].tolist(), "usual": self.usual}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Familiarity:
        """Read what ``to_json`` gave. Raises ValueError, KeyError or TypeError."""
        counts = scatter(kept["buckets"], read_numbers(kept["counts"]), BUCKETS)
        if (counts < 0.0).any():
            raise ValueError("words that were seen less than never")
        return cls(counts, read_number(kept["usual"], SMALLEST))


NOTHING_FAMILIAR = Familiarity(np.zeros(BUCKETS))


def _counts(questions: Iterable[tuple[int, ...]]) -> Floats:
    buckets = np.array([bucket for words in questions for bucket in words], dtype=np.int64)
    return np.bincount(buckets, minlength=BUCKETS).astype(np.float64)


def _novelty(counts: Floats, words: tuple[int, ...], itself: int = 0) -> float:
    """Return the novelty of a question, ``itself`` being among the counts; of one without words 1."""
    return float(np.sqrt(np.mean((1.0 + counts[list(words)] - itself) ** -2.0))) if words else 1.0
