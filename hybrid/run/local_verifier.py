"""A larger local model as a level of a chain: it reads what the models below it have drafted.

It costs time and no money, always answers, and gives its rows in full. It only reads: what it writes itself the loop
draws from its rows (``hybrid.policy.stages``).

The laws (``tests/run/test_local_verifier.py``): after any history of drafts, rejections and handbacks its rows are
those of a fresh context, up to what batches of other shapes do to rounded sums; no token that stands is decoded twice.
"""

from __future__ import annotations

from hybrid.engine import Cursor, IsCancelled
from hybrid.policy.requests import Check, ids
from hybrid.prob import Dense
from hybrid.types import Ids


class LocalVerifier:
    """Reads with one model during one answer, on the thread of its context."""

    def __init__(self, cursor: Cursor, prompt: Ids) -> None:
        """Take the model's cursor and the prompt, which is read with the first span."""
        self.cursor = cursor
        self.rows_read: list[tuple[Ids, Dense]] | None = None
        """Rows read since this list was last emptied, each with the answer before it; None: they are not recorded."""
        self._prompt = prompt
        self._begun = False

    def check(self, request: Check, cancelled: IsCancelled) -> list[Dense]:
        """Return the row before each token of a span, and the one after it where that is wanted."""
        span = ids(request.span)
        return self.rows(request.at, span if request.wants_next_row else span[:-1], cancelled)

    def rows(self, at: Ids, text: Ids, cancelled: IsCancelled) -> list[Dense]:
        """Return the rows after the answer's tokens ``at`` and after each token of ``text`` behind them."""
        if not self._begun:
            self.cursor.begin(self._prompt, cancelled)
            self._begun = True
        begin = self._prompt + at
        self.cursor.forget_rows(before=len(begin))
        first = self.cursor.known_row(begin)
        found = [] if first is None else [first]
        if left := 1 + len(text) - len(found):
            found += self.cursor.rows(begin + text, left, cancelled, keep=True)
        if self.rows_read is not None:
            self.rows_read += ((at + text[:i], row) for i, row in enumerate(found))
        return found

    def rewind_to(self, shown: Ids) -> None:
        """Leave no token in the cache that was not shown. Where no row was ever read, the cache is as it was found."""
        if self._begun:
            self.cursor.rewind_to(self._prompt + shown)
