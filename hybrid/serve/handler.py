"""``POST /v1/chat/completions`` and ``POST /v1/completions``: a request becomes questions to the client, and a reply.

The n answers of a request are n questions: each has a context and a seed of its own, and they are answered side by side
as far as there are contexts. What is left to the reply is its form (``replies.py``).
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request

from hybrid.errors import HybridError, to_one_line
from hybrid.record.answer import Answer
from hybrid.record.events import Event, Finished, Started, text_of, thoughts_of
from hybrid.run import AsyncClient
from hybrid.run.composition import SEED_BITS
from hybrid.serve.app_state import AppState
from hybrid.serve.body import ThreadPacer, listed
from hybrid.serve.errors import ApiError, api_error, internal_error, reason_of
from hybrid.serve.reducer import LEFT
from hybrid.serve.relay import relay_reply
from hybrid.serve.replies import ChatFormat, CompletionFormat, Mode, RowKeeper, TokenLogprobs, own_of, usage_of
from hybrid.serve.requests import FieldReader, GenerationRequest, object_of, read_chat, read_completion
from hybrid.serve.response import DisconnectAwareResponse, ResponseWriter, ended, pinged
from hybrid.settings.config import AnswerChoices

# A longer body is read in a thread: megabytes of messages take seconds, in which others' streams would stand still.
READ_AT_ONCE = 64 * 1024
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_encode = msgspec.json.Encoder().encode


async def chat(request: Request) -> DisconnectAwareResponse:
    """Answer a conversation."""
    return await _reply(request, read_chat, ChatFormat)


async def completions(request: Request) -> DisconnectAwareResponse:
    """Continue a text."""
    return await _reply(request, read_completion, CompletionFormat)


def read_long(raw: bytes, read: FieldReader, pace: ThreadPacer) -> tuple[dict[str, Any], GenerationRequest]:
    """Read a body at a pace, with nobody looking for garbage meanwhile: all that is made is in use. Raises ApiError."""
    looks = gc.isenabled()
    gc.disable()
    try:
        return _read(raw, read, pace)
    except ApiError as error:
        raise error.with_traceback(None) from None  # the places that it passed hold all that was read
    finally:
        if looks:
            gc.enable()


def _read(raw: bytes, read: FieldReader, pace: ThreadPacer) -> tuple[dict[str, Any], GenerationRequest]:
    try:
        fields = object_of(raw, pace)
    finally:
        pace.rest()
    generation = read(fields, pace.through)
    pace.rest()
    return fields, generation


async def _read_in_turn(state: AppState, raw: bytes, read: FieldReader) -> tuple[dict[str, Any], GenerationRequest]:
    """Read a body: a long one alone, in a thread. Whoever leaves then waits for the thread, so that the next does."""
    if len(raw) <= READ_AT_ONCE:
        fields = object_of(raw)
        return fields, read(fields)
    await state.backend.client()  # what is read is held: not beside others while a model is loaded
    async with state.reading:
        reading = asyncio.create_task(asyncio.to_thread(lambda: read_long(raw, read, ThreadPacer())))
        try:
            await ended(reading)
            return reading.result()
        finally:
            del reading  # its error would hold this place, and this place the error


async def _reply(request: Request, read: FieldReader, shape: type[ChatFormat]) -> DisconnectAwareResponse:
    """Return an answer that notices when its caller leaves, while its body waits to be read, too."""
    state: AppState = request.app.state.app_state
    raw = await request.body()

    async def work(writer: ResponseWriter) -> None:
        fields, generation = await _read_in_turn(state, raw, read)
        if generation.relay:
            await relay_reply(state, writer, fields, generation)
            return
        del fields  # it takes twenty times the room of a long body
        form = shape(generation.model, generation.top_logprobs)
        client = await state.backend.client()
        fitted = fit(generation, client)
        headers: dict[str, str] = {"x-hybrid-mode": mode_of(fitted, client)}
        if fitted.ignored:
            headers["x-hybrid-ignored"] = listed(fitted.ignored)
        handler = RequestHandler(state, client, fitted, form)
        await (_stream(writer, handler, headers) if generation.streamed else _whole(writer, handler, headers))

    return DisconnectAwareResponse(work)


def fit(generation: GenerationRequest, client: AsyncClient) -> GenerationRequest:
    """Return a request as the model behind the client can be asked it: without arguments that its template never reads.

    Some clients send ``reasoning_effort`` with everything. What is left out is named among what was ignored.
    """
    args = generation.choices.get("template_args") or {}
    idle = tuple(name for name in args if name not in client.template_names)
    if not idle:
        return generation
    kept = {name: value for name, value in args.items() if name not in idle}
    choices = AnswerChoices(**{**generation.choices, "template_args": kept})
    named = tuple(name if name == "reasoning_effort" else f"chat_template_kwargs.{name}"[:80] for name in idle)
    return replace(generation, choices=choices, ignored=(*generation.ignored, *map(to_one_line, named)))


def mode_of(generation: GenerationRequest, client: AsyncClient) -> Mode:
    """Say whether the cloud may be asked for an answer."""
    offline = generation.choices.get("offline") or client.settings.offline
    policy = generation.choices.get("policy") or client.settings.policy
    return "local" if offline or policy == "local" else "hybrid"


class RequestHandler:
    """The answers of one request while they are written. Made for it, used once."""

    def __init__(self, state: AppState, client: AsyncClient, generation: GenerationRequest, form: ChatFormat) -> None:
        """Take the client and what is asked of it."""
        self.generation, self.form = generation, form
        self.mode = mode_of(generation, client)
        self._state = state
        self._client = client
        shows = state.options.shows_texts
        self._rows = generation.top_logprobs is not None or shows
        self._prompt = generation.question if shows else None
        num = generation.top_logprobs
        self._keepers = [] if num is None else [RowKeeper(num) for _ in range(generation.n)]
        self.scored: list[list[TokenLogprobs]] = [[] for _ in range(generation.n)]
        """What is known of each answer's tokens; whoever tells it in parts takes it out."""
        self.opened: set[int] = set()
        """The answers of which a caller has been sent something."""
        self.answers: dict[int, Answer] = {}
        self.prompt_tokens = 0
        if generation.n > 1 and "seed" not in generation.choices:
            own = client.settings.seed  # each answer draws from its own, and all can be had again
            first = secrets.randbits(SEED_BITS) if own is None else own
            self.generation = replace(generation, choices=AnswerChoices(**{**generation.choices, "seed": first}))

    @property
    def all(self) -> list[Answer]:
        """The answers, once all are finished."""
        return [self.answers[i] for i in range(self.generation.n)]

    async def events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """Yield everything that happens, with the number of the answer to which it does."""
        if self.generation.n == 1:
            async with aclosing(self._events_of(0)) as events:
                async for event in events:
                    yield 0, event
            return
        happened: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        places = asyncio.Semaphore(self._client.parallel)  # one request's answers do not fill the line by themselves

        async def write(index: int) -> None:
            async with places, aclosing(self._events_of(index)) as events:
                async for event in events:
                    happened.put_nowait((index, event))

        tasks = [asyncio.create_task(write(i)) for i in range(self.generation.n)]
        written = asyncio.gather(*tasks)
        written.add_done_callback(lambda _: happened.put_nowait(None))
        try:
            while (found := await happened.get()) is not None:
                yield found
            await written
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(written, *tasks, return_exceptions=True)  # whose ends are seen so, that of all too

    async def _events_of(self, index: int) -> AsyncGenerator[Event, None]:
        """Yield what happens to one answer; whoever watches hears it first, and the end of what a caller has left."""
        name = self.form.request_id if self.generation.n == 1 else f"{self.form.request_id}-{index}"
        watch, why = self._state.watch.begin(name, self.generation.model, self._prompt), LEFT
        reason = None
        choices = self.generation.choices_of(index)
        if self._rows:
            choices = AnswerChoices(**{**choices, "trace_rows": True})
        try:
            answer = self._client.stream(self.generation.question, on_event=watch.observe, **choices)
            async with aclosing(answer) as events:
                async for event in events:
                    self._take(index, event)
                    yield event
            why = ""
        except Exception as error:
            reason = reason_of(error)
            why = str(error) if isinstance(error, HybridError) else reason
            raise
        finally:
            watch.end(why or None, reason)

    def _take(self, index: int, event: Event) -> None:
        if isinstance(event, Started):
            self.prompt_tokens = len(event.prompt)
        elif isinstance(event, Finished):
            self.answers[index] = event.answer
        if self._keepers and (scored := self._keepers[index].observe(event)):
            self.scored[index].append(scored)


