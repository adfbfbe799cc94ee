"""A cloud whose vocabulary has the local model's tokens under other numbers: every number is exchanged, nothing else.

Such vocabularies are of one family, put together in another order. The law (``tests/cloud/test_renumbered.py``): what
is asked and answered is the same, token for token, so that every rule works as with one vocabulary.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from hybrid.cloud.port import (
    BeforeSend,
    Capabilities,
    Chunk,
    Cloud,
    ModelQuestion,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    unrecorded,
)
from hybrid.prob import TopK
from hybrid.types import CloudUsage, Ids, Vocabulary


def numbers_of(theirs: Vocabulary, ours: Vocabulary) -> Mapping[int, int] | None:
    """Return their number of each token of ours; None: the two do not have the same tokens, or several of one text."""
    numbers = {theirs.piece(token): token for token in range(theirs.num_tokens)}
    pieces = [ours.piece(token) for token in range(ours.num_tokens)]
    if len(numbers) != theirs.num_tokens or {*pieces} != {*numbers} or len(pieces) != len(numbers):
        return None
    found = {token: numbers[piece] for token, piece in enumerate(pieces)}
    return found if {found[token] for token in ours.end_ids} == theirs.end_ids else None


class RenumberedCloud:
    """The cloud port over an endpoint that has our tokens under other numbers."""

    def __init__(self, inner: Cloud, numbers: Mapping[int, int]) -> None:
        """Take the endpoint, and its number of each of our tokens."""
        self._inner = inner
        self._theirs = dict(numbers)
        self._ours = {theirs: ours for ours, theirs in numbers.items()}

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Connect, and compare how the endpoint splits a text, in its numbers."""
        return await self._inner.connect(probe, self._out(probe_ids), asked_at)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that answering may be charged."""
        if isinstance(question, ScoreQuestion):
            return self._inner.max_usage(self._score(question))
        return self._inner.max_usage(self._write(question))

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score a draft."""
        scores = await self._inner.score(self._score(question), request_id, before_send)
        pieces = {self._in(token): text for token, text in scores.pieces.items()}
        return Scores(tuple(map(self._row, scores.rows)), scores.usage, pieces)

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation."""
        async with aclosing(self._inner.write(self._write(question), request_id, before_send)) as chunks:
            async for chunk in chunks:
                rows = tuple(row and self._row(row) for row in chunk.rows)
                yield replace(chunk, ids=tuple(map(self._in, chunk.ids)), rows=rows)

    async def aclose(self) -> None:
        """Close the endpoint."""
        await self._inner.aclose()

    def _score(self, asked: ScoreQuestion) -> ScoreQuestion:
        """Return a question in their numbers."""
        candidates = tuple(map(self._out, asked.candidates))
        return replace(asked, prefix=self._out(asked.prefix), span=self._out(asked.span), candidates=candidates)

    def _write(self, asked: WriteQuestion) -> WriteQuestion:
        """Return a question in their numbers."""
        return replace(asked, prefix=self._out(asked.prefix), ban=frozenset(self._out(tuple(asked.ban))))

    def _out(self, ids: Ids) -> Ids:
        return tuple(self._theirs[token] for token in ids)

    def _in(self, token: int) -> int:
        """Return our number; of padding, which has none, one that no token of ours has."""
        return self._ours.get(token, len(self._ours) + token)

    def _row(self, row: TopK) -> TopK:
        return replace(row, ids=np.array([*map(self._in, row.ids.tolist())], dtype=np.int64))
