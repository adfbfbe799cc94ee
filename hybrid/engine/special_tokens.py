"""Where a text may be cut before it is split into tokens, so that its parts have the tokens of the whole.

llama.cpp first looks for its special tokens, and from each that it finds on to the end of the text for all others: the
square of the turns of a conversation. A part is short, so that all parts together are linear.

The law (``tests/engine/test_special_tokens.py``): the tokens of the parts, joined, are those of the text. A cut stands
before a special token where no other one begins earlier and ends later, or begins inside it, and where no space around
belongs to one. Pure text: knows no llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

# Characters of a part, if a cut can stand there. A part of so many takes 2 ms.
PART = 1 << 14
# Characters of a name by which a place is found.
_BEGINNING = 4


class SpecialTokens:
    """The texts of a vocabulary's special tokens; True: the token takes the space before it."""

    def __init__(self, names: Mapping[str, bool]) -> None:
        """Take the texts."""
        self._names = {name: takes_space for name, takes_space in names.items() if name}
        self._lengths = sorted({len(name) for name in self._names}, reverse=True)

    def parts(self, text: str, size: int = PART) -> Iterator[str]:
        """Yield a text in parts of at least ``size`` characters, the last one excepted."""
        start = 0
        while self._names and len(text) - start > size:
            places = (each.start() for each in self._beginnings.finditer(text, start + size))
            if (cut := next((place for place in places if self._is_cut(text, place)), None)) is None:
                break
            yield text[start:cut]
            start = cut
        yield text[start:]

    @cached_property
    def _beginnings(self) -> re.Pattern[str]:
        """Where a name may begin. Of 6,400 whole names each character takes 0.1 ms where all begin alike."""
        return re.compile(f"(?={'|'.join(map(re.escape, sorted({name[:_BEGINNING] for name in self._names})))})")

    def _names_at(self, text: str, place: int) -> list[str]:
        """Return the names that stand at a place, the longest first."""
        texts = (text[place : place + length] for length in self._lengths)
        return [each for each in texts if each in self._names]

    def _is_cut(self, text: str, at: int) -> bool:
        """Whether llama.cpp ends a fragment here, whatever stands around."""
        here = self._names_at(text, at)
        if not here or any(self._names[name] or name[0].isspace() for name in here):
            return False
        places = range(max(0, at - self._lengths[0] + 1), at + len(here[0]))
        longest = ((place, names[0]) for place in places if place != at and (names := self._names_at(text, place)))
        return all(place + len(name) <= at for place, name in longest)


__all__ = ["PART", "SpecialTokens"]
