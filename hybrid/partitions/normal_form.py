"""What a token's text says, whatever its case, space, quotes and dashes; and which texts never say the same.

The law (``tests/partitions/test_normal_form.py``): digits, single letters, brackets, operators, negations and bytes
that are no text have no normal form, so that they are never merged with anything. What has one is a list of what may,
not of what may not: a character that nobody thought of is never merged either.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum

from hybrid.partitions.opposites import NEGATIONS

# Straight marks for curved ones, and one dash for those that are no hyphen: a hyphen may be a minus.
_UNIFIED = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2012\u2013\u2014\u2015", "\u2014")
)
_MARKS = frozenset("\"'\u2014.,;:?")
_APOSTROPHE = "'"
# The mark of a leading space that a vocabulary may show in its texts (SentencePiece; byte-level BPE).
_SPACES = " \u2581\u0120"


class TokenClass(Enum):
    """What a text consists of. Tokens of two classes are never merged."""

    WORD = "word"
    MARK = "mark"
    SPACE = "space"


@dataclass(frozen=True)
class NormalForm:
    """``form``: the text without its differences of spelling. ``script``: of its first letter, empty for others.

    ``starts_word``: whether the text begins with a space; ``is_name``: whether the first letter is a capital.
    """

    form: str
    token_class: TokenClass
    script: str = ""
    starts_word: bool = False
    is_name: bool = False


def normal_form(piece: bytes) -> NormalForm | None:
    """Return the normal form of a token's bytes; None for a token that says nothing but itself.

    >>> normal_form(b" The").form, normal_form(b"7"), normal_form(b" never")
    ('the', None, None)
    """
    try:
        raw = piece.decode()
    except UnicodeDecodeError:  # part of a character
        return None
    if not raw:
        return None
    if raw.isspace():
        return _space(raw)
    text = raw.strip(_SPACES)
    form = unicodedata.normalize("NFKC", text.translate(_UNIFIED)).casefold()
    if form and not set(form) - _MARKS:
        return NormalForm(form, TokenClass.MARK)
    if not _is_word(text.translate(_UNIFIED)) or not _is_word(form) or is_negation(form):
        return None
    letter = next(each for each in text if each not in _APOSTROPHE)
    script = unicodedata.name(letter, "").partition(" ")[0]
    return NormalForm(form, TokenClass.WORD, script, raw[0] in _SPACES, letter.isupper() or letter.istitle())


def _space(raw: str) -> NormalForm | None:
    """Return what white space says: a line's end or a space. A page break, or a separator of records, is neither."""
    if any(each not in "\t\r\n" and unicodedata.category(each) != "Zs" for each in raw):
        return None
    return NormalForm("\n" if "\n" in raw or "\r" in raw else " ", TokenClass.SPACE)


def is_negation(form: str) -> bool:
    """Whether a form says no, or ends in what does.

    >>> [is_negation(form) for form in ("not", "isn't", "'t", "note")]
    [True, True, True, False]
    """
    return form in NEGATIONS or form.endswith(("n't", "'t", "n'"))


def _is_word(text: str) -> bool:
    """Whether a text is letters and apostrophes. A letter alone is none: it is a label, a unit or a variable."""
    letters = [each for each in text if each != _APOSTROPHE]
    return len(text) > 1 and bool(letters) and all(unicodedata.category(each)[0] in "LM" for each in letters)


__all__ = ["NormalForm", "TokenClass", "is_negation", "normal_form"]
