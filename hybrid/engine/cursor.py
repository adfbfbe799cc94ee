"""Stand an engine at any prefix with the least decoding, and read rows there.

The law: what is read depends on the prefix alone, not on what the cache held before (``tests/engine/test_cursor.py``).
Rows stay known while the cache holds what they follow, so what was decoded ahead need not be decoded again.
"""

from __future__ import annotations

from hybrid.engine.port import Cancelled, Engine, never
from hybrid.prob import Dense
from hybrid.types import Ids

# So many missing tokens are read one by one, as a draft reads its own: sums of float16 depend on what is decoded
# together, and a row must be the same number whether its prefix was decoded ahead or not. Two is the last drafted token
# and the one that the cloud gave after it.
ONE_BY_ONE = 2


def num_shared(first: Ids, second: Ids) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # first[:low] is shared, first[:high] is not
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low


class Cursor:
    """An engine, and the rows that are known of what it holds."""

    def __init__(self, engine: Engine, noise: float = 0.0) -> None:
        """Take an engine in whatever state it is, and what its log-probabilities may be off by, in nats."""
        self.engine = engine
        self.noise = noise
        self._rows: dict[int, tuple[Ids, Dense]] = {}  # by the length of what they follow

    def row(self, at: Ids, cancelled: Cancelled = never) -> Dense:
        """Return the distribution of the token after ``at`` (at least one token)."""
        shared = num_shared(self.engine.ids, at)
        prefix, row = self._rows.get(len(at), (None, None))
        if row is not None and shared == len(at) and prefix == at:
            return row
        if 1 < len(at) - shared <= ONE_BY_ONE:
            self.row(at[:-1], cancelled)
        return self.rows(at, 1, cancelled)[0]

    def rows(self, at: Ids, num_rows: int, cancelled: Cancelled = never) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes of ``at``, ``at`` itself included."""
        start = min(num_shared(self.engine.ids, at), len(at) - num_rows)
        self.stand(start)
        logits = self.engine.extend(at[start:], num_rows, cancelled)
        rows = [Dense.from_logits(scores, self.noise) for scores in logits]
        self._rows[len(at)] = (at, rows[-1])
        return rows

    def stand(self, length: int) -> None:
        """Rewind to the first ``length`` tokens of what the engine holds."""
        if length < len(self.engine.ids):
            self.engine.rewind(length)
        self._rows = {n: known for n, known in self._rows.items() if n <= length}

    def forget_rows(self, before: int) -> None:
        """Let go of the rows after fewer than ``before`` tokens; their tokens stay in the cache."""
        self._rows = {n: known for n, known in self._rows.items() if n >= before}
