"""Stand an engine at any prefix with the least decoding, and read rows there.

The laws (``tests/engine/test_cursor.py``): what is read depends on the prefix alone, not on what the cache held before;
``follow`` gives what ``row`` would give, and its work does not grow with the text. Rows stay known while the cache
holds what they follow, so what was decoded ahead need not be decoded again.
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
        self._held: list[int] = []  # what the engine holds, unless somebody else has driven it since
        self._rows: dict[int, Dense] = {}  # by the length of what they follow, all of it held
        self._at = 0  # how much of what is held the last row follows

    def row(self, at: Ids, cancelled: Cancelled = never) -> Dense:
        """Return the distribution of the token after ``at`` (at least one token)."""
        shared = self._shared(at)
        if shared == len(at) and (known := self._rows.get(shared)) is not None:
            self._at = shared
            return known
        if 1 < len(at) - shared <= ONE_BY_ONE:
            self.row(at[:-1], cancelled)
            return self.follow(at[-1], cancelled)
        start = min(shared, len(at) - 1)
        return self._read(at[start:], start, 1, cancelled)[0]

    def follow(self, token: int, cancelled: Cancelled = never) -> Dense:
        """Return the distribution after the text of the last row and one more token.

        To be called only where nobody else has driven the engine since that row was read.
        """
        known = self._rows.get(self._at + 1)
        if known is None or self._held[self._at] != token:
            return self._read((token,), self._at, 1, cancelled)[0]
        self._at += 1
        return known

    def rows(self, at: Ids, num_rows: int, cancelled: Cancelled = never) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes of ``at``, ``at`` itself included."""
        start = min(self._shared(at), len(at) - num_rows)
        return self._read(at[start:], start, num_rows, cancelled)

    def _shared(self, at: Ids) -> int:
        """Return how much of ``at`` is held; forget the rows of what no longer is."""
        held = self.engine.ids
        self._forget_from(num_shared(held, tuple(self._held)) + 1)
        self._held = list(held)
        return num_shared(held, at)

    def _read(self, ids: Ids, start: int, num_rows: int, cancelled: Cancelled) -> list[Dense]:
        """Decode ``ids`` after the first ``start`` tokens of what is held."""
        self.stand(start)
        logits = self.engine.extend(ids, num_rows, cancelled)
        self._held.extend(ids)
        self._at = start + len(ids)
        rows = [Dense.from_logits(scores, self.noise) for scores in logits]
        self._rows[self._at] = rows[-1]
        return rows

    def stand(self, length: int) -> None:
        """Rewind to the first ``length`` tokens of what the engine holds."""
        self.engine.rewind(length)
        del self._held[length:]
        self._forget_from(length + 1)

    def _forget_from(self, length: int) -> None:
        self._rows = {n: row for n, row in self._rows.items() if n < length}

    def forget_rows(self, before: int) -> None:
        """Let go of the rows after fewer than ``before`` tokens; their tokens stay in the cache."""
        self._rows = {n: row for n, row in self._rows.items() if n >= before}
