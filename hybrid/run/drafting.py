"""The drafter answers a ``Draft`` token by token, on the engine's thread; the gate is asked at each token.

Two rules keep the KV cache right. A rejected token stays in it until the next row is read at another prefix: the cursor
(``engine.cursor``) then rewinds to the longest common prefix. And while a check is under way the drafter may decode
ahead what the next draft would need. The law of that (``tests/run/test_overlap.py``): every row and every token is what
it would have been without, to the last bit. So the next draft draws again, from the same coins, and a draft elsewhere
first rewinds what was decoded ahead.
"""

from __future__ import annotations

from contextlib import suppress

from hybrid.engine import ONE_BY_ONE, Cursor, Interrupted, IsCancelled, num_shared
from hybrid.errors import ContextOverflow, EngineError
from hybrid.policy import Coin, CoinKey, DraftPosition
from hybrid.policy.requests import Draft, Drafted, PendingToken, ids
from hybrid.prob import Dense, warp
from hybrid.types import Ids, Sampling


class Drafter:
    """Writes with the local model during one answer, on one thread."""

    def __init__(self, cursor: Cursor, prompt: Ids, sampling: Sampling, coin: Coin) -> None:
        """Take the model's cursor, the prompt, and how tokens are drawn."""
        self.cursor = cursor
        self.prompt = prompt
        self.sampling = sampling
        self.num_ready = 0
        """Tokens of the last draft that had been decoded ahead."""
        self.coin = coin
        self.rows_read: list[tuple[Ids, Dense]] | None = None
        """Rows read since this list was last emptied, each with the answer before it; None: they are not recorded."""
        self._begun = False
        self._decoded_ahead = False
        # Length of the prefix that the last draft itself needed. Anything longer was decoded ahead.
        self._num_needed: int | None = None

    def draft(self, request: Draft, limit: int, cancelled: IsCancelled) -> Drafted:
        """Write up to ``limit`` tokens after ``request.at``; stops at an end token or where the gate says so."""
        self._begin(cancelled)
        at, needed = self.prompt + request.at, self._num_needed
        if needed is not None and len(at) - needed > ONE_BY_ONE:
            self._rewind_decoded_ahead()
        cached, start = self.cursor.engine.ids if self._decoded_ahead else (), max(len(at), needed or 0)
        self.cursor.forget_rows(before=len(at))
        drafted = self._draft(request, limit, cancelled)
        at += ids(drafted.span)
        # The last drafted token is not decoded unless the next row was read.
        self._num_needed = len(at) if drafted.next_row is not None or not drafted.span else len(at) - 1
        self.num_ready = max(0, num_shared(cached, at) - start)
        self._decoded_ahead = False
        return drafted

    def look_ahead(self, request: Draft, limit: int, cancelled: IsCancelled) -> None:
        """Decode ahead what ``request`` would need. Errors are ignored: the real draft meets them again."""
        self._decoded_ahead = True
        with suppress(Interrupted, EngineError, ContextOverflow):
            self._draft(request, limit, cancelled)

    def rows(self, at: Ids, written: Ids, cancelled: IsCancelled) -> list[Dense]:
        """Return the local row before each token that the cloud wrote."""
        self._begin(cancelled)
        self._rewind_decoded_ahead()
        self.cursor.forget_rows(before=len(self.prompt) + len(at))
        rows = self.cursor.rows(self.prompt + at + written[:-1], len(written), cancelled)
        if self.rows_read is not None:
            self.rows_read += ((at + written[:i], row) for i, row in enumerate(rows))
        return rows

    def rewind_to(self, shown: Ids) -> None:
        """Leave no token in the cache that was not shown. Where no row was ever read, the cache is as it was found."""
        if not self._begun:
            return
        self._rewind_decoded_ahead()
        self._decoded_ahead = False
        self.cursor.rewind(num_shared(self.cursor.engine.ids, self.prompt + shown))

    def _begin(self, cancelled: IsCancelled) -> None:
        if not self._begun:
            self.cursor.begin(self.prompt, cancelled)
            self._begun = True

    def _rewind_decoded_ahead(self) -> None:
        if self._num_needed is not None:
            self.cursor.rewind(self._num_needed)
        self._num_needed = None

    def _draft(self, request: Draft, limit: int, cancelled: IsCancelled) -> Drafted:
        span: list[PendingToken] = []
        decision, after = None, None
        rows: list[Dense] = []
        while len(span) < limit and decision is None:
            if cancelled():
                raise Interrupted
            row = self._row(request.at, span, cancelled)
            position = DraftPosition(len(request.at) + len(span), rows)
            if (decision := request.gate.before(row, position)) is not None:
                after = row
                break
            token, drawn_from = self._draw(row, position.position, request.rejections)
            span.append(PendingToken(token, "local", "unchecked", drawn_from=drawn_from, draft_row=row))
            decision = request.gate.after(row, token, position)
            rows.append(row)
            if token in self.cursor.engine.end_ids:
                break
        ended = bool(span) and span[-1].id in self.cursor.engine.end_ids
        full = len(self.prompt) + len(request.at) + len(span) >= self.cursor.engine.num_context
        if request.wants_next_row and after is None and not ended and not full:
            after = self._row(request.at, span, cancelled)
        return Drafted(tuple(span), decision or request.gate.when_full, after, ended)

    def _row(self, at: Ids, span: list[PendingToken], cancelled: IsCancelled) -> Dense:
        """Return the row after a drafted span. Only the first row of a draft is looked up by its whole prefix."""
        row = self.cursor.follow(span[-1].id, cancelled) if span else self.cursor.row(self.prompt + at, cancelled)
        if self.rows_read is not None:
            self.rows_read.append((at + ids(tuple(span)), row))
        return row

    def _draw(self, row: Dense, position: int, rejections: int) -> tuple[int, Dense | None]:
        if self.sampling.greedy:
            return row.best, None
        law = warp(row, self.sampling)
        return self.coin(law.probs, CoinKey(position, "draft", rejections)), law
