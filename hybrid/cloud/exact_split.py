"""Bytes to tokens and back to the same bytes, in any vocabulary: what a piece of a text is, without the rest of it.

The law (``tests/cloud/test_exact_split.py``): the tokens' bytes, joined, are the bytes that were given: none lost, none
added, wherever a text was cut. A vocabulary that puts a space before every text is told apart from the text's own; a
character that was cut in two is spelled in its bytes.
"""

from __future__ import annotations

import codecs
from functools import cached_property

from hybrid.errors import VocabularyMismatch
from hybrid.prob import Spelling
from hybrid.types import Ids, Vocabulary


class ExactSplitter:
    """Splits pieces of a text into a vocabulary's tokens."""

    def __init__(self, words: Vocabulary) -> None:
        """Take the vocabulary."""
        self.words = words

    @cached_property
    def spelling(self) -> Spelling:
        """The tokens by their bytes; read once, when first needed."""
        return Spelling(tuple(map(self.words.piece, range(self.words.num_tokens))), self.words.end_ids)

    def bytes_of(self, ids: Ids) -> bytes:
        """Return what tokens spell; those that end a text spell nothing."""
        return b"".join(self.words.piece(token) for token in ids if token not in self.words.end_ids)

    def split(self, data: bytes) -> Ids:
        """Return tokens that spell ``data``, to the byte. Raises VocabularyMismatch for a byte that no token spells."""
        start = next((at for at, byte in enumerate(data) if not 0x80 <= byte < 0xC0), len(data))
        end = start + whole_characters(data[start:])
        return self._longest(data[:start]) + self._text(data[start:end]) + self._longest(data[end:])

    def _text(self, data: bytes) -> Ids:
        try:
            ids = self.words.tokenize(data.decode("utf-8"))
        except UnicodeDecodeError:
            return self._longest(data)
        spelled = self.bytes_of(ids)
        if spelled == data:
            return ids
        if ids and spelled == b" " + data:  # a space that stands before every text of this vocabulary
            return self._longest(self.words.piece(ids[0])[1:]) + ids[1:]
        return self._longest(data)

    def _longest(self, data: bytes) -> Ids:
        """Take the longest token at each place."""
        ids: list[int] = []
        while data:
            token = self.spelling.first(data)
            if token is None:
                msg = f"no token of the model spells {data[:4]!r}"
                raise VocabularyMismatch(msg)
            ids.append(token)
            data = data[len(self.spelling.pieces[token]) :]
        return tuple(ids)


def whole_characters(data: bytes) -> int:
    r"""Return how many bytes at the beginning are whole characters of UTF-8: all but one that was cut off at the end.

    >>> whole_characters("né".encode()), whole_characters("né".encode()[:-1])
    (3, 1)
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])
