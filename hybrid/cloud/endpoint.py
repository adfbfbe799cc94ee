"""The cloud port over HTTP: the requests of one dialect on one wire.

A probe's result is used until an answer contradicts it; then it is dropped. What an answer shows of the endpoint
(``Dialect.learn_from_usage``, ``learn_from_error``) holds for the life of the connection, and longer where it was paid
for. A question that was refused for it at no charge is asked again at once, in the way that is known by then. Several
questions may be under way: an attempt is judged by the dialect that it was asked in. ``tests/cloud/test_endpoint.py``
and ``test_learned.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from hybrid.cloud.bounds import MAX_FACT_BYTES, QuestionDeadlines
from hybrid.cloud.dialects.dialect import ContinuationRequest, Dialect, DialectConfig, Post, tells_rows
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.dialects.vllm import MODELS, Vllm
from hybrid.cloud.discover import DIALECTS, TEXT_CHAT, discover, render_chat, takes_messages
from hybrid.cloud.port import (
    BeforeSend,
    Capabilities,
    Chunk,
    ModelQuestion,
    ScoreQuestion,
    Scores,
    UsageMeter,
    WriteQuestion,
    final_usage,
    unrecorded,
)
from hybrid.cloud.probe_result import ProbeCache, ProbeResult, apply_result, as_probe_result
from hybrid.cloud.reply_floor import ReplyFloor, limit_name
from hybrid.cloud.wire import ServerChanged, Wire
from hybrid.errors import CloudError, MissingCapability, ModelNotFound, NotAnApi, Unreachable, VocabularyMismatch
from hybrid.prob import UNMEASURED
from hybrid.types import NO_USAGE, CloudUsage, Ids, Message, Vocabulary


@dataclass
class _Attempt:
    """One attempt at a question.

    ``dialect``: the one it is asked in. ``post``: its last request; None: it has sent none. ``num_replies``: those that
    came to a check. ``last_usage``: the charge that the last reply to a check shows.
    """

    dialect: Dialect
    request_id: str
    deadlines: QuestionDeadlines
    post: Post | None = None
    num_replies: int = 0
    last_usage: CloudUsage = NO_USAGE

    @property
    def charged(self) -> CloudUsage:
        """The certain charge of a check that failed."""
        known = NO_USAGE if self.post is None else self.post.before + self.last_usage
        return replace(known, requests=self.num_replies)


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

        ``words``: the local vocabulary, for dialects that speak in text. ``dialect`` None: it is discovered.
        ``probe_cache``: the results of earlier probes.
        """
        self._wire = wire
        self._setup = DialectConfig(model or "", TextVocabulary(words) if words else None, salt, limit_name(wire.url))
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
        """What the endpoint is and can do, as far as is known by now."""
        return self.dialect.can

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Discover model and dialect, compare the vocabularies, and take over what an earlier probe measured."""
        capabilities = await self.discover(probe, probe_ids, asked_at)
        if capabilities.same_words is False:
            there = f"{capabilities.model} at {self._wire.url}"
            msg = (
                f"{there} and the local model do not share a vocabulary: they split the same text in two ways; "
                "whole answers need none where it takes messages (--policy route)"
            )
            raise VocabularyMismatch(msg)
        known = self._probe_cache.read(self._wire.url, self._model, self.dialect.name) if self._probe_cache else None
        if known:
            self.apply_probe(known)
        return self.can

    async def connect_by_messages(self, asked_at: float | None = None) -> Capabilities:
        """Connect by the chat route and read nothing but text, whatever the vocabulary. Raises NotAnApi without one."""
        async with self._wire.question_deadlines(asked_at).bound_total():
            if not await takes_messages(self._wire):
                msg = f"{self._wire.url} takes no messages"
                raise NotAnApi(msg)
        self._wanted = TEXT_CHAT
        return await self.connect("", (), asked_at)

    async def discover(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Discover model and dialect at no charge, and whether the endpoint splits ``probe`` into ``probe_ids``."""
        try:
            async with self._wire.question_deadlines(asked_at).bound_total():
                self.dialect = await discover(self._wire, self._setup, self._wanted, (probe, probe_ids))
        except CloudError as error:
            self._wire.hide_key(error)
            raise
        self._model = self.can.model
        return self.can

    def apply_probe(self, known: ProbeResult) -> None:
        """Prefer what a probe has measured of this dialect to what its documents say."""
        self.dialect = replace(self.dialect, can=apply_result(self.can, known))
        if known.noise_nats is not None and known.noise_nats >= 0.0:
            self._noise = known.noise_nats

    async def ping(self) -> None:
        """Make one free round trip. A list of models that does not exist takes as long."""
        with suppress(NotAnApi, ModelNotFound):
            await self._wire.get(MODELS)

    async def ping_route(self, path: str) -> None:
        """Send an empty question to a route, which is free. Raises CloudError: the route's refusal."""
        try:
            await self._wire.post(path, {}, most=MAX_FACT_BYTES)
        except CloudError as error:
            self._wire.hide_key(error)
            raise

    async def render_chat(self, turns: Sequence[Message]) -> Ids | None:
        """Return a conversation's ids as the endpoint's own template writes it, at no charge.

        None: it cannot be asked, or something went wrong.
        """
        try:
            async with self._wire.question_deadlines(None).bound_total():
                return await render_chat(self._wire, DIALECTS[self.dialect.name], self._model, turns)
        except CloudError:
            return None

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that answering may be charged."""
        return self.dialect.max_usage(question)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Send the requests of the dialect's flow until it returns its rows, all within one total deadline."""
        deadlines = self._wire.question_deadlines(question.asked_at, before_send)
        while True:
            attempt = _Attempt(self.dialect, request_id, deadlines)
            try:
                return await self._score_once(question, attempt)
            except CloudError as error:
                error.charged = attempt.charged.at_least(error.charged)
                if not self._learn(question, error, attempt):
                    raise

    async def _score_once(self, question: ScoreQuestion, attempt: _Attempt) -> Scores:
        dialect, reply = attempt.dialect, None
        flow = dialect.score(question)
        while True:
            try:
                step: Post | Scores = flow.send(reply)
            except StopIteration as done:
                step = done.value
            if reply is not None and attempt.post is not None and attempt.post.proof == "gives":
                self._proven_in = attempt.deadlines.sent_in_epoch
            if isinstance(step, Scores):
                break
            reply = await self._post(step, attempt)
            if reply is not None:
                attempt.num_replies += 1
                attempt.last_usage = dialect.check_usage(question, reply)
        scores = replace(step, rows=tuple([replace(row, noise=self._noise) for row in step.rows]))
        if attempt.post is None:
            return scores
        self._learn_from_usage(question, scores.usage)
        # The charge that the last reply shows counts, whoever read its rows.
        known = dialect.min_usage(question).at_least(attempt.last_usage)
        usage = final_usage(scores.usage, known, dialect.max_usage(question).prompt_tokens)
        return replace(scores, usage=replace(usage, requests=attempt.num_replies))

    async def _post(self, post: Post, attempt: _Attempt) -> Any:
        """Send a request and return its whole reply; None for a request that must not leave (``Post.proof``)."""
        attempt.post, attempt.last_usage = post, NO_USAGE
        if post.proof == "needs" and self._proven_in is None:
            return None
        if post.proof == "gives" and self._wire.num_open > 1:  # nobody knows of which connection it would be a proof
            return None
        only_in = self._proven_in if post.proof == "needs" else None
        try:
            return await self._wire.post(
                post.path, post.body, attempt.request_id, post.shape, attempt.deadlines, only_in=only_in
            )
        except ServerChanged:
            return None

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; one that cannot be asked for ends at once and costs nothing.

        Rows that the sampling or a ban has altered are missing.
        """
        deadlines = self._wire.question_deadlines(question.asked_at, before_send)
        while True:
            attempt = _Attempt(self.dialect, request_id, deadlines)
            try:
                async with aclosing(self._write_once(question, attempt)) as chunks:
                    async for chunk in chunks:
                        with deadlines.pause():
                            yield chunk
            except CloudError as error:
                if not self._learn(question, error, attempt):
                    raise
            else:
                return

    async def _write_once(self, question: WriteQuestion, attempt: _Attempt) -> AsyncGenerator[Chunk, None]:
        dialect, vocabulary = attempt.dialect, self._setup.vocabulary
        end_ids = frozenset[int]() if vocabulary is None else vocabulary.end_ids
        least, most = dialect.min_usage(question), dialect.max_usage(question)
        floor = ReplyFloor(vocabulary.longest if vocabulary and dialect.can.same_words else None)
        meter = UsageMeter(least, most, end_ids, counts_tokens=dialect.can.counts_tokens, floor=floor.num_tokens)
        has_rows = tells_rows(dialect.can, question)
        continuation = dialect.write(question)  # what it refuses was never sent, and costs nothing
        if continuation is None:
            yield Chunk(finish="length", usage=NO_USAGE)
            return
        texts: list[str] = []
        with meter.charge_errors():
            async with aclosing(self._read(continuation, attempt, floor)) as chunks:
                async for told in chunks:
                    texts.append(told.text)
                    if told.usage is not None:
                        self._learn_from_usage(question, told.usage)
                    chunk = meter.read(told)
                    rows = chunk.rows if has_rows else (None,) * len(chunk.ids)
                    yield replace(chunk, rows=tuple(row and replace(row, noise=self._noise) for row in rows))
        self.dialect = self.dialect.learn_from_answer(question, meter.told, "".join(texts))
        for chunk in meter.remaining():
            yield chunk

    async def _read(
        self, continuation: ContinuationRequest, attempt: _Attempt, floor: ReplyFloor
    ) -> AsyncGenerator[Chunk, None]:
        """Send the request of a continuation, and yield what the dialect reads in each event of the reply."""
        post = continuation.post
        if post.stream is None:
            reply = await self._post(post, attempt)
            floor.add(reply)
            yield continuation.read(reply)
            return
        attempt.post = post
        events = self._wire.stream(
            post.path, post.body, attempt.request_id, attempt.deadlines, lines=post.stream == "lines"
        )
        async with aclosing(events):
            async for event in events:
                chunk = continuation.read(event)
                floor.add(event)  # what is refused tells no tokens: a stream that begins with it may lack what it needs
                yield chunk
                if chunk.finish and post.stream != "to done":  # only [DONE] comes after the event that says why
                    return

    def _learn(self, question: ModelQuestion, error: CloudError, attempt: _Attempt) -> bool:
        """Take what a failure shows of the endpoint; return whether the question is to be asked again at once.

        A probe's result that the error contradicts is dropped, and the key is hidden in every error. Where another
        question has taught something since this one was asked, that is tried first: several are often refused for the
        same thing. Raises Unreachable where asking anew may help, but not at once: something was charged.
        """
        self._wire.hide_key(error)
        if attempt.post is None:
            error.sent = False  # what is refused before it is asked costs nothing
            return False
        if isinstance(error, MissingCapability | VocabularyMismatch):
            self._forget_probe()
        changed = attempt.dialect.learn_from_error(question, error)
        if changed == attempt.dialect:
            return False
        if self.dialect == attempt.dialect:
            self.dialect = changed
            self._forget_probe()
        if error.sent or error.charged != NO_USAGE:
            self._keep_learned()
            msg = f"{error}; from now on it is asked in another way"
            raise Unreachable(msg, sent=error.sent, charged=error.charged, trouble="learned") from error
        return True

    def _learn_from_usage(self, question: ModelQuestion, usage: CloudUsage) -> None:
        """Take what a charge shows of the endpoint; that it tells its cached tokens is kept for the next client."""
        was_told = self.can.tells_cache
        self.dialect = self.dialect.learn_from_usage(question, usage)
        if self.can.tells_cache and not was_told and self._probe_cache is not None:
            known = self._probe_cache.read(self._wire.url, self._model, self.dialect.name)
            known = known or as_probe_result(self._wire.url, replace(self.can, model=self._model))
            self._probe_cache.write(replace(known, cached_usage=True))

    def _forget_probe(self) -> None:
        if self._probe_cache is not None:
            self._probe_cache.forget(self._wire.url, self._model, self.dialect.name)

    def _keep_learned(self) -> None:
        """Keep what was learned at a price: the next command need not pay for it again."""
        if self._probe_cache is not None:
            noise = None if self._noise == UNMEASURED else self._noise
            can = replace(self.can, model=self._model)
            self._probe_cache.write(replace(as_probe_result(self._wire.url, can), noise_nats=noise))

    async def aclose(self) -> None:
        """Close the wire."""
        await self._wire.aclose()
