"""Text as it becomes readable: whole characters only, and nothing that may turn out to be a stop string.

The law: what is given out, joined, is the text before the stop string that is complete first, however the text came in
pieces; nothing is given out that would have to be taken back (``tests/run/test_stop_strings.py``).
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StopStringDecoder:
    """Takes the bytes of tokens, gives out text."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Take the strings that end the text; none of them is empty."""
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False
        """Whether a stop string was met; from there on nothing is readable."""

    def add(self, piece: bytes) -> str:
        """Return what became readable with these bytes."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        # Where each ends and begins: the first to be complete, and of two that end together the longer one.
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)[1]], ""
            return text
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        text, self._held = self._held, ""
        return text

    def _overlap(self, stop: str) -> int:
        """Return how many last characters of what is held begin a stop string."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)
