"""Relays: a chat request that no hybrid can honour goes whole to a chat route, under the same caps as any other.

The laws (``tests/run/test_relaying.py``). Under a price or a cap a relay leaves only with its worst case reserved, told
from its body alone (``cloud.relay_bounds``); what nothing bounds is refused by its name. The limit that is sent is what
was reserved, so it may be lower than what was asked for. It is settled once: by the usage of a reply that ended, raised
to the tokens that came (``cloud.relay_bounds``), by all of its limit where none was told or it was left early, and not
at all where it broke: then its reservation stands. It is asked again only before its first byte (``run.retrying``).
Only the body goes up; nothing of a caller's headers is known here.

What is sent differs from what came in the model's name, the limit, and that a stream always tells its usage. Where the
caller named no limit, its name depends on the service: OpenAI's newer models refuse the older, many know no newer one.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from hybrid.cloud import relay_bounds
from hybrid.cloud.bounds import parse
from hybrid.cloud.dialects.chat import CHAT
from hybrid.cloud.dialects.reading import fields_of, read_usage
from hybrid.cloud.port import final_usage
from hybrid.cloud.prompt_bounds import CountedAnswer, PromptCounts
from hybrid.errors import BadReply, CloudError, CloudRefusal, QueueFull, UsageError
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.record.events import Publish
from hybrid.run.open_request import SHORTENED, OpenRequest, RequestBilling, RequestDenied
from hybrid.run.retrying import EndpointHealth, RetryingCaller
from hybrid.spend import Account, AnswerBudget
from hybrid.types import NO_USAGE, CloudUsage

if TYPE_CHECKING:  # the command line is there before HTTP is
    from hybrid.cloud.wire import RawReply, Wire

# The limit of an answer for which nobody has named one, where it must be reserved: enough for a call of a tool, or a
# long page; whoever wants more names it.
RELAY_TOKENS = 4096
# Relays under way at once: each holds a connection and a reservation.
MOST_RELAYS = 64
# What every event of a stream begins with.
HEAD = ("id", "object", "created", "model")


class RelayRefused(CloudRefusal):
    """The service turned the body down: that is its caller's business, and no failure of the service."""

    def __init__(self, error: CloudError) -> None:
        """Take what it answered."""
        super().__init__(str(error), sent=error.sent, charged=error.charged, retry_after_s=error.retry_after_s)
        self.status = error.status


@dataclass(frozen=True)
class RelayTarget:
    """Where relays go. ``model``: how it is called there, which may have to be asked for.

    ``image_tokens``: the most that an image is charged; None: not known.
    """

    wire: Wire
    account: Account
    model: Callable[[], Awaitable[str]]
    image_tokens: int | None = None


@dataclass(frozen=True)
class RelayedEvent:
    """One event of a stream, or a whole body, as it came. ``usage``: its JSON, where it holds the usage.

    Where a reply tells none, the usage of a body or of an event of its own at the end is what was booked.
    """

    data: bytes
    usage: dict[str, Any] | None = None


def _event_of(data: bytes, found: dict[str, Any]) -> RelayedEvent:
    return RelayedEvent(data, found if found.get("usage") and isinstance(found["usage"], dict) else None)


