"""Stand an engine at any prefix with the least decoding, and read rows there.

The law: what is read depends on the prefix alone, not on what the cache held before (``tests/engine/test_cursor.py``).
"""

from __future__ import annotations

from hybrid.engine.port import Cancelled, Engine, never
from hybrid.prob import Dense
from hybrid.types import Ids


def num_shared(first: Ids, second: Ids) -> int:
    """Length of the longest common prefix."""
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return min(len(first), len(second))


class Cursor:
    """An engine, and the row that follows what it holds, if that is known."""

    def __init__(self, engine: Engine) -> None:
        """Take an engine in whatever state it is."""
        self.engine = engine
        self._after: tuple[Ids, Dense] | None = None

    def row(self, at: Ids, cancelled: Cancelled = never) -> Dense:
        """Return the distribution of the token after ``at`` (at least one token)."""
        if self._after is None or self._after[0] != at or self.engine.ids != at:
            self._after = (at, self.rows(at, 1, cancelled)[0])
        return self._after[1]

    def rows(self, at: Ids, num_rows: int, cancelled: Cancelled = never) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes of ``at``, ``at`` itself included."""
        self.stand(at[: min(num_shared(self.engine.ids, at), len(at) - num_rows)])
        logits = self.engine.extend(at[len(self.engine.ids) :], num_rows, cancelled)
        rows = [Dense.from_logits(scores) for scores in logits]
        self._after = (at, rows[-1])
        return rows

    def stand(self, at: Ids) -> None:
        """Rewind to ``at``, a prefix of what the engine holds."""
        if len(at) < len(self.engine.ids):
            self.engine.rewind(len(at))
