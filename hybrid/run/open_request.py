"""A request while it is open: its reservation, its one settlement, and the stream of one that writes.

The law: every request is settled at most once, and until then its worst case stays reserved. A request that is never
settled (nobody knows what a broken one cost) counts as its worst case, in the ledger as in the bill. A charge above it
is recorded, and the answer says so, whatever else went wrong. ``cloud.port`` says what a request cost.

The law of a stream (``tests/run/test_write_stream.py``). A stream that ended is settled by its last usage, which comes
with its end or after it. One that we close before is settled by every token of its limit, since a server charges for
what it ran ahead, or by the usage that came until then if that is more. One that breaks is not settled, unless more
than its limit came. No stream is settled below the tokens that came. Tokens are handed on before the usage that follows
them. A stream that ends without a token and without a reason is broken. Where the tokens that come are not those that
are charged for (``Capabilities.counts_tokens``), they count for nothing: such a stream is settled by what was told, and
is read to its end for that once as many of ours came as were asked for.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace

from hybrid.cloud import Chunk
from hybrid.cloud.port import usage_after_failure
from hybrid.errors import BadReply, CloudError, CloudRefusal, MissingCapability
from hybrid.record import events
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.spend import AnswerBudget, CapScope, Denial, Grant, as_usd
from hybrid.types import NO_USAGE, CloudUsage, DegradedKind, Ids, num_shared

# How long the end of a stream is waited for that can tell nothing more, so that its connection can be used again.
GRACE_S = 1.0
ASSUMED = "its prompt is reserved as {:,} tokens, the most that it can be: the endpoint has counted nothing like it yet"
SHORTENED = "the cap leaves room for {:,} of the {:,} tokens that the cloud might write"


class RequestDenied(Exception):
    """A request may not leave: there is no money for it (``by_cap``), or that it leaves cannot be recorded.

    ``level``: that of the cap that denies it, where one does.
    """

    def __init__(self, why: str, *, by_cap: bool = False, level: CapScope | None = None) -> None:
        """Take the sentence."""
        super().__init__(why)
        self.by_cap, self.level = by_cap or level is not None, level


def failure_kind(error: CloudError | RequestDenied) -> DegradedKind:
    """Return what kind of failure an error of a request is."""
    match error:
        case RequestDenied():
            return "budget"
        case MissingCapability():
            return "capability"
        case CloudRefusal():
            return "refused"
        case BadReply():
            return "bad reply"
        case _:
            return "unreachable"


class AnsweredPrompts:
    """The prompts of one answer's requests that were answered, sorted; one that another begins with is left out.

    The law: no prompt shares a longer beginning with any of them than with a neighbour in their order
    (``tests/run/test_tariffs.py``).
    """

    def __init__(self) -> None:
        """Nothing was answered yet."""
        self._sorted: list[Ids] = []

    def repeated(self, prompt: Ids) -> int:
        """Return how many tokens at the beginning of a prompt are the beginning of one that was answered."""
        at = bisect_left(self._sorted, prompt)
        return max([num_shared(prompt, near) for near in self._sorted[max(0, at - 1) : at + 1]], default=0)

    def add(self, prompt: Ids) -> None:
        """Record that a prompt was answered."""
        at = bisect_left(self._sorted, prompt)
        if at < len(self._sorted) and self._sorted[at][: len(prompt)] == prompt:
            return
        extended = at > 0 and prompt[: len(self._sorted[at - 1])] == self._sorted[at - 1]
        self._sorted[at - extended : at] = [prompt]


class RequestBilling:
    """Opens every request of one answer: ``budget`` is the answer's money, and ``builder`` adds up its charges.

    ``answered``: the prompts that the endpoint has read for this answer, which later ones repeat. ``whole``: a
    write leaves with the limit it asks for, or not at all.
    """

    def __init__(self, budget: AnswerBudget, builder: AnswerBuilder, *, whole: bool = False) -> None:
        """Take the answer's money, and what its charges add up in."""
        self.budget = budget
        self.builder = builder
        self._whole = whole
        self.answered = AnsweredPrompts()

    def note_assumed(self, most: CloudUsage) -> None:
        """Say that nothing has counted a prompt whose length only the endpoint knows, where that costs something."""
        if most.assumed_prompt_tokens and self.budget.price is not None and not self.budget.price.free:
            self.builder.note(ASSUMED.format(most.prompt_tokens))

    def note_shortened(self, limit: int, wanted: int) -> None:
        """Say that a cap left less room for an answer than was asked for."""
        if limit < wanted:
            self.builder.note(SHORTENED.format(limit, wanted))

    async def open_request(
        self, kind: events.RequestKind, position: int, max_usage: CloudUsage, prompt: Ids, num_tokens: int | None = None
    ) -> OpenRequest:
        """Reserve the worst case of a request. Raises RequestDenied.

        A write's limit may come back lowered to what the cap allows, unless it is sent whole. ``prompt``: what it has
        the endpoint read. ``num_tokens``: those it is about; None: as many as its limit.
        """
        limit = max_usage.completion_tokens
        min_limit = limit if self._whole or kind == "check" else 1
        grant = await self.budget.reserve(max_usage.prompt_tokens, limit, min_limit, requests=max_usage.requests)
        if isinstance(grant, Denial):
            raise RequestDenied(grant.why, level=grant.level)
        reserved = grant.reservation
        if reserved is not None and reserved.returned_nanousd:
            amount = as_usd(reserved.returned_nanousd)
            self.builder.note(f"{amount} can be spent again: a process had reserved it and died before asking")
        request = OpenRequest(uuid.uuid4().hex, kind, grant, self, prompt)
        num_tokens = grant.limit if num_tokens is None else num_tokens
        nanousd = None if reserved is None else reserved.nanousd
        self.builder.publish(events.RequestSent(request.request_id, kind, position, num_tokens, nanousd))
        return request


