"""Answer a ``Draft``: token by token on the engine's own thread, the gate consulted at each."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.engine import Cancelled, Cursor, Interrupted
from hybrid.policy import Coin, Toss
from hybrid.policy.requests import Draft, Drafted, Held
from hybrid.prob import Dense, warp
from hybrid.types import Ids, Sampling


@dataclass(frozen=True)
class Drafter:
    """The local model as a writer: where it stands, how it draws, what ends it."""

    cursor: Cursor
    prompt: Ids
    sampling: Sampling
    coin: Coin

    def draft(self, request: Draft, limit: int, cancelled: Cancelled) -> Drafted:
        """Write up to ``limit`` tokens after ``request.at``; stops at an end token or where the gate says so."""
        span: list[Held] = []
        at, call, after = self.prompt + request.at, None, None
        while len(span) < limit and call is None:
            if cancelled():
                raise Interrupted
            row = self.cursor.row(at, cancelled)
            if (call := request.gate.before(row, len(span))) is not None:
                after = row
                break
            token, law = self._draw(row, len(request.at) + len(span), request.rejections)
            span.append(Held(token, "local", "unchecked", law=law, local=row))
            at += (token,)
            call = request.gate.after(row, token, len(span))
            if token in self.cursor.engine.end_ids:
                break
        ended = bool(span) and span[-1].id in self.cursor.engine.end_ids
        full = len(at) >= self.cursor.engine.num_context
        if request.after and after is None and not ended and not full:
            after = self.cursor.row(at, cancelled)
        return Drafted(tuple(span), call or request.gate.full, after)

    def _draw(self, row: Dense, position: int, rejections: int) -> tuple[int, Dense | None]:
        if self.sampling.greedy:
            return row.best, None
        law = warp(row, self.sampling)
        return self.coin(law.probs, Toss(position, "draft", rejections)), law

    def rows(self, at: Ids, written: Ids, cancelled: Cancelled) -> list[Dense]:
        """Read along: the local rows that each written token answers to."""
        return self.cursor.rows(self.prompt + at + written[:-1], len(written), cancelled)