async def _whole(writer: ResponseWriter, handler: RequestHandler, headers: Mapping[str, str]) -> None:
    """Answer at once, when all is written."""
    async with aclosing(handler.events()) as events:
        async for _ in events:
            pass
    answers, own = handler.all, own_of(handler.all, handler.mode)
    body = handler.form.whole(answers, handler.scored, handler.prompt_tokens) | {"hybrid": own}
    headers = {**headers, "content-type": "application/json"}
    if own["cost"] is not None:
        headers["x-hybrid-cost"] = f"{own['cost']:.9f}"
    if own["degraded"]:
        headers["x-hybrid-degraded"] = to_one_line(own["degraded"]).encode("ascii", "replace").decode()
    await writer.whole(200, headers, _encode(body))


async def _stream(writer: ResponseWriter, handler: RequestHandler, headers: Mapping[str, str]) -> None:
    """Answer in chunks as the text becomes readable."""
    try:
        async with pinged(writer, {**_STREAM, **headers}), aclosing(handler.events()) as events:
            async for index, event in events:
                if parts := _chunks_of(handler, index, event):
                    await _begin(writer, headers)
                    await writer.write(b"".join(map(_event, parts)))
        form, usage = handler.form, usage_of(handler.all, handler.prompt_tokens)
        if handler.generation.include_usage:
            await writer.write(_event(form.usage_chunk(usage)))
        await writer.end(b"data: [DONE]\n\n")
    except HybridError as error:
        await _broken(writer, api_error(error), error)
    except Exception as error:
        if writer.begun:
            await writer.end(_event(internal_error(error).body))
        else:
            raise


