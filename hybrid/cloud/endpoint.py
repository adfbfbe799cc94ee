"""The protocol ``Cloud`` over HTTP, in three ideas: a connection, knowledge of what is behind it, and requests.

*Connection* is ``Wire``. *Knowledge* is ``EndpointKnowledge``: the dialect as documents, a probe and answers have it. A
probe's result is used until an answer contradicts it; then it is dropped. What an answer shows (``learn_from_usage``,
``learn_from_error``) holds for the life of the connection, and longer where it was paid for. *Requests* are attempts
at a question: one that was refused at no charge is asked again at once, in the way that is known by then. Several
questions may be under way: an attempt is judged by the dialect that it was asked in. ``tests/cloud/test_endpoint.py``
and ``test_learned.py``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hybrid.cloud.bounds import QuestionDeadlines
from hybrid.cloud.dialects.dialect import ContinuationRequest, Dialect, DialectConfig, Post, tells_rows
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.discover import TEXT_CHAT, discover, takes_messages
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
from hybrid.cloud.relay_bounds import ReplyFloor, limit_name
from hybrid.cloud.wire import ServerChanged, Wire
from hybrid.errors import CloudError, MissingCapability, NotAnApi, Unreachable, VocabularyMismatch
from hybrid.prob import UNMEASURED
from hybrid.types import NO_USAGE, CloudUsage, Ids, Vocabulary

# ---- knowledge -------------------------------------------------------------------------------------------------------


@dataclass
class EndpointKnowledge:
    """What is known of an endpoint by now, and the file that keeps it for the next client (None: nothing is kept).

    ``dialect``: how it is asked; its ``can`` says what it can do. ``noise_nats``: by how much its log-probabilities may
    be off. ``proven_in``: the wire's epoch in which the server has given a proof (``Post.proof``).
    """

    url: str
    dialect: Dialect
    cache: ProbeCache | None = None
    noise_nats: float = UNMEASURED
    proven_in: int | None = None

    @property
    def kept(self) -> ProbeResult | None:
        """The result of an earlier probe of this endpoint's model in this dialect."""
        return self.cache.read(self.url, self.dialect.setup.model, self.dialect.name) if self.cache else None

    def apply(self, found: ProbeResult) -> None:
        """Prefer what a probe has measured of this dialect to what its documents say."""
        self.dialect = replace(self.dialect, can=apply_result(self.dialect.can, found))
        if found.noise_nats is not None and found.noise_nats >= 0.0:
            self.noise_nats = found.noise_nats

    def learn_from_usage(self, question: ModelQuestion, usage: CloudUsage) -> None:
        """Take what a charge shows of the endpoint; that it tells its cached tokens is kept for the next client."""
        was_told = self.dialect.can.tells_cache
        self.dialect = self.dialect.learn_from_usage(question, usage)
        if self.dialect.can.tells_cache and not was_told and self.cache is not None:
            known = self.kept or as_probe_result(self.url, self.dialect.setup.model, self.dialect.can)
            self.cache.write(replace(known, cached_usage=True))

    def learn_from_error(self, question: ModelQuestion, error: CloudError, asked_in: Dialect) -> bool:
        """Take what a failure shows of the endpoint; return whether the question is to be asked again at once.

        A probe's result that the error contradicts is dropped. Where another question has taught something since this
        one was ``asked_in`` a dialect, that is tried first: several are often refused for the same thing. Raises
        Unreachable where asking anew may help, but not at once: something was charged.
        """
        if isinstance(error, MissingCapability | VocabularyMismatch):
            self._forget()
        changed = asked_in.learn_from_error(question, error)
        if changed == asked_in:
            return False
        if self.dialect == asked_in:
            self.dialect = changed
            self._forget()
        if error.sent or error.charged != NO_USAGE:
            if self.cache is not None:  # learned at a price: the next command need not pay for it again
                noise = None if self.noise_nats == UNMEASURED else self.noise_nats
                kept = as_probe_result(self.url, self.dialect.setup.model, self.dialect.can)
                self.cache.write(replace(kept, noise_nats=noise))
            msg = f"{error}; from now on it is asked in another way"
            raise Unreachable(msg, sent=error.sent, charged=error.charged, trouble="learned") from error
        return True

    def _forget(self) -> None:
        if self.cache is not None:
            self.cache.forget(self.url, self.dialect.setup.model, self.dialect.name)


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass
class _Attempt:
    """One attempt at a question, in the dialect that was known when it began.

    ``post``: its last request; None: it has sent none. ``num_replies``: those that came to a check. ``last_usage``: the
    charge that the last reply to a check shows.
    """

    wire: Wire
    knowledge: EndpointKnowledge
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

    def fail(self, question: ModelQuestion, error: CloudError) -> bool:
        """Learn from a failure, with the key hidden in it; return whether the question is to be asked again at once."""
        self.wire.hide_key(error)
        if self.post is None:
            error.sent = False  # what is refused before it is asked costs nothing
            return False
        return self.knowledge.learn_from_error(question, error, self.dialect)

    async def score(self, question: ScoreQuestion) -> Scores:
        dialect, knowledge, reply = self.dialect, self.knowledge, None
        flow = dialect.score(question)
        while True:
            try:
                step: Post | Scores = flow.send(reply)
            except StopIteration as done:
                step = done.value
            if reply is not None and self.post is not None and self.post.proof == "gives":
                knowledge.proven_in = self.deadlines.sent_in_epoch
            if isinstance(step, Scores):
                break
            reply = await self._send(step)
            if reply is not None:
                self.num_replies += 1
                self.last_usage = dialect.check_usage(question, reply)
        scores = replace(step, rows=tuple([replace(row, noise=knowledge.noise_nats) for row in step.rows]))
        if self.post is None:
            return scores
        knowledge.learn_from_usage(question, scores.usage)
        # The charge that the last reply shows counts, whoever read its rows.
        known = dialect.min_usage(question).at_least(self.last_usage)
        usage = final_usage(scores.usage, known, dialect.max_usage(question).prompt_tokens)
        return replace(scores, usage=replace(usage, requests=self.num_replies))

    async def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        dialect, knowledge, vocabulary = self.dialect, self.knowledge, self.dialect.setup.vocabulary
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
            async with aclosing(self._read(continuation, floor)) as chunks:
                async for told in chunks:
                    texts.append(told.text)
                    if told.usage is not None:
                        knowledge.learn_from_usage(question, told.usage)
                    chunk = meter.read(told)
                    rows = chunk.rows if has_rows else (None,) * len(chunk.ids)
                    yield replace(chunk, rows=tuple(row and replace(row, noise=knowledge.noise_nats) for row in rows))
        knowledge.dialect = knowledge.dialect.learn_from_answer(question, meter.told, "".join(texts))
        for chunk in meter.remaining():
            yield chunk

    async def _send(self, post: Post) -> Any:
        """Send a request and return its whole reply; None for a request that must not leave (``Post.proof``)."""
        self.post, self.last_usage, proven_in = post, NO_USAGE, self.knowledge.proven_in
        if post.proof == "needs" and proven_in is None:
            return None
        if post.proof == "gives" and self.wire.num_open > 1:  # nobody knows of which connection it would be a proof
            return None
        only_in = proven_in if post.proof == "needs" else None
        try:
            return await self.wire.post(
                post.path, post.body, self.request_id, post.shape, self.deadlines, only_in=only_in
            )
        except ServerChanged:
            return None

    async def _read(self, continuation: ContinuationRequest, floor: ReplyFloor) -> AsyncGenerator[Chunk, None]:
        """Send the request of a continuation, and yield what the dialect reads in each event of the reply."""
        post = continuation.post
        if post.stream is None:
            reply = await self._send(post)
            floor.add(reply)
            yield continuation.read(reply)
            return
        self.post = post
        lines = post.stream == "lines"
        async with aclosing(
            self.wire.stream(post.path, post.body, self.request_id, self.deadlines, lines=lines)
        ) as events:
            async for event in events:
                chunk = continuation.read(event)
                floor.add(event)  # what is refused tells no tokens: a stream that begins with it may lack what it needs
                yield chunk
                if chunk.finish and post.stream != "to done":  # only [DONE] comes after the event that says why
                    return


