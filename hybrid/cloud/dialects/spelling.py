"""Tokens by their text, for endpoints that name them so.

A text may be nobody's (a part of a character, a token of another vocabulary) or several tokens' (control tokens, which
many servers print as nothing). Such a text names no token: what it stands for is missing, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from hybrid.types import Ids, Words

# Bytes of a piece that is looked for; longer ones are runs of white space, which shorter ones spell too.
LONGEST = 48


class Spelling:
    """A vocabulary, read backwards."""

    def __init__(self, words: Words) -> None:
        """Take the local vocabulary; its table is made when it is first needed."""
        self._words = words

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._words.end_ids

    @property
    def num_tokens(self) -> int:
        """V."""
        return self._words.num_tokens

    @cached_property
    def opening(self) -> Ids:
        """What the model's own rule puts before every text: a BOS token, or nothing."""
        return self._words.tokenize("", special=True)

    @cached_property
    def _ids(self) -> dict[bytes, int | None]:
        found: dict[bytes, int | None] = {}
        for token in range(self._words.num_tokens):
            piece = self._words.piece(token)
            found[piece] = None if piece in found or not piece else token
        return found

    def id_of(self, text: str | bytes) -> int | None:
        """Return the one token of this text; None if there is none, or more than one."""
        return self._ids.get(text.encode() if isinstance(text, str) else text)

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """Return what some tokens spell, control tokens by their names."""
        return b"".join(map(self._words.piece, ids))

    def text_of(self, ids: Iterable[int]) -> str | None:
        """Return what some tokens spell; None where that ends inside a character, which no JSON can say."""
        try:
            return self.bytes_of(ids).decode()
        except UnicodeDecodeError:
            return None

    def split(self, text: str) -> Ids | None:
        """Return tokens that spell a text exactly; None where no pieces do."""
        ids = self._words.tokenize(text) if text else ()
        return ids if self.bytes_of(ids) == text.encode() else self._longest(text.encode())

    def _longest(self, text: bytes) -> Ids | None:
        """Spell a text by its longest pieces: a tokeniser that puts a space before everything cannot go on a text."""
        found: list[int] = []
        start = 0
        while start < len(text):
            for stop in range(min(len(text), start + LONGEST), start, -1):
                token = self._ids.get(text[start:stop])
                if token is not None and token not in self.end_ids:
                    found.append(token)
                    start = stop
                    break
            else:
                return None
        return tuple(found)
