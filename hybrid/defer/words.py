"""A question as the buckets of its words: what a learner sees of a question, and all that is ever kept of one.

The law (``tests/defer/test_words.py``): equal questions give equal buckets, in every process and on every machine, and
digits are not told apart. A bucket does not tell its word.
"""

from __future__ import annotations

import itertools
import re
import zlib

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