# ---- the port --------------------------------------------------------------------------------------------------------


class Endpoint:
    """The cloud port over one dialect. ``wire``: its connection; ``knowledge``: what is known of it by now."""

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
        self.wire = wire
        self._setup = DialectConfig(model or "", TextVocabulary(words) if words else None, salt, limit_name(wire.url))
        self._wanted = dialect
        self.knowledge = EndpointKnowledge(wire.url, Vllm(self._setup), probe_cache)

    def __repr__(self) -> str:
        """Name endpoint, dialect and model."""
        dialect = self.knowledge.dialect
        return f"Endpoint({self.wire.url}, {dialect.name}, {dialect.setup.model or None})"

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Discover model and dialect, compare the vocabularies, and take over what an earlier probe measured."""
        capabilities = await self.discover(probe, probe_ids, asked_at)
        if capabilities.same_words is False:
            there = f"{capabilities.model} at {self.wire.url}"
            msg = (
                f"{there} and the local model do not share a vocabulary: they split the same text in two ways; "
                "whole answers need none where it takes messages (--policy route)"
            )
            raise VocabularyMismatch(msg)
        if found := self.knowledge.kept:
            self.knowledge.apply(found)
        return self.knowledge.dialect.can

    async def connect_by_messages(self, asked_at: float | None = None) -> Capabilities:
        """Connect by the chat route and read nothing but text, whatever the vocabulary. Raises NotAnApi without one."""
        async with self.wire.question_deadlines(asked_at).bound_total():
            if not await takes_messages(self.wire):
                msg = f"{self.wire.url} takes no messages"
                raise NotAnApi(msg)
        self._wanted = TEXT_CHAT
        return await self.connect("", (), asked_at)

    async def discover(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Discover model and dialect at no charge, and whether the endpoint splits ``probe`` into ``probe_ids``."""
        try:
            async with self.wire.question_deadlines(asked_at).bound_total():
                self.knowledge.dialect = await discover(self.wire, self._setup, self._wanted, (probe, probe_ids))
        except CloudError as error:
            self.wire.hide_key(error)
            raise
        return self.knowledge.dialect.can

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """Return the most that answering may be charged."""
        return self.knowledge.dialect.max_usage(question)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Send the requests of the dialect's flow until it returns its rows, all within one total deadline."""
        deadlines = self.wire.question_deadlines(question.asked_at, before_send)
        while True:
            attempt = _Attempt(self.wire, self.knowledge, self.knowledge.dialect, request_id, deadlines)
            try:
                return await attempt.score(question)
            except CloudError as error:
                error.charged = attempt.charged.at_least(error.charged)
                if not attempt.fail(question, error):
                    raise

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; one that cannot be asked for ends at once and costs nothing.

        Rows that the sampling or a ban has altered are missing.
        """
        deadlines = self.wire.question_deadlines(question.asked_at, before_send)
        while True:
            attempt = _Attempt(self.wire, self.knowledge, self.knowledge.dialect, request_id, deadlines)
            try:
                async with aclosing(attempt.write(question)) as chunks:
                    async for chunk in chunks:
                        with deadlines.pause():
                            yield chunk
            except CloudError as error:
                if not attempt.fail(question, error):
                    raise
            else:
                return

    async def aclose(self) -> None:
        """Close the wire."""
        await self.wire.aclose()
