"""A cloud of another vocabulary, which answers in the local model's tokens: positions are bytes of the text.

A question is put in the endpoint's own tokens. Its rows stand where its tokens begin; what they tell of a place inside
one is what goes on from the bytes before it (``prob.TextRow``). What it writes is split into local tokens, the last one
held back until more has come, so that it may still grow.

The law (``tests/cloud/test_translated.py``): a text goes in and comes out as the same bytes, wherever tokens,
characters and merges were cut. Greedily, the token that a row names is the one with which the endpoint's own text goes
on: whoever takes it at the first difference has that text (exact match of strings, arXiv:2502.05202). Where its most
likely token ends inside one of its tokens of the draft, the row after it is not known, and missing.

Charges are the endpoint's, of its own tokens. A token that is wider than what was taken of it is owed: its end comes
with the next request to write, for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

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
from hybrid.cloud.translation import (
    ExactSplitter,
    ReadableVocabulary,
    RowTranslator,
    StreamRetokenizer,
    TokenizedAnswer,
    follow,
    whole_characters,
)
from hybrid.errors import MissingCapability
from hybrid.prob import TextRow, TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids, Message, Vocabulary, num_shared

_K = TypeVar("_K")
_V = TypeVar("_V")
_Q = TypeVar("_Q", bound=ModelQuestion)

# A cloud whose vocabulary has the local model's tokens under other numbers: every number is exchanged, nothing else.
#
# Such vocabularies are of one family, put together in another order. The law (``tests/cloud/test_renumbered.py``): what
# is asked and answered is the same, token for token, so that every rule works as with one vocabulary.


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
        return self._inner.max_usage(self._asked(question))

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score a draft."""
        scores = await self._inner.score(self._asked(question), request_id, before_send)
        pieces = {self._in(token): text for token, text in scores.pieces.items()}
        return Scores(tuple(map(self._row, scores.rows)), scores.usage, pieces)

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation."""
        async with aclosing(self._inner.write(self._asked(question), request_id, before_send)) as chunks:
            async for chunk in chunks:
                rows = tuple(row and self._row(row) for row in chunk.rows)
                yield replace(chunk, ids=tuple(map(self._in, chunk.ids)), rows=rows)

    async def aclose(self) -> None:
        """Close the endpoint."""
        await self._inner.aclose()

    def _asked(self, question: _Q) -> _Q:
        """Return a question in their numbers."""
        more: dict[str, Any] = {"prefix": self._out(question.prefix)}
        if isinstance(question, ScoreQuestion):
            more |= {"span": self._out(question.span), "candidates": tuple(map(self._out, question.candidates))}
        else:
            more["ban"] = frozenset(self._out(tuple(question.ban)))
        return replace(question, **more)

    def _out(self, ids: Ids) -> Ids:
        return tuple(self._theirs[token] for token in ids)

    def _in(self, token: int) -> int:
        """Return our number; of padding, which has none, one that no token of ours has."""
        return self._ours.get(token, len(self._ours) + token)

    def _row(self, row: TopK) -> TopK:
        return replace(row, ids=np.array([*map(self._in, row.ids.tolist())], dtype=np.int64))


# Questions of an answer that are remembered as they were spelled, and prompts as they were rendered.
MOST_REMEMBERED = 64


class ChatTokenizer(ReadableVocabulary, Protocol):
    """A vocabulary, and conversations as its model reads them."""

    def render(self, messages: Sequence[Message]) -> Ids:
        """Return a conversation as the model's chat template writes it, ready for the assistant's turn."""
        ...


@dataclass(frozen=True, eq=False)
class _Spelled:
    """A question in the endpoint's words: the prompt, the answer's tokens, and what of them stands (bytes)."""

    prompt: Ids
    reading: TokenizedAnswer
    text: bytes
    shown: int


class TranslatedCloud:
    """The cloud port over an endpoint whose vocabulary, ``theirs``, is not the local one, ``ours``.

    How it has read an answer decides how it reads on, so each answer has its own (``for_answer``): else a question
    that is asked twice would be answered from what came of it the first time.
    """

    def __init__(self, inner: Cloud, theirs: ChatTokenizer, ours: Vocabulary) -> None:
        """Take the endpoint, which is asked in its own tokens."""
        self._inner = inner
        self._words = theirs
        self._theirs, self._ours = ExactSplitter(theirs), ExactSplitter(ours)
        self._rows = RowTranslator(theirs, self._ours)
        self._max_context: int | None = None
        self._prompts: OrderedDict[Ids, Ids] = OrderedDict()
        self._reading = TokenizedAnswer()
        self._spelled: OrderedDict[tuple[Ids, Ids], _Spelled] = OrderedDict()

    def for_answer(self) -> TranslatedCloud:
        """Return the same endpoint for one answer, of which nothing was read yet."""
        own = copy(self)
        own._reading, own._spelled = TokenizedAnswer(), OrderedDict()
        return own

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:  # noqa: ARG002
        """Connect, and compare the vocabulary that was named with the endpoint's own."""
        can = await self._inner.connect(probe, self._words.tokenize(probe), asked_at)
        self._max_context = can.max_context
        return replace(can, same_words=False, ids=False, candidates=False)

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that answering may be charged."""
        if isinstance(question, ScoreQuestion):
            return self._inner.max_usage(self._score_question(question))
        return self._inner.max_usage(self._write_question(question))

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score the text of a draft, and lay its rows beside the draft's own tokens."""
        spelled, asked = self._spell(question), self._score_question(question)
        scores = await self._inner.score(asked, request_id, before_send)
        scores.check_pieces(self._words)
        start = spelled.reading.last_place(spelled.shown)
        rows = {start + number: row for number, row in enumerate(scores.rows)}
        reading = self._with_rows(spelled.reading, rows, spelled.text)
        self._reading = reading.recent()
        return Scores(tuple(self._rows_of(question, spelled, reading)), scores.usage)

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation in local tokens; what is owed comes first."""
        spelled, asked = self._spell(question), self._write_question(question)
        writer = StreamRetokenizer(self._rows, self._ours, spelled.reading, spelled.text)
        owed = writer.owed()
        if len(owed.ids) >= question.limit:
            yield replace(owed, finish="length", usage=NO_USAGE)
            return
        if owed.ids:
            yield owed
        try:
            async with aclosing(self._inner.write(asked, request_id, before_send)) as chunks:
                async for chunk in chunks:
                    yield writer.read(chunk)
        finally:
            self._reading = writer.reading.recent()

    async def aclose(self) -> None:
        """Close the endpoint."""
        await self._inner.aclose()

    # ---- questions in their words ------------------------------------------------------------------------------------

    def _score_question(self, question: ScoreQuestion) -> ScoreQuestion:
        spelled = self._spell(question)
        reading, shown = spelled.reading, spelled.shown
        start = reading.last_place(shown)
        ends = bool(question.span) and question.span[-1] in self._ours.words.end_ids
        after = question.after or ends or whole_characters(spelled.text) < len(spelled.text)
        prefix, span = spelled.prompt + reading.ids[:start], reading.ids[start:]
        self._mind_context(len(prefix) + len(span))
        return ScoreQuestion(prefix, span, after, question.top_k, asked_at=question.asked_at)

    def _write_question(self, question: WriteQuestion) -> WriteQuestion:
        if question.ban:
            raise MissingCapability("a token cannot be banned in another vocabulary")
        spelled = self._spell(question)
        prefix = spelled.prompt + spelled.reading.ids
        self._mind_context(len(prefix))
        limit = question.limit if self._max_context is None else min(question.limit, self._max_context - len(prefix))
        return replace(question, prefix=prefix, limit=limit, begun=len(spelled.reading.ids), turns=())

    def _mind_context(self, num: int) -> None:
        if self._max_context is not None and num >= self._max_context:
            raise MissingCapability("the text has outgrown the cloud model's context")

    def _spell(self, question: ModelQuestion) -> _Spelled:
        """Return a question in their words: the same for as long as it is being asked."""
        span = question.span if isinstance(question, ScoreQuestion) else ()
        key = question.prefix, (*span, -1) if isinstance(question, ScoreQuestion) else ()
        if (found := self._spelled.get(key)) is not None:
            return found
        prompt = question.prefix[: len(question.prefix) - question.begun]
        shown = self._ours.bytes_of(question.prefix[len(prompt) :])
        text = shown + self._ours.bytes_of(span)
        scores = isinstance(question, ScoreQuestion)
        sampled = isinstance(question, WriteQuestion) and not question.sampling.greedy
        reading = self._kept(self._reading, text, len(shown), whole=scores or sampled)
        end = whole_characters(text) if scores else len(text)
        rest = self._theirs.split(text[reading.start(len(reading.ids)) : end])
        reading = reading.extend(rest, tuple(len(self._words.piece(token)) for token in rest), own=False)
        spelled = _Spelled(self._prompt_ids(question, prompt), reading, text, len(shown))
        _keep(self._spelled, key, spelled)
        return spelled

    def _kept(self, last: TokenizedAnswer, text: bytes, shown: int, *, whole: bool) -> TokenizedAnswer:
        """Return what holds of the last reading; ``whole``: nothing may be longer than the text."""
        pieces = [*map(self._words.piece, last.ids)]
        favourites = {place: self._rows.piece_of(token) or b"" for place, token in last.favourites.items()}
        kept = follow(last, pieces, favourites, text, shown)
        longer = whole and kept.start(len(kept.ids)) > len(text)
        return kept.keep(len(kept.ids) - 1) if longer else kept

    def _prompt_ids(self, question: ModelQuestion, prompt: Ids) -> Ids:
        """Return the prompt as their own template renders it, or its text in their tokens."""
        if question.has_template_args:
            raise MissingCapability("arguments of the local model's chat template mean nothing to another model's")
        if (found := self._prompts.get(prompt)) is not None:
            return found
        if question.turns:
            ids = self._words.render(question.turns)
        else:
            text = b"".join(map(self._ours.words.piece, prompt)).decode("utf-8", "replace")
            ids = self._words.tokenize(text, special=True)
        _keep(self._prompts, prompt, ids)
        return ids

    # ---- rows in our words -------------------------------------------------------------------------------------------

    def _with_rows(self, reading: TokenizedAnswer, rows: dict[int, TopK], text: bytes) -> TokenizedAnswer:
        """Return a reading with rows, and with which of its tokens are their own choice."""
        favourites = {place: row.best for place, row in rows.items()}
        own, covered = [*reading.own], -1
        for place, token in enumerate(reading.ids):
            start, favourite = reading.start(place), favourites.get(place)
            if own[place] or favourite is None or start <= covered:
                continue
            own[place] = favourite == token
            piece = b"" if own[place] else self._rows.piece_of(favourite) or b""
            if shared := num_shared((*text[start:],), (*piece,)):
                # As far as the two agree they would have come here by another token; behind it no row is known.
                covered = len(text) if shared == len(piece) else start + shared
        known = {**reading.favourites, **favourites}
        return replace(reading, own=tuple(own), rows={**reading.rows, **rows}, favourites=known)

    def _rows_of(self, question: ScoreQuestion, spelled: _Spelled, reading: TokenizedAnswer) -> list[TextRow]:
        """Return the rows at the draft's tokens, up to the first place of which none is known."""
        drafted: list[int | None] = [*question.span, *([None] if question.after else [])]
        rows: list[TextRow] = []
        offset = spelled.shown
        for token in drafted:
            if (row := self._rows.row_at(reading, spelled.text, offset, token)) is None:
                break
            rows.append(row)
            offset += 0 if token is None else len(self._ours.bytes_of((token,)))
        return rows


def _keep(kept: OrderedDict[_K, _V], key: _K, value: _V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > MOST_REMEMBERED:
        kept.popitem(last=False)
