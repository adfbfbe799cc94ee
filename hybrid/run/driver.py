"""The driver: the only place where a question becomes a model call.

It steps a policy's loop, answers each request from the engine's thread or the cloud, puts the ledger around every
request that leaves, and tells one stream of events what happened. It makes no decision about text.

Laws, tested through scripted and real models in ``tests/run``: a request leaves only with its worst case reserved; a
dead cloud costs one deadline, and when it is back it is asked again (``line`` says when); whoever stops listening
leaves an engine at rest, no open stream and a settled ledger.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias, TypeVar

from hybrid.cloud import Capabilities, Chunk, Cloud, ScoreQuestion, Scores, WriteQuestion
from hybrid.engine import Worker
from hybrid.errors import CloudError, CloudRefusal
from hybrid.policy import Policy, decode
from hybrid.policy.requests import (
    Check,
    Continue,
    Draft,
    Drafted,
    Emit,
    Finish,
    NoAnswer,
    PendingToken,
    Refused,
    Reply,
    Request,
    Scored,
    Span,
    Write,
    Wrote,
    ids,
)
from hybrid.prob import Dense
from hybrid.run import events
from hybrid.run.answer import Answer
from hybrid.run.answer_builder import AnswerBuilder
from hybrid.run.drafting import Drafter
from hybrid.run.line import EndpointHealth, RetryingCaller
from hybrid.run.request_billing import RequestBilling, RequestDenied, Tell
from hybrid.run.vocabulary_check import VocabularyCheck
from hybrid.run.write_stream import WriteStream
from hybrid.spend import AnswerBudget, Denial
from hybrid.types import Ids, Message

T = TypeVar("T")
_OUTGROWN = "the text has outgrown the cloud model's context"
_UNWEIGHED = "the endpoint gives no log-probabilities of its model: only the local model's own doubt decides"
# The drafter's favourites whose probability the cloud is asked for by name, where it can: they narrow the interval.
CANDIDATES = 4


Reach: TypeAlias = Callable[[float], Awaitable[tuple[Cloud, Capabilities]]]  # takes when it was first asked


@dataclass(frozen=True)
class AnswerLimits:
    """What bounds one answer: its own length, and how many log-probabilities a row holds; and when it was asked for.

    ``overlap``: the local model goes on decoding while a check is waited for. ``recording``: every row is told, after
    these choices; None: none is. ``stops``: strings that end the text before them.
    """

    max_tokens: int
    top_k: int
    asked_at: float
    overlap: bool = True
    recording: Mapping[str, str | Sequence[str]] | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """The cloud's side: the model, or the sentence why it cannot be had, what it can do, and the purse that pays.

    ``turns``: the conversation as it was put, for endpoints that take no prompt but messages. ``call``: the way there.
    ``reach``: how to connect to a cloud that could not be had; None: it never will be.
    """

    cloud: Cloud | str
    purse: AnswerBudget
    capabilities: Capabilities | None = None
    turns: tuple[Message, ...] = ()
    call: RetryingCaller | None = None
    reach: Reach | None = None


class Driver:
    """Answers one question. Made for it, used once."""

    def __init__(self, drafter: Drafter, worker: Worker, side: Side, limits: AnswerLimits, tell: Tell) -> None:
        """Take the local model and its thread, the cloud's side, the limits, and whom to tell."""
        self._drafter = drafter
        self._engine = drafter.cursor.engine
        self._worker = worker
        self._cloud = side.cloud
        self._purse = side.purse
        self._can = side.capabilities
        self._turns = side.turns
        self._limits = limits
        self._record = AnswerBuilder(len(drafter.prompt), self._engine.piece, limits.asked_at, limits.stops)
        self._shown: list[int] = []
        self._last_draft: Draft | None = None
        self._reader: WriteStream | None = None
        self._tell = tell
        self._till = RequestBilling(side.purse, self._record, tell)
        self._alike = VocabularyCheck(self._engine)
        self._call = side.call or RetryingCaller(EndpointHealth(), tell)
        self._reach = side.reach
        self._away_since: float | None = None

    async def answer(self, policy: Policy) -> Answer:
        """Write the answer, telling every event as it happens."""
        self._tell(events.Started(self._drafter.prompt, policy.name))
        if self._limits.recording is not None:
            self._drafter.seen = []
            pieces = tuple(map(self._engine.piece, range(self._engine.num_tokens)))
            ends = tuple(sorted(self._engine.end_ids))
            noise = self._drafter.cursor.noise
            told = self._drafter.sampling, self._limits.max_tokens, self._limits.recording, noise
            self._tell(events.Recording(pieces, ends, *told))
        loop, reply = decode(policy, self._drafter.coin), None
        over = Finish("stop")
        try:
            while True:
                try:
                    request = loop.send(reply)  # type: ignore[arg-type]  # a generator is started with None
                except StopIteration:
                    break
                reply = await self._reply(request)
                over = reply if isinstance(reply, Finish) else over
        finally:
            await self._rest()
        if rest := self._record.flush():
            self._tell(events.Flushed(rest))
        answer = self._record.answer(over.why, self._purse.price, self._drafter.sampling.seed)
        self._tell(events.Finished(answer))
        return answer

    async def _reply(self, request: Request) -> Reply:
        match request:
            case Draft():
                return await self._draft(request)
            case Check():
                await self._close_reader()
                return await self._check(request)
            case Write():
                return await self._write(request)
            case Emit():
                return self._emit(request.tokens)

    async def _rest(self) -> None:
        """Leave nothing open and nothing half-said: no stream, no token in the cache that was not shown."""
        await self._close_reader()
        await self._worker.do(lambda _: self._drafter.rest(tuple(self._shown)))

    # ---- the local model -------------------------------------------------------------------------------------------

    async def _draft(self, request: Draft) -> Drafted:
        await self._close_reader()
        self._last_draft, limit = request, min(request.limit, self._room())
        began = time.monotonic()
        drafted = await self._worker.do(lambda cancelled: self._drafter.draft(request, limit, cancelled))
        took_ms = round((time.monotonic() - began) * 1000, 3)
        self._record.drafted += len(drafted.span)
        self._tell_local_rows()
        self._tell(events.SpanDrafted(len(request.at), ids(drafted.span), self._drafter.num_ready, took_ms))
        return drafted

    def _tell_local_rows(self) -> None:
        """Tell what the drafter has read since, on its thread or ahead of time."""
        while self._drafter.seen:
            at, row = self._drafter.seen.pop(0)
            self._tell(events.Rows(at, local=row))

    @contextmanager
    def _looking_ahead(self, request: Check) -> Iterator[None]:
        """Decode what comes next if the whole span is kept, until the answer is there; see ``run.drafting``."""
        last, found = self._last_draft, threading.Event()
        span = ids(request.span)
        # One more than a span: the cloud may give the token after it, and then the next draft begins there.
        limit = min(last.limit + 1, self._room() - len(span)) if last else 0
        wanted = self._limits.overlap and self._engine.has_exact_rewind and limit > 0
        if last and wanted and not (span and span[-1] in self._engine.end_ids):
            ahead = replace(last, at=request.at + span)
            self._worker.begin(lambda: self._drafter.look_ahead(ahead, limit, found.is_set))
        try:
            yield
        finally:
            found.set()

    def _room(self) -> int:
        """Tokens the answer may still grow by; at least one while it is not over."""
        in_context = self._engine.num_context - len(self._drafter.prompt) - len(self._shown)
        return min(self._limits.max_tokens - len(self._shown), in_context)

    def _emit(self, tokens: Span) -> Continue | Finish:
        for held in tokens:
            self._record.local_kept += held.source == "local"
            if held.id in self._engine.end_ids:
                return Finish("stop")
            position = len(self._shown)
            self._shown.append(held.id)
            self._tell(events.TokenEmitted(position, self._record.show(held)))
            if self._record.readable.stopped:
                return Finish("stop")
            if self._room() <= 0:
                return Finish("length")
        return Continue()

    # ---- the cloud -------------------------------------------------------------------------------------------------

    async def _check(self, request: Check) -> Scored | Refused | NoAnswer:
        cloud = await self._at_hand()
        if isinstance(cloud, NoAnswer):
            return cloud
        if self._can is not None and "score" not in self._can.abilities:
            self._note(_UNWEIGHED)  # nothing else than what was written is checked where no draft can be
            return Refused(_UNWEIGHED)
        prefix, span = self._drafter.prompt + request.at, ids(request.span)
        if self._cloud_room(len(prefix) + len(span)) < 1:
            return self._no_answer(_OUTGROWN)
        after = request.after and not (span and span[-1] in self._engine.end_ids)
        candidates = self._candidates(request, after)
        question = ScoreQuestion(prefix, span, after, self._top_k, candidates, time.monotonic())
        attempt = partial(self._score, cloud, question, len(request.at))
        try:
            with self._looking_ahead(request):
                request_id, scores = await self._asked(attempt)
            scores = self._alike.hold(scores)
        except RequestDenied as denied:
            return self._refused(denied.denial)
        except CloudError as error:
            return self._fail(error)
        for i, row in enumerate(scores.rows if self._limits.recording is not None else ()):
            self._tell(events.Rows(request.at + span[:i], cloud=row))
        self._record.checks += 1
        self._tell(events.CheckAnswered(request_id, len(scores.rows)))
        return Scored(scores.rows)

    async def _score(self, cloud: Cloud, question: ScoreQuestion, position: int) -> tuple[str, Scores]:
        """Ask once, under an id and a reservation of its own."""
        leave = await self._till.leave("check", position, cloud.max_usage(question), len(question.span))
        if isinstance(leave, Denial):
            raise RequestDenied(leave)
        try:
            scores = await cloud.score(question, leave.request_id, leave.leaving)
        except BaseException as error:
            leave.failed(error)
            raise
        leave.settle(scores.usage)
        return leave.request_id, scores

    async def _write(self, request: Write) -> Wrote | Refused | NoAnswer:
        self._last_draft = None  # a check of what is written here is no reason to draft on
        reader = self._reader
        if reader is not None and (not reader.open or reader.at != request.at or request.ban):
            await self._close_reader()
            reader = None
        try:
            if reader is None:
                cloud = await self._at_hand()
                if isinstance(cloud, NoAnswer):
                    return cloud
                if self._cloud_room(len(self._drafter.prompt) + len(request.at)) < 1:
                    return self._no_answer(_OUTGROWN)
                opened = await self._asked(partial(self._open_reader, request, cloud, time.monotonic()))
                reader, chunk = opened
                self._reader = reader
            else:
                chunk = await self._call.go_on(reader.read)
            chunk = self._alike.hold_written(reader, chunk)
        except RequestDenied as denied:
            return self._refused(denied.denial)
        except CloudError as error:
            return self._fail(error)
        if request.note:
            self._note(request.note)
        rows = await self._read_along(request, chunk.ids)
        self._tell_local_rows()
        for i, row in enumerate(chunk.rows if self._limits.recording is not None else ()):
            banned = tuple(sorted(request.ban))
            self._tell(events.Rows(request.at + chunk.ids[:i], cloud=row, written=chunk.ids[i], banned=banned))
        written = [
            PendingToken(token, "cloud", "written", draft_row=local, target_row=row)
            for token, row, local in zip(chunk.ids, chunk.rows, rows, strict=True)
        ]
        ends = self._engine.end_ids
        if chunk.finish == "stop" and ends and not (chunk.ids and chunk.ids[-1] in ends):
            written.append(PendingToken(min(ends), "cloud", "written"))  # it ended and did not say by which token
        return Wrote(tuple(written), ended=not reader.open)

    async def _open_reader(self, request: Write, cloud: Cloud, asked_at: float) -> tuple[WriteStream, Chunk]:
        """Ask once, up to the first chunk: once that is handed on, the request cannot be made again."""
        prefix = self._drafter.prompt + request.at
        limit = min(request.limit, self._room(), self._cloud_room(len(prefix)))
        # Where tokens are named by text, their rows tell them apart; elsewhere they are for whoever looks at them.
        rows = request.rows or self._limits.recording is not None or not (self._can and self._can.ids)
        question = WriteQuestion(prefix, limit, self._top_k if rows else 0, self._drafter.sampling, request.ban)
        leave = await self._till.leave("write", len(request.at), cloud.max_usage(question))
        if isinstance(leave, Denial):
            raise RequestDenied(leave)
        # One seed for the answer, but not one for every request: the same noise at every opening would show.
        sampling = replace(question.sampling, seed=(question.sampling.seed * 1_000_003 + len(request.at)) % 2**31)
        question = replace(question, limit=leave.grant.limit, sampling=sampling)
        question = replace(question, begun=len(request.at), turns=self._turns, asked_at=asked_at)
        reader = WriteStream(request.at, leave, cloud.write(question, leave.request_id, leave.leaving))
        return reader, await reader.read()

    @property
    def _top_k(self) -> int:
        """How many log-probabilities to ask for: what is wanted, or what the endpoint gives if that is less."""
        most = self._can.most_k if self._can else None
        return self._limits.top_k if most is None else min(most, self._limits.top_k)

    def _cloud_room(self, num_tokens: int) -> int:
        """Tokens the cloud's context has room for after a prompt of so many."""
        room = self._can.max_context if self._can else None
        return self._limits.max_tokens if room is None else room - num_tokens

    def _candidates(self, request: Check, after: bool) -> tuple[Ids, ...]:
        """Return what the local model thinks likely at each position due, where the cloud can be asked about it."""
        if not (self._can and self._can.candidates and self._can.same_words):  # an id that it lacks ends SGLang
            return ()
        rows = [held.draft_row for held in request.span] + [None] * after
        return tuple(tuple(i for i, _ in row.top(CANDIDATES)) if row else () for row in rows)

    async def _read_along(self, request: Write, written: Ids) -> list[Dense] | list[None]:
        """Keep the local cache and its distributions abreast of what the cloud writes, if the policy weighs them."""
        if not (request.along and written):
            return [None] * len(written)
        return await self._worker.do(lambda cancelled: self._drafter.rows(request.at, written, cancelled))

    async def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _at_hand(self) -> Cloud | NoAnswer:
        """Return the cloud, if it may be asked now. One that could not be reached is connected to when it may be."""
        if isinstance(self._cloud, str) and self._reach is None:
            return self._no_answer(self._cloud)
        if why := self._call.shut():
            return self._lost(why)
        if self._reach is not None:
            try:
                self._cloud, self._can = await self._call.ask(partial(self._reach, time.monotonic()))
                self._reach = None
            except CloudError as error:
                return self._fail(error)
        return self._cloud if not isinstance(self._cloud, str) else self._no_answer(self._cloud)

    async def _asked(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Await an answer; say so if it is the first after an outage."""
        answer = await self._call.ask(attempt)
        if self._away_since is not None:
            self._tell(events.Resumed(round((time.monotonic() - self._away_since) * 1000, 3)))
            self._away_since = None
        return answer

    def _fail(self, error: CloudError) -> NoAnswer:
        """Go on locally: for good after a refusal, which before any text is the user's to mend, and is raised."""
        if not isinstance(error, CloudRefusal):
            return self._lost(str(error))
        if not self._shown:
            raise error
        self._cloud, self._reach = str(error), None
        return self._no_answer(self._cloud)

    def _lost(self, why: str) -> NoAnswer:
        """Go on locally while the endpoint is away; that is told once for each time."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._degrade(why, again=True)
        return NoAnswer(why)

    def _no_answer(self, why: str) -> NoAnswer:
        self._degrade(why)
        return NoAnswer(why)

    def _refused(self, denial: Denial) -> Refused:
        self._degrade(denial.why)
        return Refused(denial.why)

    def _degrade(self, why: str, *, again: bool = False) -> None:
        if self._record.degrade(why) or again:
            self._tell(events.Degraded(why))

    def _note(self, why: str) -> None:
        if self._record.note(why):
            self._tell(events.Noted(why))
