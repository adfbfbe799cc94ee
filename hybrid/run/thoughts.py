"""Divide what a model writes into thoughts and the answer, by its template's own marks.

Thoughts stand before the answer: between two marks, the first of which may stand in the prompt already. Once the answer
has begun a mark is text, so that an answer may speak of one. The law (``tests/run/test_thoughts.py``): however the
bytes come in pieces, the division is the same; what is given out is never taken back; marks, and the space around
thoughts outside of them, are part of neither, but for the marks between gpt-oss's messages (``PAIRS``). Stop strings
are not known here: they see what comes out as the answer's.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from hybrid.engine import ThoughtMarks


@dataclass(frozen=True)
class DividedText:
    """What became readable: some of the thoughts, and some of the answer."""

    thoughts: str = ""
    answer: str = ""


class ThoughtDecoder:
    """Takes the bytes of tokens, gives out whole characters: nothing that may be part of a mark."""

    def __init__(self, marks: ThoughtMarks | None) -> None:
        """Take the marks; without them all is the answer."""
        self._marks = marks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held_back = ""
        self._answering = marks is None
        self.thinking = marks is not None and marks.opened
        """Whether thoughts are open."""
        self._had_thoughts = self.thinking

    @property
    def before_answer(self) -> bool:
        """Whether thoughts have begun, and nothing of the answer has."""
        return self._had_thoughts and not self._answering and (self.thinking or not self._decoder.getstate()[0])

    def add(self, piece: bytes) -> DividedText:
        """Return what became readable with these bytes."""
        text = self._decoder.decode(piece)
        if self._answering:
            return DividedText(answer=text)
        self._held_back += text
        thoughts = ""
        while self.thinking or self._held_back:
            before = self.thinking, self._held_back
            if self.thinking:
                thoughts += self._thought()
            else:
                self._opening()
            if self._answering or before == (self.thinking, self._held_back):
                break
        return DividedText(thoughts, self._begun() if self._answering else "")

    def rest(self) -> DividedText:
        """Return what was held back, once nothing follows."""
        if self.thinking:
            found = DividedText(thoughts=self._held_back)
        else:
            found = DividedText(answer=self._held_back.lstrip() if self._had_thoughts else self._held_back)
        self._held_back = ""
        return found

    def _thought(self) -> str:
        """Take the thoughts as far as they are certain, and their end where it is there."""
        assert self._marks is not None
        thoughts, mark, rest = self._held_back.partition(self._marks.close)
        if mark:
            self.thinking, self._held_back = False, rest
            return thoughts
        keep = overlap(self._held_back, (self._marks.close,))
        cut = len(self._held_back) - keep
        thoughts, self._held_back = self._held_back[:cut], self._held_back[cut:]
        return thoughts

    def _opening(self) -> None:
        """Open thoughts at a mark; begin the answer at anything else but space, and what may become a mark."""
        assert self._marks is not None
        text = self._held_back.lstrip()
        if text.startswith(self._marks.open):
            self.thinking = self._had_thoughts = True
            self._held_back = text[len(self._marks.open) :]
        elif text and not self._marks.open.startswith(text):
            self._answering = True

    def _begun(self) -> str:
        text, self._held_back = self._held_back, ""
        return text.lstrip() if self._had_thoughts else text


def overlap(text: str, marks: Sequence[str]) -> int:
    """Return how many last characters of a text begin one of the marks, without being it."""
    longest = min(max((len(mark) - 1 for mark in marks), default=0), len(text))
    return next((n for n in range(longest, 0, -1) if any(len(m) > n and m.startswith(text[-n:]) for m in marks)), 0)
