"""The driver: steps a policy's loop and answers each of its requests.

Who does what. ``hybrid.policy.loop`` decides and asks. The drafter (``run.drafting``) answers a ``Draft`` on the
engine's thread, where a chain's larger models (``ChainReader``) answer a ``Check`` at their level; the ``Verifier``
answers the other checks and a ``Write``. The driver shows what is emitted, reads along while the verifier
writes, looks ahead while a check is under way, and publishes one stream of events. It makes no decision about text and
knows neither money nor the network.

Laws, tested through scripted and real models in ``tests/run``: an answer ends, whatever a verifier replies; whoever
stops listening leaves an engine at rest, no open stream and a settled ledger.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from hybrid.engine import Worker
from hybrid.policy import Policy, decode
from hybrid.policy.requests import (
    AnswerContinues,
    AnswerEnded,
    BudgetDenied,
    Check,
    Critique,
    Critiqued,
    Draft,
    Drafted,
    Emit,
    NoAnswer,
    Reply,
    Request,
    Scored,
    Span,
    Write,
    Wrote,
    ids,
)
from hybrid.prob import FullRow, TopK
from hybrid.record import events
from hybrid.record.answer import Answer
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.run.drafting import Drafter
from hybrid.run.verifier import ChainReader, RenderedPrompt, Verifier
from hybrid.types import Ids

T = TypeVar("T")


@dataclass(frozen=True)
class RecordingHeader:
    """What a recording of every row begins with: the choices it was made under, and the bytes of every token.

    ``concepts``: the tokens that say the same, by their ids; None: nobody knows.
    """

    choices: Mapping[str, str | Sequence[str]]
    pieces: tuple[bytes, ...]
    concepts: tuple[Ids, ...] | None = None


@dataclass(frozen=True)
class AnswerLimits:
    """What bounds one answer, and what is done beside it.

    ``overlap``: the local model goes on decoding while a check is under way. ``recording``: every row is published,
    after this; None: none is.
    """

    max_tokens: int
    overlap: bool = True
    recording: RecordingHeader | None = None


class Driver:
    """Answers one question. Made for it, used once."""

    def __init__(
        self,
        prompt: RenderedPrompt,
        drafter: Drafter,
        worker: Worker,
        verifier: Verifier,
        builder: AnswerBuilder,
        limits: AnswerLimits,
        levels: Sequence[ChainReader] = (),
    ) -> None:
        """Take the prompt, the local model and its thread, the larger model, and where the answer adds up.

        ``levels``: the local models above the one that drafts, for a policy with as many stages.
        """
        self._prompt = prompt
        self._drafter = drafter
        self._engine = drafter.cursor.engine
        self._worker = worker
        self._verifier = verifier
        self._levels = levels
        self._readers: tuple[Drafter | ChainReader, ...] = (drafter, *levels)
        self._builder = builder
        self._limits = limits
        self._publish = builder.publish
        self._shown: list[int] = []
        self._cut = False
        self._last_draft: Draft | None = None
        self._used_up_nanousd: int | None = None
        self._next_span: Callable[[int], int] = int  # after one that is kept whole

    async def answer(self, policy: Policy) -> Answer:
        """Write the answer, publishing every event as it happens."""
        self._publish(events.Started(self._prompt.ids, policy.name, str(policy)))
        self._next_span = partial(policy.next_span, kept=True)
        if planner := policy.planner:
            self._used_up_nanousd = planner.used_up_nanousd
        if self._limits.recording is not None:
            self._begin_recording(self._limits.recording, policy)
        own = self._drafter.coin, self._engine.end_ids, self._room(), self._builder.read
        loop, reply = decode(policy, *own), None
        end = AnswerEnded("stop")
        try:
            with suppress(StopIteration):
                while True:
                    reply = await self._reply(loop.send(reply))  # type: ignore[arg-type]  # None starts a generator
                    end = reply if isinstance(reply, AnswerEnded) else end
        finally:
            await self._clean_up()
        guarantee = policy.guarantee(self._drafter.sampling, self._limits.max_tokens)
        return self._builder.finish(end.why, self._drafter.sampling.seed, str(policy), guarantee)

    async def _reply(self, request: Request) -> Reply:
        if not isinstance(request, Draft | Critique) and request.plan is not None:
            self._publish(events.Planned.of(len(self._shown), request.plan))
            if request.plan.paced:
                self._builder.degrade_by_pacing(
                    asks=request.plan.action != "keep", used_up_nanousd=self._used_up_nanousd
                )
        match request:
            case Draft():
                return await self._draft(request)
            case Critique():
                return await self._critique(request)
            case Check():
                on_this_machine = request.level <= len(self._levels)
                return await (self._read(request) if on_this_machine else self._check(request))
            case Write():
                return await self._write(request)
            case Emit():
                return self._emit(request)

    async def _clean_up(self) -> None:
        """Leave nothing open and nothing undecided: no stream, no token in the cache that was not shown."""
        await self._verifier.rest()
        await self._worker.do(lambda _: [reader.rewind_to(tuple(self._shown)) for reader in self._readers])

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def _draft(self, request: Draft) -> Drafted:
        await self._verifier.rest()
        room = self._room() - (len(request.at) - len(self._shown))  # what a level holds is not shown yet
        self._last_draft, limit = request, min(request.limit, room)
        drafted, took_s = await self._worker.do(
            lambda cancelled: self._timed(lambda: self._drafter.draft(request, limit, cancelled))
        )
        self._record_local_rows()
        self._publish(
            events.SpanDrafted(len(request.at), ids(drafted.span), self._drafter.num_ready, round(took_s * 1000, 3))
        )
        return replace(drafted, full=len(drafted.span) >= room)

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Do work on the engine's thread; tell how many seconds it took, less its waiting for other contexts."""
        began, waited_s = time.monotonic(), self._drafter.waited_s
        done = work()
        return done, max(0.0, time.monotonic() - began - (self._drafter.waited_s - waited_s))

    async def _critique(self, request: Critique) -> Critiqued:
        numbers, took_s = await self._worker.do(
            lambda cancelled: self._timed(lambda: self._drafter.critique(request, cancelled))
        )
        ms = round(took_s * 1000, 3)
        self._builder.critic_ms = ms + (self._builder.critic_ms or 0.0)
        self._publish(events.SpanCritiqued.of(len(request.at), ids(request.span), numbers, ms))
        return Critiqued(numbers)

    async def _read(self, request: Check) -> Scored:
        """Have a larger local model read a span."""
        level = self._levels[request.level - 1]
        engine = level.cursor.engine
        began, waited_s = time.monotonic(), engine.waited_s
        rows = await self._worker.do(lambda cancelled: level.check(request, cancelled))
        took_s = max(0.0, time.monotonic() - began - (engine.waited_s - waited_s))
        self._record_local_rows()
        self._publish(
            events.SpanRead(request.level, len(request.at), len(request.span), len(rows), round(took_s * 1000, 3))
        )
        scored = tuple(map(FullRow, rows))
        self._compare(request, scored)
        return Scored(scored)

    def _compare(self, request: Check, rows: Sequence[TopK]) -> None:
        """Tell at how many drafted tokens of a chain each model below has the most likely token of the one above."""
        compared = []
        for token, row in zip(request.span, rows, strict=False):
            compared.append((token, row))
            if token.id != row.best:
                break
        for lower in range(request.level if self._levels else 0):
            agrees = [
                own.best == row.best
                for token, row in compared
                if (own := (*token.below, token.draft_row)[lower]) is not None
            ]
            if agrees:
                self._publish(events.LevelsCompared(request.level, lower, len(agrees), sum(agrees)))

    async def _check(self, request: Check) -> Scored | BudgetDenied | NoAnswer:
        reply = await self._verifier.check(self._prompt, request, partial(self._looking_ahead, request))
        span = ids(request.span)
        if isinstance(reply, Scored):
            self._compare(request, reply.rows)
        for i, row in enumerate(reply.rows if isinstance(reply, Scored) and self._limits.recording is not None else ()):
            self._publish(events.Rows(request.at + span[:i], cloud=row))
        return await self._read_beside(request, reply) if isinstance(reply, Scored) else reply

    async def _write(self, request: Write) -> Wrote | BudgetDenied | NoAnswer:
        self._last_draft = None  # a check of what is written here is no reason to draft on
        reply = await self._verifier.write(self._prompt, replace(request, limit=min(request.limit, self._room())))
        if not isinstance(reply, Wrote):
            return reply
        if request.note:
            self._builder.note(request.note)
        if request.wants_draft_rows and reply.span:
            reply = replace(reply, span=await self._read_along(request.at, reply.span))
        self._record_local_rows()
        self._record_written(request, reply)
        if not request.ban:  # what is drawn from the rest alone says little of the whole
            self._drafter.observe(request.at, reply.span)
        self._cut = reply.cut
        return reply

    def _emit(self, request: Emit) -> AnswerContinues | AnswerEnded:
        if request.judged is not None:
            self._publish(events.SpanJudged.of(len(self._shown), request.judged))
        for branch in request.branches:
            logprobs, chosen = (branch.local_logprob, branch.cloud_logprob), branch.tokens is request.tokens
            self._publish(events.BranchDrawn(branch.draws, len(branch.tokens), branch.text, *logprobs, chosen))
        if request.note:
            self._builder.note(request.note)
        for pending in request.tokens:
            self._builder.kept += pending.source == "local" and not pending.writer
            if pending.id in self._engine.end_ids:
                return AnswerEnded("length" if self._cut else "stop")
            self._shown.append(pending.id)
            self._builder.show(pending)
            if self._builder.stopped:
                return AnswerEnded("stop")
            if self._room() <= 0:
                return AnswerEnded("length")
        return AnswerContinues()

    # ---- the local model ---------------------------------------------------------------------------------------------

    def _room(self) -> int:
        """Tokens the answer may still grow by; at least one while it is not over."""
        in_context = self._engine.num_context - len(self._prompt.ids) - len(self._shown)
        return min(self._limits.max_tokens - len(self._shown), in_context)

    async def _read_along(self, at: Ids, written: Span) -> Span:
        """Give written tokens their local rows, so that the local cache and its distributions keep up.

        An end token without a row is left out: there is nothing to compare, and the answer is over.
        """
        weighed = written[:-1] if written[-1].target_row is None and written[-1].id in self._engine.end_ids else written
        if not weighed:
            return written
        text = ids(weighed)
        rows = await self._worker.do(
            lambda cancelled: (
                self._levels[-1].rows(at, text[:-1], cancelled)
                if self._levels
                else self._drafter.rows(at, text, cancelled)
            )
        )
        with_rows = [replace(pending, draft_row=row) for pending, row in zip(weighed, rows, strict=True)]
        return (*with_rows, *written[len(weighed) :])

    async def _read_beside(self, request: Check, reply: Scored) -> Scored:
        """Have local models that did not write read what the cloud has scored, and weigh all of them by it."""
        num = len(reply.rows)
        rows = await self._worker.do(lambda cancelled: self._drafter.read_beside(request, num, cancelled))
        self._record_local_rows()
        own = [pending.draft_row for pending in request.span]
        known = zip(request.span, reply.rows, [*rows, *own[len(rows) :]], strict=False)
        self._drafter.observe(
            request.at, tuple(replace(token, target_row=row, draft_row=local) for token, row, local in known)
        )
        return replace(reply, draft_rows=rows)

    @contextmanager
    def _looking_ahead(self, request: Check) -> Iterator[None]:
        """Decode what comes next if the whole span is kept, until the reply is there; see ``run.drafting``."""
        last, replied = self._last_draft, threading.Event()
        span = ids(request.span)
        # One more than a span: the verifier may give the token after it, and then the next draft begins there.
        limit = min(self._next_span(last.limit) + 1, self._room() - len(span)) if last else 0
        wanted = self._limits.overlap and self._drafter.cursor.has_exact_rewind and limit > 0
        if last and wanted and not (span and span[-1] in self._engine.end_ids):
            ahead = replace(last, at=request.at + span)
            self._worker.begin(lambda: self._drafter.look_ahead(ahead, limit, replied.is_set))
        try:
            yield
        finally:
            replied.set()

    # ---- recording ---------------------------------------------------------------------------------------------------

    def _begin_recording(self, recording: RecordingHeader, policy: Policy) -> None:
        for reader in self._readers:
            reader.rows_read = []
        end_ids, rows = tuple(sorted(self._engine.end_ids)), self._readers[-1].cursor
        sampling, most = self._drafter.sampling, self._limits.max_tokens
        kept = None if policy.planner is None else json.dumps(policy.planner.to_json())
        marks = self._builder.marks
        self._publish(
            events.RecordingStarted(
                recording.pieces,
                end_ids,
                sampling,
                most,
                recording.choices,
                rows.noise,
                rows.shift,
                kept,
                marks,
                *self._drafter.recorded_experts,
                chain=tuple(stage.span for stage in policy.stages),
                models=tuple(self._builder.local_models),
                concepts=recording.concepts,
            )
        )

    def _record_local_rows(self) -> None:
        """Publish what the drafter has read since, on its thread or ahead of time."""
        for below, reader in enumerate(reversed(self._readers)):
            while reader.rows_read:
                at, row = reader.rows_read.pop(0)
                self._publish(events.Rows(at, local=row, below=below))

    def _record_written(self, request: Write, reply: Wrote) -> None:
        text, banned = ids(reply.span), tuple(sorted(request.ban))
        for i, pending in enumerate(reply.span if self._limits.recording is not None else ()):
            at, cut = request.at + text[:i], reply.cut and i == len(text) - 1
            self._publish(events.Rows(at, cloud=pending.target_row, written=pending.id, banned=banned, cut=cut))
