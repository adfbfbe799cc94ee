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


class SpecialTokens:
    """The texts of a vocabulary's special tokens; True: the token takes the space before it."""

    def __init__(self, names: Mapping[str, bool]) -> None:
        """Take the texts."""
        self._names = {name: takes_space for name, takes_space in names.items() if name}
        self._longest = max(map(len, self._names), default=0)

    def parts(self, text: str, size: int = PART) -> Iterator[str]:
        """Yield a text in parts of at least ``size`` characters, the last one excepted."""
        start = 0
        while self._names and len(text) - start > size:
            found = self._any.finditer(text, start + size)
            if (cut := next((each.start() for each in found if self._is_cut(text, each.start())), None)) is None:
                break
            yield text[start:cut]
            start = cut
        yield text[start:]

    @cached_property
    def _any(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._names, key=len, reverse=True))))

    def _is_cut(self, text: str, at: int) -> bool:
        """Whether llama.cpp ends a fragment here, whatever stands around."""
        here = [name for name in self._names if text.startswith(name, at)]
        if any(self._names[name] or name[0].isspace() for name in here):
            return False
        end = at + max(map(len, here))
        begin = max(0, at - self._longest + 1)
        around = text[begin : end + self._longest]
        places = (begin + each.start() for name in self._names for each in re.finditer(f"(?={re.escape(name)})", around)
                  if begin + each.start() + len(name) > at)  # fmt: skip
        return all(place == at or place >= end for place in places)


__all__ = ["PART", "SpecialTokens"]
