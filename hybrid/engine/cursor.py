"""Read rows at any prefix with the least decoding.

A rejected token stays in the KV cache; the next read at another prefix rewinds to the longest common prefix. Rows are
kept as long as the cache holds their prefix, so tokens that were decoded ahead are not decoded again.

The laws (``tests/engine/test_cursor.py``): a row depends on its prefix alone, not on what the cache held before;
``follow`` gives what ``row`` would give, and its work does not grow with the text.
"""

from __future__ import annotations

from hybrid.engine.port import Engine, IsCancelled, never
from hybrid.prob import Dense
from hybrid.types import Ids

# Up to two missing tokens are decoded singly. A batch sums float16 in another order, and a row must not depend on
# whether its prefix was decoded ahead. Two can be missing: the last drafted token and the cloud's one after it.
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
    """An engine, and the known rows along the tokens in its cache."""

    def __init__(self, engine: Engine, noise: float = 0.0, shift: float | None = None) -> None:
        """Take an engine in any state, and what its rows may be off by, as ``Dense`` has it."""
        self.engine = engine
        self.noise, self.shift = noise, shift
        self._cached_ids: list[int] = []  # the engine's ids when it was last used here; others may drive it, too
        self._rows: dict[int, Dense] = {}  # by the length of the prefix, which is cached
        self._row_length = 0  # tokens before the row that was read last

    def row(self, prefix: Ids, cancelled: IsCancelled = never) -> Dense:
        """Return the distribution of the token after ``prefix`` (at least one token)."""
        self._sync_with_engine()
        shared = num_shared(self.engine.ids, prefix)
        if shared == len(prefix) and (known := self._rows.get(shared)) is not None:
            self._row_length = shared
            return known
        if 1 < len(prefix) - shared <= ONE_BY_ONE:
            self.row(prefix[:-1], cancelled)
            return self.follow(prefix[-1], cancelled)
        start = min(shared, len(prefix) - 1)
        return self._read(prefix[start:], start, 1, cancelled)[0]

    def follow(self, token: int, cancelled: IsCancelled = never) -> Dense:
        """Return the distribution after the prefix of the last row and one more token.

        To be called only where nobody else has driven the engine since that row was read.
        """
        known = self._rows.get(self._row_length + 1)
        if known is None or self._cached_ids[self._row_length] != token:
            return self._read((token,), self._row_length, 1, cancelled)[0]
        self._row_length += 1
        return known

    def rows(self, prefix: Ids, num_rows: int, cancelled: IsCancelled = never) -> list[Dense]:
        """Return the distributions after each of the last ``num_rows`` prefixes of ``prefix``, itself included."""
        self._sync_with_engine()
        start = min(num_shared(self.engine.ids, prefix), len(prefix) - num_rows)
        return self._read(prefix[start:], start, num_rows, cancelled)

    def rewind(self, length: int) -> None:
        """Rewind the engine to the first ``length`` tokens of its cache, and forget the rows after them."""
        self.engine.rewind(length)
        del self._cached_ids[length:]
        self._forget_rows_after(length)

    def forget_rows(self, before: int) -> None:
        """Forget the rows after fewer than ``before`` tokens; their tokens stay in the cache."""
        self._rows = {n: row for n, row in self._rows.items() if n >= before}

    def _sync_with_engine(self) -> None:
        """Forget the rows whose prefix the engine no longer holds."""
        ids = self.engine.ids
        self._forget_rows_after(num_shared(ids, tuple(self._cached_ids)))
        self._cached_ids = list(ids)

    def _read(self, ids: Ids, start: int, num_rows: int, cancelled: IsCancelled) -> list[Dense]:
        """Decode ``ids`` after the first ``start`` cached tokens."""
        self.rewind(start)
        logits = self.engine.extend(ids, num_rows, cancelled)
        self._cached_ids.extend(ids)
        self._row_length = start + len(ids)
        rows = [Dense.from_logits(scores, self.noise, self.shift) for scores in logits]
        self._rows[self._row_length] = rows[-1]
        return rows

    def _forget_rows_after(self, length: int) -> None:
        self._rows = {n: row for n, row in self._rows.items() if n <= length}
