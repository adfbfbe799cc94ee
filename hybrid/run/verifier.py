"""The port of a verifier: the larger model that judges drafts and takes the pen, wherever it runs.

A driver knows no more of the larger model than this. The cloud is one verifier (``cloud_verifier``): it has money,
retries and streams. ``ChainReader`` below is none: it only reads, for a chain, where the caller waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from hybrid.cloud import Chunk, Scores
from hybrid.cloud.port import PART, mismatch, without_spaces
from hybrid.engine import Cursor, Engine, IsCancelled, ThoughtMarks
from hybrid.errors import VocabularyMismatch
from hybrid.policy.requests import BudgetDenied, Check, NoAnswer, Scored, Write, Wrote, ids
from hybrid.prob import Dense, TopK
from hybrid.run.open_request import WriteStream
from hybrid.types import Ids, Message, TemplateArg

WorkWhileWaiting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opened while a reply is computed elsewhere: the caller works on meanwhile."""


@dataclass(frozen=True)
class RenderedPrompt:
    """What an answer continues: ``ids`` as the local model reads it, ``turns`` the conversation that they render.

    ``turns``, ``template_args`` and ``thoughts`` are for endpoints that take no prompt but messages. ``thoughts``: the
    marks around thoughts, and whether the prompt has opened them.
    """

    ids: Ids
    turns: tuple[Message, ...] = ()
    template_args: Mapping[str, TemplateArg] = field(default_factory=dict)
    thoughts: ThoughtMarks | None = None


class Verifier(Protocol):
    """One larger model during one answer. A position (``at``) counts from the end of the prompt."""

    async def check(
        self, prompt: RenderedPrompt, request: Check, waiting: WorkWhileWaiting
    ) -> Scored | BudgetDenied | NoAnswer:
        """Return this model's rows for a drafted span: one a token, then the one after; perhaps fewer than were due."""
        ...

    async def write(self, prompt: RenderedPrompt, request: Write) -> Wrote | BudgetDenied | NoAnswer:
        """Return some tokens that this model writes, at most ``request.limit``, each with its row where it has one.

        A further write at the position that was reached goes on with the same text.
        """
        ...

    async def rest(self) -> None:
        """Leave nothing open: the local model goes on, or the answer is over."""
        ...


# A larger local model as a level of a chain: it reads what the models below it have drafted.
#
# It costs time and no money, always answers, and gives its rows in full. It only reads: what it writes itself the loop
# draws from its rows (``hybrid.policy.stages``).
#
# The laws (``tests/run/test_chain_reader.py``): after any history of drafts, rejections and handbacks its rows are
# those of a fresh context, up to what batches of other shapes do to rounded sums; no token that stands is decoded
# twice.


class ChainReader:
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


# Is what an endpoint gives in the local vocabulary? Each reply is held against it, before it is believed.
#
# The law: a token is taken from the cloud only if the local model has a number for it, and reads it alike where the
# endpoint says how it reads (``tests/run/test_driver.py``, ``test_long_text.py``).


@dataclass(frozen=True)
class VocabularyCheck:
    """Compares what an endpoint gives with the local vocabulary. Raises VocabularyMismatch at what differs.

    Padding, which is unlikely, is no other vocabulary: rows are taken over the tokens that both models have. Every
    reply is compared, not only the first: a server that is restarted with another model is noticed.
    ``engine``: the local model.
    """

    engine: Engine

    def check_scores(self, scores: Scores) -> tuple[TopK, ...]:
        """Compare how the endpoint reads some tokens, and its likeliest ones; return the rows over our vocabulary."""
        scores.check_pieces(self.engine)
        self._check_numbers(row.best for row in scores.rows)
        return tuple(row.within(self.engine.num_tokens) for row in scores.rows)

    def check_written(self, stream: WriteStream, chunk: Chunk) -> Chunk:
        """Compare what a stream has written with how the endpoint spells it, which may lag behind.

        Returns the chunk, its rows over the local vocabulary. What was compared is taken off the stream's two texts.
        """
        self._check_numbers(chunk.ids)
        stream.local_text += b"".join(map(self.engine.piece, chunk.ids))
        if stream.cloud_text:
            theirs = without_spaces(stream.cloud_text)
            ours = without_spaces(stream.local_text.decode("utf-8", "replace"))
            if PART not in theirs + ours:
                if not ours.startswith(theirs):
                    raise mismatch("what the cloud wrote", theirs, ours)
                stream.cloud_text, stream.local_text = "", ours.removeprefix(theirs).encode()
        return replace(chunk, rows=tuple(row and row.within(self.engine.num_tokens) for row in chunk.rows))

    def _check_numbers(self, tokens: Iterable[int]) -> None:
        """Raise for a token this model has no number for: llama.cpp would end the process."""
        unknown = next((token for token in tokens if token >= self.engine.num_tokens), None)
        if unknown is not None:
            msg = f"the cloud writes token {unknown}, and the local model has {self.engine.num_tokens} tokens"
            raise VocabularyMismatch(msg)
