"""The HTTP surface: routes, errors, charges. Built around slots; knows no model file and no command line."""

from __future__ import annotations

import asyncio
import hmac
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hybrid.engine import Vocabulary
from server_stub import wire
from server_stub.completion import Charge, Completion
from server_stub.rows import Row
from server_stub.slots import Slots
from server_stub.wire import CompletionRequest, WireError

# Charges remembered for /v1/charges; the oldest are forgotten first.
MAX_CHARGES = 100_000
MAX_BODY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Served:
    """What is served and how: the model's name and vocabulary, its context, the switches of the command line."""

    name: str
    vocabulary: Vocabulary
    num_context: int
    max_logprobs: int = 20
    latency_s: float = 0.0
    scoring_keeps_cache: bool = False
    api_key: str | None = None


class _Events(StreamingResponse):
    """A stream that is closed however its client leaves, so that its slot is free at once, not once it is collected."""

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


class App:
    """Answers requests; one per process."""

    def __init__(self, served: Served, slots: Slots) -> None:
        """Take what is served and where it is computed."""
        self._served = served
        self._slots = slots
        self._charges: OrderedDict[str, Charge] = OrderedDict()

    def routes(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._guarded(self._models)),
                Route("/tokenize", self._guarded(self._tokenize), methods=["POST"]),
                Route("/v1/completions", self._guarded(self._completions), methods=["POST"]),
                Route("/v1/charges", self._guarded(self._charged)),
            ],
            exception_handlers={HTTPException: _unrouted, Exception: _broken},
        )

    def _guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Check the key, take the time a round trip takes, and shape errors."""

        async def guarded(request: Request) -> Response:
            try:
                self._admit(request)
                await asyncio.sleep(self._served.latency_s)
                return await handle(request)
            except WireError as error:
                return JSONResponse(error.body(), status_code=error.status)

        return guarded

    def _admit(self, request: Request) -> None:
        if self._served.api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._served.api_key.encode()):
            raise WireError(401, "Unauthorized", "AuthenticationError")

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200)

    async def _models(self, _: Request) -> Response:
        model = {"id": self._served.name, "object": "model", "created": 0, "owned_by": "server_stub"}
        return JSONResponse({"object": "list", "data": [model | {"max_model_len": self._served.num_context}]})

    async def _tokenize(self, request: Request) -> Response:
        try:
            asked = json.loads(await _body(request))
            self._check_model(asked.get("model"))
            ids = self._served.vocabulary.tokenize(asked["prompt"], special=asked.get("add_special_tokens", True))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise WireError(400, "a JSON object with a prompt is needed", param="prompt") from None
        return JSONResponse({"count": len(ids), "max_model_len": self._served.num_context, "tokens": list(ids)})

    async def _charged(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": key} | asdict(charge) for key, charge in self._charges.items()]})

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._served.name:
            raise WireError(404, f"The model `{name}` does not exist.", "NotFoundError", "model")

    async def _completions(self, request: Request) -> Response:
        asked = wire.read_request(await _body(request), self._served.max_logprobs)
        self._check_model(asked.model)
        ids = self._prompt(asked)
        request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        charge = self._charges[request_id] = Charge()
        while len(self._charges) > MAX_CHARGES:
            self._charges.popitem(last=False)
        if asked.stream:
            return _Events(self._stream(asked, ids, charge, request_id))
        work = asyncio.ensure_future(self._whole(asked, ids, charge, request_id))
        gone = asyncio.ensure_future(_disconnected(request))
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        for task in (work, gone):
            if not task.done():
                task.cancel()
        await asyncio.wait([work, gone])
        return Response(status_code=499) if work.cancelled() else JSONResponse(work.result())

    def _prompt(self, asked: CompletionRequest) -> tuple[int, ...]:
        vocabulary, room = self._served.vocabulary, self._served.num_context
        if isinstance(asked.prompt, str):
            ids = vocabulary.tokenize(asked.prompt, special=asked.add_special_tokens)
        else:
            ids = tuple(asked.prompt)
        if any(token >= vocabulary.num_tokens for token in ids):
            raise WireError(400, f"Token id {max(ids)} is out of vocabulary", param="prompt")
        if not ids or len(ids) + asked.max_tokens > room:
            message = (
                f"This model's maximum context length is {room} tokens. However, you requested {asked.max_tokens} "
                f"output tokens and your prompt contains {len(ids)} input tokens."
            )
            raise WireError(400, message, param="input_tokens")
        return ids

    async def _whole(
        self, asked: CompletionRequest, ids: tuple[int, ...], charge: Charge, request_id: str
    ) -> dict[str, Any]:
        async with self._slots.borrow(ids, asked.cache_salt) as slot:
            work = Completion(asked, ids, slot, charge, self._served.scoring_keeps_cache)
            logits = await work.start()
            steps = [step async for step in work.steps(logits)] if asked.max_tokens else []
        written, rows = [step.token for step in steps], [step.row for step in steps]
        text = "".join(step.text for step in steps)
        shown_ids, shown_rows = list(written), list[Row | None](rows)
        if asked.echo:
            text = self._text(ids) + text
            shown_ids, shown_rows = [*ids, *written], [*(work.prompt_rows or [None] * len(ids)), *rows]
        choice = wire.choice(
            text,
            steps[-1].finish if steps else "length",
            steps[-1].stopped_by if steps else None,
            logprobs=self._logprobs(asked, shown_rows, shown_ids, 0),
            prompt_logprobs=self._prompt_logprobs(asked, work, ids),
            token_ids=written if asked.return_token_ids else None,
            prompt_token_ids=list(ids) if asked.return_token_ids else None,
        )
        used = wire.usage(charge.prompt_tokens, charge.completion_tokens, charge.cached_tokens)
        return wire.envelope(request_id, self._served.name, [choice], used)

    async def _stream(
        self, asked: CompletionRequest, ids: tuple[int, ...], charge: Charge, request_id: str
    ) -> AsyncGenerator[str, None]:
        name, offset, first = self._served.name, 0, True
        async with self._slots.borrow(ids, asked.cache_salt) as slot:
            work = Completion(asked, ids, slot, charge, self._served.scoring_keeps_cache)
            logits = await work.start()
            if asked.echo:
                choice = wire.choice(
                    self._text(ids),
                    None if asked.max_tokens else "length",
                    None,
                    logprobs=self._logprobs(asked, work.prompt_rows or [None] * len(ids), list(ids), 0),
                    prompt_token_ids=list(ids) if asked.return_token_ids else None,
                )
                offset, first = self._width(ids), False
                yield _event(wire.envelope(request_id, name, [choice], None))
            async for step in work.steps(logits):
                choice = wire.choice(
                    step.text,
                    step.finish,
                    step.stopped_by,
                    logprobs=self._logprobs(asked, [step.row], [step.token], offset),
                    token_ids=[step.token] if asked.return_token_ids else None,
                    prompt_token_ids=list(ids) if asked.return_token_ids and first else None,
                )
                offset, first = offset + self._width((step.token,)), False
                yield _event(wire.envelope(request_id, name, [choice], None))
        if asked.stream_options and asked.stream_options.include_usage:
            used = wire.usage(charge.prompt_tokens, charge.completion_tokens, charge.cached_tokens)
            yield _event(wire.envelope(request_id, name, [], used))
        yield "data: [DONE]\n\n"

    def _logprobs(
        self, asked: CompletionRequest, rows: list[Row | None], ids: list[int], offset: int
    ) -> dict[str, Any] | None:
        if asked.logprobs is None:
            return None
        text = self._texts(rows, ids)
        return wire.logprobs(rows, ids, asked.logprobs, text, as_ids=asked.return_tokens_as_token_ids, offset=offset)

    def _prompt_logprobs(self, asked: CompletionRequest, work: Completion, ids: tuple[int, ...]) -> list[Any] | None:
        if asked.prompt_logprobs is None:
            return None
        text = self._texts(work.prompt_rows, list(ids))
        pairs = zip(work.prompt_rows, ids, strict=True)
        return [None if r is None else wire.prompt_row(r, asked.prompt_logprobs, i, text) for r, i in pairs]

    def _texts(self, rows: list[Row | None], ids: list[int]) -> dict[int, str]:
        shown = {i for row in rows if row is not None for i, _ in row.top} | set(ids)
        return {i: self._served.vocabulary.piece(i).decode("utf-8", "replace") for i in shown}

    def _width(self, ids: tuple[int, ...]) -> int:
        return sum(len(self._text((token,))) for token in ids)

    def _text(self, ids: tuple[int, ...]) -> str:
        return b"".join(map(self._served.vocabulary.piece, ids)).decode("utf-8", "replace")


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise WireError(413, f"The body is larger than {MAX_BODY_BYTES >> 20} MiB")
    return bytes(body)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


async def _unrouted(_: Request, error: Exception) -> Response:
    """No such route, or no such method on it."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    detail = error.detail if isinstance(error, HTTPException) else ""
    return JSONResponse(WireError(status, detail, "NotFoundError").body(), status_code=status)


async def _broken(_: Request, error: Exception) -> Response:
    """Our own fault."""
    return JSONResponse(WireError(500, type(error).__name__, "InternalServerError").body(), status_code=500)
