"""Answer a ``Draft``: token by token on the engine's own thread, the gate consulted at each.

What the next draft would decode may be decoded ahead while the cloud is waited for. The law: every row and every token
is what it would have been without, to the last bit (``tests/run/test_overlap.py``): the next draft draws afresh, from
the same coins, and whatever does not simply go on first takes back what was decoded ahead.
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
    """The local model as a writer: where it stands, how it draws, what ends it. One answer's, on one thread."""

    def __init__(self, cursor: Cursor, prompt: Ids, sampling: Sampling, coin: Coin) -> None:
        """Take the model's cache, the prompt, and how tokens are drawn."""
        self.cursor = cursor
        self.prompt = prompt
        self.sampling = sampling
        self.num_ready = 0
        """Tokens of the last draft that had been decoded ahead."""
        self.coin = coin
        self.rows_read: list[tuple[Ids, Dense]] | None = None
        """Rows that were read since somebody last looked, with the text before them; None: nobody wants them."""
        self._looked_ahead = False
        self._needed: int | None = None  # how long a prefix the last draft decoded; what is beyond was decoded ahead

    def draft(self, request: Draft, limit: int, cancelled: IsCancelled) -> Drafted:
        """Write up to ``limit`` tokens after ``request.at``; stops at an end token or where the gate says so."""
        at, needed = self.prompt + request.at, self._needed
        if needed is not None and len(at) - needed > ONE_BY_ONE:
            self._take_back()
        cached, start = self.cursor.engine.ids if self._looked_ahead else (), max(len(at), needed or 0)
        self.cursor.forget_rows(before=len(at))
        drafted = self._draft(request, limit, cancelled)
        at += ids(drafted.span)
        self._needed = len(at) if drafted.next_row is not None or not drafted.span else len(at) - 1
        self.num_ready = max(0, num_shared(cached, at) - start)
        self._looked_ahead = False
        return drafted

    def look_ahead(self, request: Draft, limit: int, cancelled: IsCancelled) -> None:
        """Decode what ``request`` would need, for nobody yet. What fails here fails again where it counts."""
        self._looked_ahead = True
        with suppress(Interrupted, EngineError, ContextOverflow):
            self._draft(request, limit, cancelled)

    def rows(self, at: Ids, written: Ids, cancelled: IsCancelled) -> list[Dense]:
        """Read along: the local rows that each written token answers to."""
        self._take_back()
        self.cursor.forget_rows(before=len(self.prompt) + len(at))
        rows = self.cursor.rows(self.prompt + at + written[:-1], len(written), cancelled)
        if self.rows_read is not None:
            self.rows_read += ((at + written[:i], row) for i, row in enumerate(rows))
        return rows

    def rest(self, shown: Ids) -> None:
        """Leave no token in the cache that was not shown."""
        self._take_back()
        self._looked_ahead = False
        self.cursor.rewind(num_shared(self.cursor.engine.ids, self.prompt + shown))

    def _take_back(self) -> None:
        if self._needed is not None:
            self.cursor.rewind(self._needed)
        self._needed = None

    def _draft(self, request: Draft, limit: int, cancelled: IsCancelled) -> Drafted:
        span: list[PendingToken] = []
        call, after = None, None
        rows: list[Dense] = []
        while len(span) < limit and call is None:
            if cancelled():
                raise Interrupted
            row = self._row(request.at, span, cancelled)
            place = DraftPosition(len(request.at) + len(span), rows)
            if (call := request.gate.before(row, place)) is not None:
                after = row
                break
            token, law = self._draw(row, place.position, request.rejections)
            span.append(PendingToken(token, "local", "unchecked", drawn_from=law, draft_row=row))
            call = request.gate.after(row, token, place)
            rows.append(row)
            if token in self.cursor.engine.end_ids:
                break
        ended = bool(span) and span[-1].id in self.cursor.engine.end_ids
        full = len(self.prompt) + len(request.at) + len(span) >= self.cursor.engine.num_context
        if request.wants_next_row and after is None and not ended and not full:
            after = self._row(request.at, span, cancelled)
        return Drafted(tuple(span), call or request.gate.when_full, after)

    def _row(self, at: Ids, span: list[PendingToken], cancelled: IsCancelled) -> Dense:
        """Return the row after a drafted span; only the first one of a draft is found by the text before it."""
        row = self.cursor.follow(span[-1].id, cancelled) if span else self.cursor.row(self.prompt + at, cancelled)
        if self.rows_read is not None:
            self.rows_read.append((at + ids(tuple(span)), row))
        return row

    def _draw(self, row: Dense, position: int, rejections: int) -> tuple[int, Dense | None]:
        if self.sampling.greedy:
            return row.best, None
        law = warp(row, self.sampling)
        return self.coin(law.probs, CoinKey(position, "draft", rejections)), law
