"""A server that normalises before it tokenises, in the smallest tokens there are: bytes. It imports nothing of ours.

Qwen's tokeniser composes (NFC), T5's and ALBERT's compose compatibly (NFKC), some with folded case; others decompose.
"""

from __future__ import annotations

import unicodedata
from functools import partial

from hypothesis import strategies as st

NORMALISERS = {
    **{form: partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC", "NFKD")},
    "lower": str.lower,
    "fold": str.casefold,
    "strip": str.strip,
}
# Ligatures, letters with marks, syllables and compatibility characters: each has a longer form of one of the kinds.
LONGER = "\u0390\u01d5üß한각ﷺ㌀㍿½ﬃ①İȺ\U0001d15e\U0002f800\u0f77\u212b"
TEXTS = st.text(st.sampled_from(LONGER) | st.characters(exclude_categories=()), max_size=30)
HOW = st.lists(st.sampled_from(sorted(NORMALISERS)), max_size=3)


def normalised(text, how):
    """A text as a chain of normalisers leaves it."""
    for name in how:
        text = NORMALISERS[name](text)
    return text


def num_tokens(text, how=()):
    return len(normalised(text, how).encode("utf-8", "surrogatepass"))
