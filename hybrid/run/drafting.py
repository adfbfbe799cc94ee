"""The drafter answers a ``Draft`` token by token, on the engine's thread; the gate is asked at each token.

Two rules keep the KV cache right. A rejected token stays in it until the next row is read at another prefix: the cursor
(``engine.cursor``) then rewinds to the longest common prefix. And while a check is under way the drafter may decode
ahead what the next draft would need. The law of that (``tests/run/test_overlap.py``): every row and every token is what
it would have been without, to the last bit. So the next draft draws again, from the same coins, and a draft elsewhere
first rewinds what was decoded ahead.

Where several models write as one (``run.experts``), their weights follow what the cloud has said of the shown text when
a span begins, and not before: what it said of a rejected token's successors is about another text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Protocol

from hybrid.defer import CriticNumbers
from hybrid.engine import ONE_BY_ONE, Cursor, Interrupted, IsCancelled, num_shared
from hybrid.engine.port import never
from hybrid.errors import ContextOverflow, EngineError
from hybrid.policy import Coin, CoinKey, DraftPosition
from hybrid.policy.requests import Check, Critique, Draft, Drafted, PendingToken, Span, ids
from hybrid.prob import Dense, warp
from hybrid.record.answer import Mixing, RecordedExpert
from hybrid.run.experts import Evidence, ExpertCursor
from hybrid.types import Ids, Sampling

# The critic: a second local model that reads what the drafter drafted, in one batch, before a planner decides.
#
# It costs time and no money. The laws (``tests/run/test_critic.py``): its numbers are a function of the prompt and of
# what was shown and drafted, whatever was decoded ahead; texts with and without look-ahead are the same; nothing that
# was not shown stays in its cache. Runs on the thread of its context.


class Critic(Protocol):
    """Who says something of a draft: a model, or a trace in its place."""

    @property
    def waited_s(self) -> float:
        """How long it has waited for other contexts so far."""
        ...

    def read(self, at: Ids, span: Span, cancelled: IsCancelled) -> CriticNumbers:
        """Return what it says of a span after ``at``, the answer's tokens before it."""
        ...

    def rewind_to(self, shown: Ids) -> None:
        """Keep nothing that was not shown."""
        ...


class CursorCritic:
    """A model that reads along during one answer."""

    def __init__(self, cursor: Cursor, prompt: Ids) -> None:
        """Take the model's cursor, and the prompt, which is read when a draft is."""
        self._cursor = cursor
        self._prompt = prompt
        self._begun = False

    @property
    def waited_s(self) -> float:
        """How long it has waited for other contexts so far."""
        return self._cursor.waited_s

    def read(self, at: Ids, span: Span, cancelled: IsCancelled) -> CriticNumbers:
        """Read a span whose tokens have their local rows. Raises Interrupted."""
        rows = [token.draft_row for token in span if token.draft_row is not None]
        return self.numbers(at, ids(span), rows, cancelled)

    def numbers(self, at: Ids, tokens: Ids, drafter: Sequence[Dense], cancelled: IsCancelled = never) -> CriticNumbers:
        """Read tokens and return what it says of each; ``drafter``: the drafter's row before each of them."""
        if not self._begun:
            self._cursor.begin(self._prompt, cancelled)
            self._begun = True
        text = self._prompt + at + tokens[:-1]
        return CriticNumbers.of_rows(tokens, drafter, self._cursor.rows(text, len(tokens), cancelled) if tokens else [])

    def rewind_to(self, shown: Ids) -> None:
        """Leave no token in the cache that was not shown. Where nothing was read, the cache is as it was found."""
        if self._begun:
            self._cursor.rewind_to(self._prompt + shown)


