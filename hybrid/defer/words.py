"""A question as the buckets of its words: what a learner sees of a question, and all that is ever kept of one.

The law (``tests/defer/test_words.py``): equal questions give equal buckets, in every process and on every machine, and
digits are not told apart. A bucket does not tell its word.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybrid.defer.packed import read_number, read_numbers, scatter
from hybrid.prob import Floats

# 1,120 questions of 14 families have 1,383 words and pairs; in 4,096 buckets 29 % of them share theirs with another.
BUCKETS = 4096
_WORD = re.compile(r"[^\W\d_]+|0+|[^\w\s]|_")
_DIGIT = re.compile(r"\d")


def word_buckets(question: str) -> tuple[int, ...]:
    """Return the buckets of a question's words and of neighbouring pairs of them: sorted, each once, below 4,096.

    Case is folded and every digit is a zero, so that a number counts by its length. A sign is a word of its own.

    >>> word_buckets("Add 12 and 7.") == word_buckets("add 45 and 9.") != word_buckets("add 45 and 19.")
    True
    >>> word_buckets("")
    ()
    """
    words = _WORD.findall(_DIGIT.sub("0", question.lower()))
    pairs = (f"{first} {second}" for first, second in itertools.pairwise(words))
    return tuple(sorted({zlib.crc32(text.encode("utf-8", "surrogatepass")) % BUCKETS for text in (*words, *pairs)}))


# How familiar a question's words are: what was learned of other words says little of this question.
#
# The law (``tests/defer/test_familiarity.py``): replacing a word that was seen by one that was never seen makes a
# question no less strange, and seeing a question makes none stranger. At least nine of ten of the questions that were
# seen are not strange at all, each among the others.

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
class NoveltyScore:
    """How many questions with each bucket were seen, shape (BUCKETS,), and how novel a usual one of them is."""

    counts: Floats
    usual: float = USUAL_NOVELTY

    @classmethod
    def of(cls, questions: Sequence[tuple[int, ...]]) -> NoveltyScore:
        """Count the words of questions, each given as its ``word_buckets``."""
        counts = _counts(questions)
        if len(questions) < FEWEST_QUESTIONS:
            return cls(counts)
        among_others = [_novelty(counts, words, itself=1) for words in questions]
        return cls(counts, max(float(np.quantile(among_others, USUAL_SHARE)), 1.0 / len(questions)))

    def and_seen(self, questions: Iterable[tuple[int, ...]], weight: float = 1.0) -> NoveltyScore:
        """Count more questions, each as so many. What is usual stays."""
        return NoveltyScore(self.counts + weight * _counts(questions), self.usual)

    def only(self, words: tuple[int, ...]) -> NoveltyScore:
        """Forget all but a question's own buckets: it is as strange as before."""
        counts = np.zeros(BUCKETS)
        counts[list(words)] = self.counts[list(words)]
        return NoveltyScore(counts, self.usual)

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
    def from_json(cls, kept: Mapping[str, Any]) -> NoveltyScore:
        """Read what ``to_json`` gave. Raises ValueError, KeyError or TypeError."""
        counts = scatter(kept["buckets"], read_numbers(kept["counts"]), BUCKETS)
        if (counts < 0.0).any():
            raise ValueError("words that were seen less than never")
        return cls(counts, read_number(kept["usual"], SMALLEST))


NOTHING_FAMILIAR = NoveltyScore(np.zeros(BUCKETS))


def _counts(questions: Iterable[tuple[int, ...]]) -> Floats:
    buckets = np.array([bucket for words in questions for bucket in words], dtype=np.int64)
    return np.bincount(buckets, minlength=BUCKETS).astype(np.float64)


def _novelty(counts: Floats, words: tuple[int, ...], itself: int = 0) -> float:
    """Return the novelty of a question, ``itself`` being among the counts; of one without words 1."""
    return float(np.sqrt(np.mean((1.0 + counts[list(words)] - itself) ** -2.0))) if words else 1.0


# Which of several models is likely to be the nearest to the cloud, by the words of a question.
#
# Counted is, for each bucket of words, how often each model was the nearest. A question's words then
# give weights by Bayes's rule with independent words, add-one smoothing and half of the evidence: a word and the pairs
# that hold it say the same thing twice. Over a stream of 280 problems of 14 families with two specialists the weights
# named the right one for 0.65 of the first 14 questions, 0.89 of the next 28, 0.96 of those up to the 100th and 0.99
# after.
#
# The law (``tests/defer/test_nearest.py``): weights are a distribution, even where nothing was counted, and the order
# of what was counted changes nothing.

EVIDENCE = 0.5
# Of questions: beyond any, and within what a float counts.
MOST_COUNT = 2**50
# No model begins with less: what is expected of a question is no more than that.
LEAST_WEIGHT = 0.02


@dataclass(frozen=True)
class ExpertByWord:
    """Counts of shape (N,) by bucket: how often each of ``num`` models was the nearest to a question with that word."""

    num: int
    counts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def weights(self, words: Iterable[int]) -> tuple[float, ...]:
        """Return what a question's words let expect, shape (N,); even where its words are new.

        >>> ExpertByWord(2, {5: (3, 0)}).weights([5])[0] > 0.6 > ExpertByWord(2).weights([5])[0]
        True
        """
        logs = np.zeros(self.num)
        for counted in map(self.counts.get, words):
            if counted is not None:
                seen = np.array(counted) + 1.0
                logs += EVIDENCE * np.log(seen / seen.sum())
        likely = np.exp(logs - logs.max())
        weights = LEAST_WEIGHT + (1.0 - self.num * LEAST_WEIGHT) * likely / likely.sum()
        return tuple((weights / weights.sum()).tolist())

    def adding(self, words: Iterable[int], nearest: int) -> ExpertByWord:
        """Count one more question."""
        counts = dict(self.counts)
        for word in words:
            before = counts.get(word, (0,) * self.num)
            counts[word] = tuple(count + (number == nearest) for number, count in enumerate(before))
        return ExpertByWord(self.num, counts)

    @classmethod
    def from_json(cls, num: int, entry: object) -> ExpertByWord:
        """Read what ``to_json`` returned; what is of another shape is left out."""
        counted = entry.items() if isinstance(entry, dict) else ()
        return cls(num, {int(word): tuple(each) for word, each in counted if _is_counted(word, each, num)})

    def to_json(self) -> dict[str, list[int]]:
        """Return plain data for ``json.dumps``."""
        return {str(word): list(each) for word, each in self.counts.items()}


def is_nearest_by_word(entry: object) -> bool:
    """Whether it can be what ``ExpertByWord.to_json`` returned, of however many models."""
    if not isinstance(entry, dict):
        return False
    nums = {len(each) for each in entry.values() if isinstance(each, list)}
    return all(_is_counted(word, each, max(nums, default=0)) for word, each in entry.items())


def _is_counted(word: str, counts: object, num: int) -> bool:
    is_bucket = word.isascii() and word.isdecimal() and len(word) <= len(str(BUCKETS)) and int(word) < BUCKETS
    if not is_bucket or not isinstance(counts, list) or len(counts) != num:
        return False
    return all(type(each) is int and 0 <= each <= MOST_COUNT for each in counts)
