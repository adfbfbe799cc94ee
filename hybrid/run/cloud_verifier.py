"""The cloud as a verifier: a check or a write becomes a request that is reserved, retried, compared and settled.

Laws, tested through scripted models in ``tests/run``: a request leaves only with its worst case reserved; a dead cloud
costs one deadline, and when it is back it is asked again (``run.retrying`` says when); a token is taken from the cloud
only if the local model has a number for it, and reads it alike where the endpoint says how it reads. Knows no policy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

from hybrid.cloud import Capabilities, Chunk, Cloud, ScoreQuestion, Scores, WriteQuestion
from hybrid.cloud.translated import TranslatedCloud
from hybrid.engine import Engine
from hybrid.errors import CloudError, CloudFailure, CloudRefusal
from hybrid.policy.requests import BudgetDenied, Check, NoAnswer, PendingToken, Scored, Span, Write, Wrote, ids
from hybrid.record import events
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.run.open_request import RequestBilling, RequestDenied, WriteStream, failure_kind
from hybrid.run.retrying import RetryingCaller
from hybrid.run.verifier import RenderedPrompt, VocabularyCheck, WorkWhileWaiting
from hybrid.spend import AnswerBudget
from hybrid.types import DegradedKind, Ids, Sampling

T = TypeVar("T")
Connection: TypeAlias = tuple[Cloud, Capabilities]
Connect: TypeAlias = Callable[[float], Awaitable[Connection]]
"""Connects to an endpoint; takes the time from which the total deadline counts."""

_OUTGROWN = "the text has outgrown the cloud model's context"
_SHORTENED = "there was money for the beginning of the cloud's answer alone, and it cannot go on from there"
_UNWEIGHED = "the endpoint gives no log-probabilities of its model: only the local model's own doubt decides"
# The drafter's favourites whose probability the cloud is asked for by name, where it can: they narrow the interval.
CANDIDATES = 4
# The first request to write of an answer without a limit of its own; see ``block_tokens``.
BLOCK = 512


@dataclass(frozen=True)
class WriteOptions:
    """How the cloud's tokens are drawn, and what is wanted beside them.

    ``top_k``: log-probabilities in a row. ``everywhere``: rows are wanted of tokens that no policy weighs, too.
    ``whole``: a text is of no use in parts, so that nothing is written where a cap does not allow its limit.
    ``open_ended``: nobody has chosen a limit for the answer, so that no request reserves all of it (``block_tokens``).
    """

    sampling: Sampling
    top_k: int
    everywhere: bool = False
    whole: bool = False
    open_ended: bool = False


def block_tokens(num_shown: int) -> int:
    """Return how many tokens one request may write of an answer that has no limit and shows ``num_shown`` by now.

    As many as the answer has, and 512 at the least: most answers are shorter than that and take one request, as with a
    limit of their own. What is reserved, and what a stream that is left early counts as, is then no more than what was
    written, or 512 tokens. Each further block has the endpoint read the prompt and the answer so far again. For an
    answer of N tokens that is the prompt log2(N / 512) times more and less than 2 N tokens; in blocks of one length it
    would grow with N squared. ``run/NOTES.md`` has what it cost.

    >>> [block_tokens(shown) for shown in (0, 512, 1024, 2048)]
    [512, 512, 1024, 2048]
    """
    return max(BLOCK, num_shown)


@dataclass(frozen=True)
class ReachedEndpoint:
    """An endpoint that was reached, and what follows from its capabilities for every request of the answer.

    ``max_context``: more than any answer has where it is not known. ``top_k``: log-probabilities to ask for: as many as
    are wanted, or the most that the endpoint gives.
    """

    cloud: Cloud
    can: Capabilities
    can_score: bool
    max_context: int
    top_k: int


class CloudVerifier:
    """Asks the cloud during one answer. Made for it, used once."""

    def __init__(
        self,
        connect: Connect,
        caller: RetryingCaller,
        budget: AnswerBudget,
        engine: Engine,
        builder: AnswerBuilder,
        wanted: WriteOptions,
    ) -> None:
        """Take the way to the cloud, the money, the local vocabulary, and where the answer adds up."""
        self._connect = connect
        self._caller = caller
        self._engine = engine
        self._builder = builder
        self._wanted = wanted
        self._billing = RequestBilling(budget, builder, whole=wanted.whole)
        self._vocabulary = VocabularyCheck(engine)
        self._endpoint: ReachedEndpoint | None = None
        self._refusal: CloudRefusal | None = None
        self._away_since: float | None = None
        self._stream: WriteStream | None = None

    async def connect(self, *, connected: bool = False, decides: bool = False) -> Capabilities | None:
        """Return what the endpoint can do; None: it cannot be reached now. Raises CloudRefusal.

        ``connected``: it was reached before, so nothing is asked. ``decides``: what it can do decides whether it is
        asked at all, so the answer says where it could not be reached.
        """
        failure = self._caller.unavailable() if not connected else None
        attempt = partial(self._connect, time.monotonic())
        try:
            if failure is not None:
                raise failure
            connection = await (attempt() if connected else self._caller.call(attempt))
        except CloudFailure as error:
            if decides:
                self._fail(error)
            return None
        self._endpoint = self._reached(*connection)
        return self._endpoint.can

    async def check(
        self, prompt: RenderedPrompt, request: Check, waiting: WorkWhileWaiting
    ) -> Scored | BudgetDenied | NoAnswer:
        """Have the cloud score a span, in one round trip."""
        try:
            await self.rest()
            endpoint = await self._reach()
            if not endpoint.can_score:
                self._builder.note(_UNWEIGHED)  # nothing else than what was written is checked where no draft can be
                return BudgetDenied(_UNWEIGHED)
            question = self._score_question(prompt, request, endpoint)
            if len(question.prefix) + len(question.span) >= endpoint.max_context:
                return self._no_answer(_OUTGROWN, "context")
            with waiting():
                request_id, scores = await self._ask(partial(self._score, endpoint, question, len(request.at)))
            rows = self._vocabulary.check_scores(scores)
        except (RequestDenied, CloudError) as error:
            return self._fail(error)
        self._builder.publish(events.CheckAnswered(request_id, len(rows)))
        return Scored(rows)

    async def write(self, prompt: RenderedPrompt, request: Write) -> Wrote | BudgetDenied | NoAnswer:
        """Have the cloud write, or read on in the stream that has reached this position."""
        stream = self._stream
        try:
            if stream is not None and stream.open and stream.at == request.at and not request.ban:
                chunk = await self._caller.go_on(stream.read)
            else:
                await self.rest()
                endpoint = await self._reach()
                if len(prompt.ids) + len(request.at) >= endpoint.max_context:
                    return self._no_answer(_OUTGROWN, "context")
                if stream is not None and stream.shortened and not endpoint.can.continues:
                    return self._no_answer(_SHORTENED, "budget")
                question = self._write_question(prompt, request, endpoint)
                opened = await self._ask(partial(self._open_stream, endpoint, question, request.at))
                self._stream, chunk = opened
                stream = opened[0]
            begins = not request.at and stream.at == chunk.ids
            chunk = self._vocabulary.check_written(stream, chunk)
            if stream.shortened and not (stream.open or stream.num_written):
                return self._no_answer(_SHORTENED, "budget")  # the money went before the first token that is shown
        except (RequestDenied, CloudError) as error:
            return self._fail(error)
        closing = self._closing(prompt) if begins else ()
        stream.at = ids(closing) + stream.at
        cut = self._is_cut(stream, chunk)
        return Wrote(closing + self._pending(chunk, ended=cut or chunk.finish == "stop"), not stream.open, cut)

    async def rest(self) -> None:
        """Settle and close the stream that is open, if one is."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _closing(self, prompt: RenderedPrompt) -> Span:
        """Return the tokens that end the thoughts which the prompt opened, where the endpoint never saw that prompt.

        One that takes messages renders them by its own template and sends its thoughts apart, if it tells them at all:
        what it writes is the answer. The tokens come from nobody's budget: they are a mark.
        """
        marks, endpoint = prompt.thoughts, self._endpoint
        if marks is None or not marks.opened or endpoint is None or endpoint.can.continues:
            return ()
        mark = self._engine.tokenize(marks.close, special=True)
        return tuple(PendingToken(token, "cloud", "written") for token in mark)

    # ---- questions ---------------------------------------------------------------------------------------------------

    def _score_question(self, prompt: RenderedPrompt, request: Check, endpoint: ReachedEndpoint) -> ScoreQuestion:
        span = ids(request.span)
        after = request.wants_next_row and not (span and span[-1] in self._engine.end_ids)
        candidates: tuple[Ids, ...] = ()
        if endpoint.can.candidates and endpoint.can.same_words:  # an id that it lacks ends SGLang
            rows = [pending.draft_row for pending in request.span] + [None] * after
            candidates = tuple(tuple(i for i, _ in row.top(CANDIDATES)) if row else () for row in rows)
        asked = ScoreQuestion(prompt.ids + request.at, span, after, endpoint.top_k, candidates, time.monotonic())
        begun, has_args = len(request.at), bool(prompt.template_args)
        return replace(asked, begun=begun, turns=prompt.turns, has_template_args=has_args)

    def _write_question(self, prompt: RenderedPrompt, request: Write, endpoint: ReachedEndpoint) -> WriteQuestion:
        prefix, begun = prompt.ids + request.at, len(request.at)
        # Where tokens are named by text, their rows tell them apart; elsewhere they are for whoever looks at them.
        named_by_rows = not endpoint.can.ids and endpoint.can.continues
        rows = request.wants_target_rows or self._wanted.everywhere or named_by_rows
        # One seed for the answer, but not one for every request: the same noise at every opening would show.
        sampling = self._wanted.sampling
        sampling = replace(sampling, seed=(sampling.seed * 1_000_003 + begun) % 2**31)
        limit, top_k = min(request.limit, endpoint.max_context - len(prefix)), endpoint.top_k if rows else 0
        asked = WriteQuestion(prefix, limit, top_k, sampling, request.ban, begun, prompt.turns, time.monotonic())
        asked = replace(asked, has_template_args=bool(prompt.template_args))
        return _in_parts(asked, endpoint) if self._wanted.open_ended else asked

    def _is_cut(self, stream: WriteStream, chunk: Chunk) -> bool:
        """Whether a text ended for want of room, and nobody can go on from there; one that a cap cut is gone on with.

        How many tokens of ours it has says nothing: its own were as many as were asked for.
        """
        if chunk.finish != "length":
            return False
        marked = bool(chunk.ids) and chunk.ids[-1] in self._engine.end_ids  # as a replay tells it
        can = self._endpoint.can if self._endpoint else None
        return marked or (can is not None and not can.continues and bool(stream.num_written) and not stream.shortened)

    def _pending(self, chunk: Chunk, *, ended: bool) -> tuple[PendingToken, ...]:
        written = zip(chunk.ids, chunk.rows, strict=True)
        tokens = tuple(PendingToken(token, "cloud", "written", target_row=row) for token, row in written)
        end_ids = self._engine.end_ids
        if ended and end_ids and not (chunk.ids and chunk.ids[-1] in end_ids):
            tokens += (PendingToken(min(end_ids), "cloud", "written"),)  # it ended and did not say by which token
        return tokens

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _reach(self) -> ReachedEndpoint:
        """Return the endpoint; one that could not be made before is made now. Raises CloudError."""
        if refusal := self._refusal:
            raise type(refusal)(str(refusal), sent=False)
        if failure := self._caller.unavailable():
            raise failure
        if self._endpoint is None:
            self._endpoint = self._reached(*await self._caller.call(partial(self._connect, time.monotonic())))
        return self._endpoint

    def _reached(self, cloud: Cloud, can: Capabilities) -> ReachedEndpoint:
        max_context = sys.maxsize if can.max_context is None else can.max_context
        top_k = self._wanted.top_k if can.most_k is None else min(can.most_k, self._wanted.top_k)
        if isinstance(cloud, TranslatedCloud):  # it remembers how it has read an answer
            cloud = cloud.for_answer()
        return ReachedEndpoint(cloud, can, "score" in can.abilities, max_context, top_k)

    async def _ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await a reply, asked for again where that may help; say so if it is the first after an outage."""
        reply = await self._caller.call(attempt)
        if self._away_since is not None:
            self._builder.publish(events.CloudRecovered(round((time.monotonic() - self._away_since) * 1000, 3)))
            self._away_since = None
        return reply

    async def _score(self, endpoint: ReachedEndpoint, question: ScoreQuestion, position: int) -> tuple[str, Scores]:
        """Ask once, under an id and a reservation of its own."""
        # In one request the draft is read with its prefix; by other methods it is written, or sent in parts.
        prompt = question.prefix + (question.span if endpoint.can.scoring_method == "one request" else ())
        most = endpoint.cloud.max_usage(question)
        read = prompt if endpoint.can.counts_tokens else ()  # what is repeated is counted in tokens of ours
        request = await self._billing.open_request("check", position, most, read, len(question.span))
        try:
            scores = await endpoint.cloud.score(question, request.request_id, request.before_send)
        except BaseException as error:
            request.fail(error)
            raise
        self._billing.answered.add(read)
        request.settle(scores.usage)
        return request.request_id, scores

    async def _open_stream(
        self, endpoint: ReachedEndpoint, question: WriteQuestion, at: Ids
    ) -> tuple[WriteStream, Chunk]:
        """Ask once, up to the first chunk: once that is handed on, the request cannot be made again."""
        cloud, limit, most = endpoint.cloud, question.limit, endpoint.cloud.max_usage(question)
        read = question.prefix if endpoint.can.counts_tokens else ()
        self._billing.note_assumed(most)
        request = await self._billing.open_request("write", len(at), most, read)
        if not endpoint.can.continues:
            self._billing.note_shortened(request.grant.limit, limit)
        question = replace(question, limit=request.grant.limit)
        chunks = cloud.write(question, request.request_id, request.before_send)
        stream = WriteStream(at, request, chunks, counts_tokens=endpoint.can.counts_tokens)
        stream.shortened = question.limit < limit
        chunk = await stream.read()
        self._billing.answered.add(read)
        return stream, chunk

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _fail(self, error: RequestDenied | CloudError) -> BudgetDenied | NoAnswer:
        """Let the local model go on: for good after a refusal, which before any text is the user's, and is raised."""
        if isinstance(error, RequestDenied):
            self._builder.degrade(str(error), "budget", cap=error.level)
            return BudgetDenied(str(error))
        if isinstance(error, CloudRefusal):
            if not len(self._builder):
                raise error
            self._refusal = error
            return self._no_answer(str(error), failure_kind(error))
        if self._away_since is None:  # an outage is told once
            self._away_since = time.monotonic()
            self._builder.degrade(str(error), failure_kind(error), again=True)
        return NoAnswer(str(error))

    def _no_answer(self, why: str, kind: DegradedKind) -> NoAnswer:
        self._builder.degrade(why, kind)
        return NoAnswer(why)


def _in_parts(question: WriteQuestion, endpoint: ReachedEndpoint) -> WriteQuestion:
    """Ask for a block, where the endpoint can go on from it; the loop then asks for the next.

    Where it cannot, as a chat service, all is asked for at once, less what its own template may add to the prompt: more
    than its context is refused by some.
    """
    if endpoint.can.continues:
        return replace(question, limit=min(question.limit, block_tokens(question.begun)))
    left = endpoint.max_context - endpoint.cloud.max_usage(question).prompt_tokens
    return replace(question, limit=min(question.limit, max(BLOCK, left)))