class Drafter:
    """Writes with the local model during one answer, on one thread."""

    def __init__(
        self,
        cursor: Cursor | ExpertCursor,
        prompt: Ids,
        sampling: Sampling,
        coin: Coin,
        critic: Critic | None = None,
    ) -> None:
        """Take the model's cursor, or that of several; the prompt, how tokens are drawn, and who reads drafts."""
        self.cursor = cursor
        self.prompt = prompt
        self.sampling = sampling
        self.num_ready = 0
        """Tokens of the last draft that had been decoded ahead."""
        self.coin = coin
        self.critic = critic
        self.rows_read: list[tuple[Ids, Dense]] | None = None
        """Rows read since this list was last emptied, each with the answer before it; None: they are not recorded."""
        self._begun = False
        self._decoded_ahead = False
        # Length of the prefix that the last draft itself needed. Anything longer was decoded ahead.
        self._num_needed: int | None = None
        self._experts = cursor if isinstance(cursor, ExpertCursor) else None
        self._heard: list[Evidence] = []
        self._num_learned = 0  # positions of the answer that the weights have followed, or passed over
        self._last_row: tuple[Ids, Dense | None] = (), None  # after the last draft

    def draft(self, request: Draft, limit: int, cancelled: IsCancelled) -> Drafted:
        """Write up to ``limit`` tokens after ``request.at``; stops at an end token or where the gate says so."""
        self._begin(cancelled)
        self._follow_cloud(request.at, cancelled)
        if self._experts is not None and self._experts.choose(request.expert):
            self._rewind_decoded_ahead()
            self._decoded_ahead = False
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
        self._last_row = request.at + ids(drafted.span), drafted.next_row
        return drafted

    def look_ahead(self, request: Draft, limit: int, cancelled: IsCancelled) -> None:
        """Decode ahead what ``request`` would need. Errors are ignored: the real draft meets them again."""
        self._decoded_ahead = True
        with suppress(Interrupted, EngineError, ContextOverflow):
            self._draft(request, limit, cancelled)

    def rows(self, at: Ids, written: Ids, cancelled: IsCancelled) -> list[Dense]:
        """Return the local row before each token that the cloud wrote."""
        self._begin(cancelled)
        self._follow_cloud(at, cancelled)
        self._rewind_decoded_ahead()
        self.cursor.forget_rows(before=len(self.prompt) + len(at))
        rows = self.cursor.rows(self.prompt + at + written[:-1], len(written), cancelled)
        if self.rows_read is not None:
            self.rows_read += ((at + written[:i], row) for i, row in enumerate(rows))
        return rows

    @property
    def recorded_experts(self) -> tuple[tuple[RecordedExpert, ...], Mixing | None]:
        """What a recording says of several models that write as one."""
        return (self._experts.recorded, self._experts.mixing) if self._experts else ((), None)

    def observe(self, at: Ids, span: Span) -> None:
        """Keep what the cloud said of a span after ``at``: its rows where it gave them, else what it wrote."""
        for i, pending in enumerate(span if self._experts is not None else ()):
            if pending.target_row is not None or pending.source == "cloud":
                reference = pending.id if pending.target_row is None else pending.target_row
                self._heard.append(Evidence(at + ids(span[:i]), reference, pending.draft_row))

    def read_beside(self, request: Check, num_rows: int, cancelled: IsCancelled) -> tuple[Dense, ...]:
        """Return the rows of a span that was scored, and the one after it, with the parts of models that did not write.

        None where a mixture wrote, or one model alone: they are known. What the writing model has not read is left out.
        """
        if self._experts is None or self._experts.mixing == "mix":
            return ()
        at, span = self.prompt + request.at, ids(request.span)
        after = self._last_row[1] if self._last_row[0] == request.at + span else None
        known = (*(pending.draft_row for pending in request.span), after)[:num_rows]
        places = {len(at) + i: row for i, row in enumerate(takewhile(lambda row: row is not None, known))}
        rows = tuple(self._experts.completed(at + span, places, cancelled).values())
        if self.rows_read is not None:
            self.rows_read += ((request.at + span[:i], row) for i, row in enumerate(rows))
        return rows

    @property
    def waited_s(self) -> float:
        """How long its models have waited for other contexts so far."""
        return self.cursor.waited_s + (0.0 if self.critic is None else self.critic.waited_s)

    def critique(self, request: Critique, cancelled: IsCancelled) -> CriticNumbers:
        """Return what the critic says of a draft. Raises ValueError where none was given."""
        if self.critic is None:
            raise ValueError("a draft is weighed by what a critic says, and there is no critic")
        return self.critic.read(request.at, request.span, cancelled)

    def rewind_to(self, shown: Ids) -> None:
        """Leave no token in a cache that was not shown. Where no row was ever read, the cache is as it was found."""
        if self.critic is not None:
            self.critic.rewind_to(shown)
        if not self._begun:
            return
        self._heard = [each for each in self._heard if self._experts and self._experts.is_complete(each.row)]
        self._follow_cloud(shown, never)
        self._rewind_decoded_ahead()
        self._decoded_ahead = False
        self.cursor.rewind_to(self.prompt + shown)

    def _follow_cloud(self, shown: Ids, cancelled: IsCancelled) -> None:
        """Let the weights of several models follow what was heard of the shown text, each position once."""
        if self._experts is None:
            return
        heard: dict[int, Evidence] = {}
        for each in self._heard:
            if len(each.at) >= self._num_learned and each.at == shown[: len(each.at)]:
                heard.setdefault(len(self.prompt) + len(each.at), each)
        if not all(self._experts.is_complete(each.row) for each in heard.values()):
            self._rewind_decoded_ahead()
        rows = {length: each.row for length, each in heard.items()}
        for length, row in self._experts.completed(self.prompt + shown, rows, cancelled).items():
            self._experts.learn(heard[length].reference, row)
            if self.rows_read is not None:
                self.rows_read.append((heard[length].at, row))
            self._num_learned = length - len(self.prompt) + 1
        self._heard = []

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
