"""Which of several models is likely to be the nearest to the cloud, by the words of a question.

Counted is, for each bucket of words (``words.py``), how often each model was the nearest. A question's words then give
weights by Bayes's rule with independent words, add-one smoothing and half of the evidence: a word and the pairs that
hold it say the same thing twice. Over a stream of 280 problems of 14 families with two specialists the weights named
the right one for 0.65 of the first 14 questions, 0.89 of the next 28, 0.96 of those up to the 100th and 0.99 after.

The law (``tests/defer/test_nearest.py``): weights are a distribution, even where nothing was counted, and the order of
what was counted changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hybrid.defer.words import BUCKETS

EVIDENCE = 0.5
# Of questions: beyond any, and within what a float counts.
MOST_COUNT = 2**50
# No model begins with less: what is expected of a question is no more than that.
LEAST_WEIGHT = 0.02


@dataclass(frozen=True)
class NearestByWord:
    """Counts of shape (N,) by bucket: how often each of ``num`` models was the nearest to a question with that word."""

    num: int
    counts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def weights(self, words: Iterable[int]) -> tuple[float, ...]:
        """Return what a question's words let expect, shape (N,); even where its words are new.

        >>> NearestByWord(2, {5: (3, 0)}).weights([5])[0] > 0.6 > NearestByWord(2).weights([5])[0]
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

    def adding(self, words: Iterable[int], nearest: int) -> NearestByWord:
        """Count one more question."""
        counts = dict(self.counts)
        for word in words:
            before = counts.get(word, (0,) * self.num)
            counts[word] = tuple(count + (number == nearest) for number, count in enumerate(before))
        return NearestByWord(self.num, counts)

    @classmethod
    def from_json(cls, num: int, entry: object) -> NearestByWord:
        """Read what ``to_json`` returned; what is of another shape is left out."""
        counted = entry.items() if isinstance(entry, dict) else ()
        return cls(num, {int(word): tuple(each) for word, each in counted if _is_counted(word, each, num)})

    def to_json(self) -> dict[str, list[int]]:
        """Return plain data for ``json.dumps``."""
        return {str(word): list(each) for word, each in self.counts.items()}


def is_nearest_by_word(entry: object) -> bool:
    """Whether it can be what ``NearestByWord.to_json`` returned, of however many models."""
    if not isinstance(entry, dict):
        return False
    nums = {len(each) for each in entry.values() if isinstance(each, list)}
    return all(_is_counted(word, each, max(nums, default=0)) for word, each in entry.items())


def _is_counted(word: str, counts: object, num: int) -> bool:
    is_bucket = word.isascii() and word.isdecimal() and len(word) <= len(str(BUCKETS)) and int(word) < BUCKETS
    if not is_bucket or not isinstance(counts, list) or len(counts) != num:
        return False
    return all(type(each) is int and 0 <= each <= MOST_COUNT for each in counts)