class OpenRequest:
    """One request under one id, for at most ``max_usage``, until it is settled."""

    def __init__(
        self, request_id: str, kind: events.RequestKind, grant: Grant, billing: RequestBilling, prompt: Ids = ()
    ) -> None:
        """Start its clock."""
        self.request_id = request_id
        self.kind = kind
        self.grant = grant
        self._billing = billing
        self._num_repeated = billing.answered.repeated(prompt)
        self._sent = False
        self._began = time.monotonic()
        self._settled = False

    @property
    def max_usage(self) -> CloudUsage:
        """The most it can be charged: nothing cached, everything written."""
        return CloudUsage(self.grant.prompt_tokens, self.grant.limit, requests=self.grant.requests)

    async def before_send(self, num_bytes: int = 0) -> None:
        """Mark the reservation as sent, before the first byte; only the first HTTP request of a question does so.

        ``num_bytes``: of the body that leaves now. Raises RequestDenied where that cannot be recorded.
        """
        if not self._sent:
            if (denial := await self._billing.budget.mark_sent(self.grant)) is not None:
                raise RequestDenied(denial.why)
            self._sent = True
        self._billing.builder.bytes_sent += num_bytes

    def mark_written(self, num_tokens: int) -> None:
        """Record how many tokens have come by now, and how fast."""
        builder, took_s = self._billing.builder, time.monotonic() - self._began
        builder.longest_write = max(builder.longest_write, (num_tokens, num_tokens / max(took_s, 1e-9)))

    def settle(
        self, usage: CloudUsage | None, known: CloudUsage = NO_USAGE, failure: BaseException | None = None
    ) -> None:
        """Record the charge. Only the first call counts.

        None: it cannot be known; what is not ``known`` of the worst case is then assumed. ``failure``: how it broke.
        """
        if self._settled:
            return
        self._settled = True
        usage = usage and self._with_what_is_known(usage)
        budget, builder = self._billing.budget, self._billing.builder
        excess = budget.settle(self.grant, usage)
        builder.charges.append(usage or self.max_usage.assumed.at_least(known))
        cost = None if usage is None else budget.cost(usage)
        age_ms = round((time.monotonic() - self._began) * 1000, 3)
        why = (str(failure), failure_kind(failure)) if isinstance(failure, CloudError | RequestDenied) else ()
        builder.publish(events.RequestSettled(self.request_id, self.kind, usage, cost, age_ms, *why))
        if excess is not None:
            builder.add_overcharge(excess)

    def _with_what_is_known(self, usage: CloudUsage) -> CloudUsage:
        """Add what a tariff asks for. A usage beyond the worst case is charged as told or more: none hides it."""
        checks, price = usage.requests * (self.kind == "check"), self._billing.budget.price
        if self.max_usage.at_least(usage) != self.max_usage:
            return replace(usage, check_requests=checks) if price and price.repeated == "uncached" else usage
        return replace(usage, repeated_tokens=min(self._num_repeated, usage.prompt_tokens), check_requests=checks)

    def abandon(self, known: CloudUsage | None = None) -> CloudUsage:
        """Record that we closed it: every token of its limit, since a server charges for what it ran ahead.

        ``known``: what was charged for certain until then. Returns the charge.
        """
        charged = self.max_usage.assumed.at_least(known or NO_USAGE)
        self.settle(charged)
        return charged

    def fail(self, error: BaseException, known: CloudUsage | None = None) -> None:
        """Record that it broke: nothing of it ever left, or what is known of its charge, or that we closed it."""
        if not self._sent:
            self.settle(error.charged if isinstance(error, CloudError) else NO_USAGE, failure=error)
        elif isinstance(error, CloudError):
            self.settle(usage_after_failure(error, self.max_usage), error.charged, error)
        else:
            self.abandon(known)