class Relayer:
    """Relays to one chat route, its ``target``. One for a client."""

    def __init__(self, target: RelayTarget, health: EndpointHealth) -> None:
        """Take the route, and what is remembered of its endpoint."""
        self.health = health
        self.target = target
        self._counts = PromptCounts()
        self._under_way = 0
        self._limit_name = relay_bounds.limit_name(target.wire.url)

    @asynccontextmanager
    async def open(
        self, body: Mapping[str, Any], publish: Publish, conversation: str | None = None
    ) -> AsyncGenerator[RelayedReply, None]:
        """Send a body; yield its reply once that has begun. What is left unread at the end is closed, and settled.

        Raises UsageError for a field that is wrong, UnboundedField, RequestDenied, CloudError, and QueueFull where as
        many are under way as may be.
        """
        if self._under_way >= MOST_RELAYS:
            msg = f"{MOST_RELAYS} requests are being relayed, and no more are at once"
            raise QueueFull(msg)
        self._under_way += 1
        try:
            async with self._open(body, publish, conversation) as reply:
                yield reply
        finally:
            self._under_way -= 1

    @asynccontextmanager
    async def _open(
        self, body: Mapping[str, Any], publish: Publish, conversation: str | None
    ) -> AsyncGenerator[RelayedReply, None]:
        body = {**body, **relay_bounds.whole_counts(body)}  # many services read no 9.0 where they want a whole number
        limit, choices = relay_bounds.limit_of(body), relay_bounds.num_choices(body)
        caller = RetryingCaller(self.health, publish)
        if (away := caller.unavailable()) is not None:
            raise away
        async with self.target.account.open_budget(conversation) as budget:
            tally = AnswerBuilder(0, lambda _: b"", lambda: budget.price, time.monotonic(), publish)
            sent = {**body, "model": await self.target.model()}
            sent.pop("hybrid", None)
            if body.get("stream"):
                sent["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
            bounded = await _is_bounded(budget)
            if bounded:
                most = self._worst_case(sent, limit or RELAY_TOKENS)
            else:
                most = CloudUsage(0, relay_bounds.most_completion(limit or RELAY_TOKENS, choices))
            asked_at = time.monotonic()

            async def attempt() -> RelayedReply:
                request = await _reserve(RequestBilling(budget, tally), most, choices)
                if bounded:
                    self._limit(sent, request.grant.limit // choices)
                return await self._send(sent, request, asked_at, budget, tally, caller)

            reply = await caller.call(attempt)
            reply.wanted_tokens = most.completion_tokens
            try:
                yield reply
            finally:
                try:
                    reply.settle()
                    self._learn(sent, reply)
                finally:
                    await reply.aclose()

    async def _send(
        self,
        body: dict[str, Any],
        request: OpenRequest,
        asked_at: float,
        budget: AnswerBudget,
        tally: AnswerBuilder,
        caller: RetryingCaller,
    ) -> RelayedReply:
        """Send it, up to the beginning of its reply: once that is handed on, it cannot be asked for again."""
        wire = self.target.wire
        deadlines = wire.question_deadlines(asked_at, request.before_send)
        try:
            raw = await wire.open_raw(CHAT, encoded(body), request.request_id, deadlines)
        except BaseException as error:
            if isinstance(error, CloudError):
                wire.hide_key(error)
            if isinstance(error, BadReply) and error.status is not None and error.status < 500:
                request.fail(refused := RelayRefused(error))
                raise refused from error
            request.fail(error)
            raise
        return RelayedReply(raw, request, budget, tally, caller)

    def _worst_case(self, body: Mapping[str, Any], limit: int) -> CloudUsage:
        return relay_bounds.worst_case(body, limit, self.target.image_tokens, self._counts)

    def _limit(self, body: dict[str, Any], limit: int) -> None:
        """Put the limit that was reserved into a body, by the name that its caller or else its service has for it."""
        names = [name for name in relay_bounds.LIMITS if body.get(name) is not None] or [self._limit_name]
        body |= dict.fromkeys(names, limit)

    def _learn(self, body: Mapping[str, Any], reply: RelayedReply) -> None:
        """Learn how many tokens the server makes of a body, where a whole reply told it.

        Of several answers nobody knows for how many of them the prompt was counted.
        """
        if reply.usage is not None and reply.told_prompt and relay_bounds.num_choices(body) == 1:
            with suppress(UsageError):  # of what has no bound nothing is learned
                prompt = relay_bounds.bounded_prompt(body, self.target.image_tokens)
                self._counts = self._counts.learn(prompt, reply.told_prompt, reply.counted_answer)


class RelayedReply:
    """A reply that has begun. It is read once, as a whole or event by event. Made by ``Relayer.open``."""

    def __init__(
        self, raw: RawReply, request: OpenRequest, budget: AnswerBudget, tally: AnswerBuilder, caller: RetryingCaller
    ) -> None:
        """Take a reply whose body is unread, and what settles it."""
        self.content_type, self.request_id, self.streams = raw.content_type, raw.request_id, raw.streams
        self.usage: CloudUsage | None = None
        """What the server told of its charge, as far as it is the last word; no fewer tokens than came."""
        self.told_prompt = 0
        """How many tokens the prompt has, as the server told it last; 0: it did not."""
        self._told: CloudUsage | None = None
        self._told_last = False
        self._booked: CloudUsage | None = None
        self._floor = relay_bounds.ReplyFloor()
        self.wanted_tokens = 0
        """The completion tokens of all answers that it may have without a cap; 0: no limit was put to it."""
        self._cut_off = False
        self._texts: list[str] | None = []  # None: there are several answers, or other things than text
        self._raw, self._request, self._budget, self._tally, self._caller = raw, request, budget, tally, caller

    @property
    def nanousd(self) -> int | None:
        """What it costs by what was told last, or else booked; None: not known, or not yet."""
        return None if self.charged is None else self._budget.cost(self.charged)

    @property
    def charged(self) -> CloudUsage | None:
        """The usage that was told last, or else booked; None: not yet, or more came since."""
        return self._booked or (self._told if self._told_last else self.usage)

    @property
    def notes(self) -> tuple[str, ...]:
        """What its caller should know of how it was reserved."""
        return self._tally.notes

    @property
    def degraded(self) -> str | None:
        """Why it ended before its end, where a cap had left it a smaller limit; None where that changed nothing."""
        limit = self._most.completion_tokens
        cut_off = self._cut_off and limit < self.wanted_tokens
        return SHORTENED.format(limit, self.wanted_tokens) if cut_off else None

    @property
    def bytes_sent(self) -> int:
        """Bytes of the bodies that left for it, those of attempts that failed too."""
        return self._tally.bytes_sent

    @property
    def counted_answer(self) -> CountedAnswer | None:
        """The answer and its tokens, where the server told them, and there is one answer of text alone."""
        if self.usage is None or not self._texts:
            return None
        return CountedAnswer.of("".join(self._texts), self.usage.completion_tokens)

    async def whole(self) -> RelayedEvent:
        """Return the body. Raises CloudError."""
        try:
            body = await self._caller.go_on(self._raw.whole)
        except BaseException as error:
            self._request.fail(error)
            raise
        found = _read(body)
        self._take(found)
        self.usage = self._told
        self.settle()
        whole = _event_of(body, found)
        return whole if whole.usage or not found else RelayedEvent(body, self._with_booked(found))

    async def events(self) -> AsyncGenerator[RelayedEvent, None]:
        """Yield the events of a stream, the one with the usage too, but not its [DONE]. Raises CloudError."""
        latest, num_told = dict[str, Any](), 0
        try:
            async with aclosing(self._raw.events()) as events:
                while (data := await self._caller.go_on(partial(anext, events, None))) is not None:
                    found = _read(data)
                    self._take(found)
                    each = _event_of(data, found)
                    latest, num_told = found or latest, num_told + (each.usage is not None)
                    yield each
        except CloudError as error:
            self._request.fail(error, self.usage)
            raise
        if self._told_last:
            self.usage = self._told
        self.settle()
        if self._booked is not None or not num_told:
            head = {name: latest[name] for name in HEAD if name in latest}
            if (booked := self._with_booked({**head, "choices": []})) is not None:
                yield RelayedEvent(b"", booked)

    def settle(self) -> None:
        """Record the charge, once: what was told last, or else all of its limit, or what was told or came if more."""
        if self.usage is None:
            self._booked = self._request.abandon(self._raised(self._told or NO_USAGE))
        else:
            self._request.settle(self.usage)

    def _with_booked(self, found: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return an object with what was booked as its usage; None where nothing was."""
        if not self.nanousd or (charged := self.charged) is None:
            return None
        prompt, completion = charged.prompt_tokens, charged.completion_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {**found, "usage": counts}

    async def aclose(self) -> None:
        """Close the request."""
        await self._raw.aclose()

    def _take(self, found: Mapping[str, Any]) -> None:
        """Take what a part of the reply tells: a usage is the last word until another part of an answer comes.

        Many services tell it with the reason of the end, some beside every token: such a one is the last word only
        where the reply ends with it.
        """
        self._floor.add(found)
        for choice in found["choices"] if isinstance(found.get("choices"), list) else ():
            self._cut_off = self._cut_off or fields_of(choice).get("finish_reason") == "length"
            if (text := _text_of(choice)) is None:
                self._texts = None
            elif self._texts is not None:
                self._texts.append(text)
        if found.get("usage"):
            self.told_prompt = read_usage(found).prompt_tokens
            told = final_usage(_usage_of(found, self._most), NO_USAGE, self._most.prompt_tokens)
            self._told = self._raised(told)
            self._told_last = True
            self.usage = None if found.get("choices") else self._told
        elif found.get("choices"):
            self.usage, self._told_last = None, False

    def _raised(self, told: CloudUsage) -> CloudUsage:
        """Return a usage of no fewer tokens than came. Their count is a guess at framing: it passes no limit."""
        limit = self._most.completion_tokens
        least = self._floor.num_tokens(told.completion_tokens or limit)
        return told.at_least(CloudUsage(0, min(least, limit)).known)

    @property
    def _most(self) -> CloudUsage:
        return self._request.max_usage


async def _is_bounded(budget: AnswerBudget) -> bool:
    """Whether what a relay may cost matters: there is a price that is not zero, or a cap without a price."""
    price = budget.price
    return not price.free if price is not None else bool(await budget.cap_statuses())


async def _reserve(billing: RequestBilling, most: CloudUsage, choices: int) -> OpenRequest:
    """Reserve the worst case, with as high a limit as a cap allows. Raises RequestDenied."""
    billing.note_assumed(most)
    try:
        request = await billing.open_request("relay", 0, most, ())
    except RequestDenied as denied:  # its caller is told nothing else
        raise RequestDenied("; ".join((str(denied), *billing.builder.notes)), by_cap=denied.by_cap) from None
    billing.note_shortened(request.grant.limit, most.completion_tokens)
    if request.grant.limit < choices:
        request.settle(NO_USAGE)
        msg = f"the cap does not allow a token for each of {choices} answers"
        raise RequestDenied(msg, by_cap=True)
    return request


def _usage_of(reply: Mapping[str, Any], most: CloudUsage) -> CloudUsage:
    """Read a usage. Where nothing tells what was written, it is all of the limit."""
    told, written = read_usage(reply, most), fields_of(reply, "usage").get("completion_tokens")
    if not told.completion_tokens and (isinstance(written, bool) or written != 0):
        return told.at_least(CloudUsage(0, most.completion_tokens).assumed)
    return told


def _text_of(choice: Any) -> str | None:
    """Return the text of the only choice or of its delta; None where there may be others, or other things than text."""
    part = fields_of(choice, "delta") or fields_of(choice, "message")
    other = fields_of(choice).get("index") or part.get("tool_calls") or part.get("function_call")
    return None if other else str(part.get("content") or "")


def _read(data: bytes) -> dict[str, Any]:
    """Return the object that a body or an event holds; an empty one where it holds none."""
    try:
        found = parse(data, "")
    except CloudError:
        return {}
    return found if isinstance(found, dict) else {}


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON. Raises UsageError for what is none."""
    try:
        return msgspec.json.encode(body)
    except RecursionError:
        raise UsageError("the body is nested too deeply") from None
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write and UTF-8 cannot
        return json.dumps(body).encode()
