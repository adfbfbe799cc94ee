"""A remote model over HTTP: a dialect's words on a wire.

What a probe has found is believed until an answer contradicts it: then it is forgotten, and found out anew. What an
answer shows of an endpoint holds for the life of the connection, and longer where it was paid for; a question that was
refused for it at no charge is asked again at once, in the way that is known by then. Several questions may be under
way: what one attempt shows is judged by how that attempt was asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from hybrid.cloud.body import MAX_FACT_BYTES
from hybrid.cloud.deadlines import QuestionDeadlines
from hybrid.cloud.dialects.dialect import Dialect, DialectSetup, Post, ScoreFlow, WriteFlow, tells_rows
from hybrid.cloud.dialects.text_tokens import TextTokens
from hybrid.cloud.dialects.vllm import MODELS, Vllm
from hybrid.cloud.discover import discover
from hybrid.cloud.metering import UsageMeter, final_usage
from hybrid.cloud.port import (
    BeforeSend,
    Capabilities,
    Chunk,
    Question,
    ScoreQuestion,
    Scores,
    WriteQuestion,
    unrecorded,
)
from hybrid.cloud.probe_result import ProbeCache, ProbeResult, apply_result, as_probe_result
from hybrid.cloud.wire import ServerChanged, Wire
from hybrid.errors import CloudError, MissingCapability, ModelNotFound, NotAnApi, Unreachable, VocabularyMismatch
from hybrid.prob import UNMEASURED
from hybrid.types import NO_USAGE, CloudUsage, Ids, Vocabulary


@dataclass
class _AnswerReader:
    """What one attempt at a question has brought.

    ``dialect`` is what it was asked in. ``asked`` is the last request (None: there was none), ``answered`` counts what
    came to them, and ``last`` is what the last reply to a check shows that it was charged.
    """

    dialect: Dialect
    request_id: str
    asked: Post | None = None
    answered: int = 0
    last: CloudUsage = NO_USAGE

    @property
    def charged(self) -> CloudUsage:
        """What a check that failed was charged for certain."""
        known = NO_USAGE if self.asked is None else self.asked.before + self.last
        return replace(known, requests=self.answered)


class Endpoint:
    """The cloud port over one dialect."""

    def __init__(
        self,
        wire: Wire,
        model: str | None = None,
        salt: str | None = None,
        words: Vocabulary | None = None,
        dialect: str | None = None,
        probe_cache: ProbeCache | None = None,
    ) -> None:
        """Take a wire, the model's name (None: the only one served), the salt of this client's prefix cache.

        ``words`` is the local vocabulary, for dialects that speak in text; ``dialect`` None: it is found out;
        ``probe_cache`` holds what earlier probes found.
        """
        self._wire = wire
        self._setup = DialectSetup(model or "", TextTokens(words) if words else None, salt)
        self._wanted = dialect
        self._probe_cache = probe_cache
        self.dialect: Dialect = Vllm(self._setup)
        self._model = model or ""
        self._noise = UNMEASURED
        self._proven_in: int | None = None

    def __repr__(self) -> str:
        """Name endpoint, dialect and model."""
        return f"Endpoint({self._wire.url}, {self.dialect.name}, {self._model or None})"

    @property
    def can(self) -> Capabilities:
        """What it is and can do, as far as is known by now."""
        return self.dialect.can

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Find out at no charge which model is served in which dialect, and whether it splits the probe alike."""
        capabilities = await self.discover(probe, probe_ids, asked_at)
        if capabilities.same_words is False:
            there = f"{capabilities.model} at {self._wire.url}"
            msg = f"{there} and the local model do not share a vocabulary: they split the same text in two ways"
            raise VocabularyMismatch(msg)
        known = self._probe_cache.read(self._wire.url, self._model, self.dialect.name) if self._probe_cache else None
        if known:
            self.apply_probe(known)
        return self.can

    async def discover(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Find out the same, and leave it to the caller what another vocabulary means."""
        with self._wire.hide_key():
            async with self._wire.question_deadlines(asked_at).bound_total():
                self.dialect = await discover(self._wire, self._setup, self._wanted, (probe, probe_ids))
        self._model = self.can.model
        return self.can

    def apply_probe(self, known: ProbeResult) -> None:
        """Take what a probe has measured of this dialect over what documents say."""
        self.dialect = replace(self.dialect, can=apply_result(self.can, known))
        if known.noise_nats is not None and known.noise_nats >= 0.0:
            self._noise = known.noise_nats

    async def ping(self) -> None:
        """Make one round trip for nothing; that there is no such list takes as long."""
        with suppress(NotAnApi, ModelNotFound):
            await self._wire.get(MODELS)

    async def ping_route(self, path: str) -> None:
        """Put an empty question to a route, which costs nothing. Raises CloudError: what comes of one."""
        with self._wire.hide_key():
            await self._wire.post(path, {}, most=MAX_FACT_BYTES)

    def max_usage(self, question: Question) -> CloudUsage:
        """Ask the dialect."""
        return self.dialect.max_usage(question)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Ask what the dialect asks until it has its rows, all of it within one total."""
        deadlines = self._wire.question_deadlines(question.asked_at, before_send)
        while True:
            heard = _AnswerReader(self.dialect, request_id)
            try:
                with self._doubted(heard):
                    return await self._scored(question, deadlines, heard)
            except CloudError as error:
                error.charged = heard.charged.at_least(error.charged)
                if not self._learned(question, error, heard):
                    raise

    async def _scored(self, question: ScoreQuestion, deadlines: QuestionDeadlines, heard: _AnswerReader) -> Scores:
        dialect = heard.dialect
        async with aclosing(self._spoken(dialect.score(question), question, deadlines, heard)) as told:
            scores = [each async for each in told if isinstance(each, Scores)][-1]
        scores = replace(scores, rows=tuple(replace(row, noise=self._noise) for row in scores.rows))
        if heard.asked is None:
            return scores
        self.dialect = self.dialect.learn(question, scores.usage)
        # What the last reply shows is part of the charge, whoever read its rows.
        known = dialect.min_usage(question).at_least(heard.last)
        usage = final_usage(scores.usage, known, dialect.max_usage(question).prompt_tokens)
        return replace(scores, usage=replace(usage, requests=heard.answered))

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; where none can be asked for, one that ends at once and costs nothing.

        Rows that the sampling or a ban has altered are missing.
        """
        deadlines = self._wire.question_deadlines(question.asked_at, before_send)
        while True:
            heard = _AnswerReader(self.dialect, request_id)
            try:
                with self._doubted(heard):
                    async with aclosing(self._written(question, deadlines, heard)) as chunks:
                        async for chunk in chunks:
                            with deadlines.pause():
                                yield chunk
            except CloudError as error:
                if not self._learned(question, error, heard):
                    raise
            else:
                return

    async def _written(
        self, question: WriteQuestion, deadlines: QuestionDeadlines, heard: _AnswerReader
    ) -> AsyncGenerator[Chunk, None]:
        dialect, has_rows = heard.dialect, tells_rows(heard.dialect.can, question)
        vocabulary = self._setup.vocabulary
        end_ids = frozenset[int]() if vocabulary is None else vocabulary.end_ids
        meter = UsageMeter(dialect.min_usage(question), dialect.max_usage(question), end_ids)
        with meter.charge_errors():
            async with aclosing(self._spoken(dialect.write(question), question, deadlines, heard)) as told:
                async for chunk in told:
                    if isinstance(chunk, Scores):
                        continue
                    if heard.asked is None:
                        yield chunk
                        return
                    if chunk.usage is not None:
                        self.dialect = self.dialect.learn(question, chunk.usage)
                    yield self._with_rows(meter.read(chunk), has_rows=has_rows)
        for chunk in meter.remaining():
            yield chunk

    def _with_rows(self, chunk: Chunk, *, has_rows: bool) -> Chunk:
        rows = chunk.rows if has_rows else (None,) * len(chunk.ids)
        return replace(chunk, rows=tuple(row and replace(row, noise=self._noise) for row in rows))

    async def _spoken(
        self, speaking: ScoreFlow | WriteFlow, question: Question, deadlines: QuestionDeadlines, heard: _AnswerReader
    ) -> AsyncGenerator[Chunk | Scores, None]:
        """Ask what a dialect asks, and pass on what it reads; the rows of a draft come last."""
        reply, replies = None, _no_replies()
        try:
            while (said := _said(speaking, reply)) is not None:
                if reply is not None and heard.asked is not None and heard.asked.proof == "gives":
                    self._proven_in = deadlines.sent_in_epoch
                if isinstance(said, Post):
                    heard.asked, heard.last = said, NO_USAGE
                    await replies.aclose()
                    replies = self._replies(said, heard.request_id, deadlines)
                else:
                    yield said
                # Only a stream that ends with [DONE] goes on after it has said why it ended.
                over = isinstance(said, Chunk) and said.finish and heard.asked and heard.asked.stream != "to done"
                reply = None if over else await anext(replies, None)
                if reply is not None:
                    heard.answered += 1
                    if isinstance(question, ScoreQuestion):
                        heard.last = heard.dialect.check_usage(question, reply)
        finally:
            await replies.aclose()

    async def _replies(self, asked: Post, request_id: str, deadlines: QuestionDeadlines) -> AsyncGenerator[Any, None]:
        """Ask, and yield each event of the reply; a whole one is one event. None comes to what may not leave."""
        put = asked.path, asked.body, request_id
        if asked.proof == "needs":
            if self._proven_in is None:
                return
            try:
                reply = await self._wire.post(*put, asked.shape, deadlines, only_in=self._proven_in)
            except ServerChanged:
                return
            yield reply
            return
        if asked.proof == "gives" and self._wire.num_open > 1:  # of which of them it would be one, nobody knows
            return
        if asked.stream is None:
            yield await self._wire.post(*put, asked.shape, deadlines)
            return
        async with aclosing(self._wire.stream(*put, deadlines, lines=asked.stream == "lines")) as events:
            async for event in events:
                yield event

    def _learned(self, question: Question, error: CloudError, heard: _AnswerReader) -> bool:
        """Take what a failure shows of the endpoint; tell whether the question is to be asked again at once.

        Where another question has shown something since this one was asked, that is tried first: several are often
        refused for the same thing. Raises Unreachable where asking anew may help, but not at once: something was
        charged.
        """
        changed = heard.dialect if heard.asked is None else heard.dialect.learn(question, error)
        if changed == heard.dialect:
            return False
        if self.dialect == heard.dialect:
            self.dialect = changed
            self._forget()
        if error.sent or error.charged != NO_USAGE:
            self._keep()
            msg = f"{error}; from now on it is asked in another way"
            raise Unreachable(msg, sent=error.sent, charged=error.charged, trouble="learned") from error
        return True

    @contextmanager
    def _doubted(self, heard: _AnswerReader) -> Iterator[None]:
        """Forget what was found where an answer contradicts it; tell no key, whatever is raised."""
        try:
            with self._wire.hide_key():
                yield
        except CloudError as error:
            error.sent = error.sent and heard.asked is not None  # what is refused before it is asked costs nothing
            if heard.asked is not None and isinstance(error, MissingCapability | VocabularyMismatch):
                self._forget()
            raise

    def _forget(self) -> None:
        if self._probe_cache is not None:
            self._probe_cache.forget(self._wire.url, self._model, self.dialect.name)

    def _keep(self) -> None:
        """Keep what was learned at a price: the next command need not pay for it again."""
        if self._probe_cache is not None:
            noise = None if self._noise == UNMEASURED else self._noise
            can = replace(self.can, model=self._model)
            self._probe_cache.write(replace(as_probe_result(self._wire.url, can), noise_nats=noise))

    async def aclose(self) -> None:
        """Close the wire."""
        await self._wire.aclose()


def _said(speaking: ScoreFlow | WriteFlow, reply: Any) -> Post | Chunk | Scores | None:
    """Send a dialect what came, and return what it says to that; None: it has said everything."""
    try:
        return speaking.send(reply)
    except StopIteration as done:
        scores: Scores | None = done.value
        return scores


async def _no_replies() -> AsyncGenerator[Any, None]:
    return
    yield