class WriteStream:
    """An open request that writes.

    ``at`` is the answer's prefix it has reached, ``num_written`` tokens of it are the stream's own; ``open``: there may
    be more. ``cloud_text`` and ``local_text`` are how the endpoint and the local model spell what was not yet compared
    (``VocabularyCheck``).
    """

    def __init__(
        self, at: Ids, request: OpenRequest, chunks: AsyncGenerator[Chunk, None], *, counts_tokens: bool = True
    ) -> None:
        """Take over a stream that is about to be read. ``counts_tokens``: what comes is what is charged for."""
        self._counts_tokens = counts_tokens
        self.shortened = False
        """Whether a cap left it a smaller limit than was asked for."""
        self.at = at
        self.num_written = 0
        self.cloud_text = ""
        self.local_text = b""
        self.open = True
        self._request = request
        self._chunks = chunks
        self._usage: CloudUsage | None = None
        self._ended = False
        self._usage_is_final = False

    async def read(self) -> Chunk:
        """Return the next chunk that holds tokens, or the last one, which has ``finish`` set."""
        try:
            async for chunk in self._chunks:
                self._count(chunk)
                if chunk.ids or chunk.finish:
                    self._request.mark_written(self.num_written)
                    self.at += chunk.ids
                    self.cloud_text += chunk.text
                    # Many servers say why they ended in an event of its own; what was asked for is there before it.
                    all_came = self._counts_tokens and self.num_written >= self._request.grant.limit
                    self.open = chunk.finish is None and not all_came
                    await self._check_limit()
                    return chunk
            self._check_not_empty()
        except BaseException as error:
            self.open = False
            self._request.fail(error, self._known)
            await self._chunks.aclose()
            raise
        self.open, self._usage_is_final = False, True
        return Chunk(finish="length")

    async def close(self) -> None:
        """Settle and close: early, or at the end, where the usage is read first."""
        try:
            if not self.open or (not self._counts_tokens and self.num_written >= self._request.grant.limit):
                await self._drain()
        except CloudError as error:
            if not self._usage_is_final:
                self._request.fail(error)
        finally:
            if self._usage_is_final:
                self._request.settle(self._usage)
            else:
                self._request.abandon(self._known)
            self.open = False
            await self._chunks.aclose()

    def _count(self, chunk: Chunk) -> None:
        self.num_written += len(chunk.ids)
        self._ended = self._ended or chunk.finish is not None
        if chunk.usage is not None:
            self._usage, self._usage_is_final = chunk.usage, self._ended
        elif chunk.ids:
            self._usage_is_final = False

    @property
    def _known(self) -> CloudUsage:
        """What the server said that it charged, and no fewer tokens than came."""
        num_counted = self.num_written if self._counts_tokens else 0
        return (self._usage or NO_USAGE).at_least(CloudUsage(0, num_counted).known)

    @property
    def _exceeds_limit(self) -> bool:
        return self._counts_tokens and self.num_written > self._request.grant.limit

    async def _drain(self) -> None:
        """Read the rest for its usage: whatever came was charged.

        A stream whose usage is final or that has broken its limit is given ``GRACE_S`` to end.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as grace:
                while True:
                    if (self._usage_is_final or self._exceeds_limit) and grace.when() is None:
                        grace.reschedule(asyncio.get_running_loop().time() + GRACE_S)
                    chunk = await anext(self._chunks, None)
                    if chunk is None:
                        self._usage_is_final = True
                        return
                    self._count(chunk)

    async def _check_limit(self) -> None:
        if self._exceeds_limit:
            msg = f"the endpoint wrote {self.num_written} tokens where {self._request.grant.limit} were asked for"
            with suppress(CloudError):
                await self._drain()
            raise BadReply(msg, charged=self._known)

    def _check_not_empty(self) -> None:
        if self.num_written:
            return
        error = BadReply("the endpoint ended its stream without a token, and did not say why")
        if self._usage is not None:
            self._request.settle(self._usage, failure=error)
        raise error