async def _broken(writer: ResponseWriter, told: ApiError, error: Exception) -> None:
    """End a stream that has begun without the mark of an end; raise the error where nothing was sent."""
    if not writer.begun:
        raise error
    await writer.end(_event(told.body))


async def _begin(writer: ResponseWriter, headers: Mapping[str, str]) -> None:
    if not writer.begun:
        await writer.begin(200, {**_STREAM, **headers})


def _chunks_of(handler: RequestHandler, index: int, event: Event) -> list[dict[str, Any]]:
    """Return the chunks of one event; most have none.

    An answer's opening waits for its text: until then what the cloud can never do is a status, not part of a stream.
    """
    form, text, thoughts = handler.form, text_of(event), thoughts_of(event)
    chunks = list[dict[str, Any]]()
    if not (text or thoughts or isinstance(event, Finished)):
        return chunks
    if index not in handler.opened:
        handler.opened.add(index)
        if (opening := form.opening()) is not None:
            chunks.append(form.chunk(index, opening))
    if text or thoughts:
        scored, handler.scored[index] = handler.scored[index], []
        chunks.append(form.chunk(index, form.text(text, thoughts, scored)))
    if isinstance(event, Finished):
        closing = form.closing()
        if scored := handler.scored[index]:  # tokens without a text of their own: the end of a split character
            closing = form.text("", "", scored)
        own = {"hybrid": own_of([event.answer], handler.mode)}
        chunks.append(form.chunk(index, closing, event.answer.finish_reason) | own)
    return [chunk | {"usage": None} for chunk in chunks] if handler.generation.include_usage else chunks


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"
