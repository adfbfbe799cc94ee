"""The HTTP surface: routes, errors, charges. Built around slots; knows no model file, no command line and no shape."""

from __future__ import annotations

import asyncio
import hmac
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import asdict

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from server_stub.completion import Charge, Completion
from server_stub.dialects import DIALECTS
from server_stub.exchange import Answer, Endpoint, Exchange, Fact
from server_stub.served import Served
from server_stub.slots import Slots
from server_stub.wire import Json, WireError

# Charges remembered for /v1/charges; the oldest are forgotten first.
MAX_CHARGES = 100_000
MAX_BODY_BYTES = 16 * 1024 * 1024

Handler = Callable[[Request], Awaitable[Response]]


class _Stream(StreamingResponse):
    """A stream that is closed however its client leaves, so that its slot is free at once, not once it is collected."""

    def __init__(self, pieces: AsyncGenerator[str, None], media_type: str) -> None:
        super().__init__(pieces, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._pieces.aclose()


class App:
    """Answers requests; one per process."""

    def __init__(self, served: Served, slots: Slots, dialect: str = "vllm") -> None:
        """Take what is served, where it is computed, and whose words are spoken."""
        self._served = served
        self._slots = slots
        self._family = DIALECTS[dialect](served)
        self._charges: OrderedDict[str, Charge] = OrderedDict()

    def routes(self) -> Starlette:
        """Return the ASGI application."""
        told = [
            Route(path, self._guarded(self._tells(fact)), methods=[method])
            for (method, path), fact in self._family.facts.items()
        ]
        answered = [
            Route(endpoint.path, self._guarded(self._answers(endpoint)), methods=["POST"])
            for endpoint in self._family.endpoints
        ]
        ours = [Route("/health", self._health), Route("/v1/charges", self._guarded(self._charged))]
        handlers = {HTTPException: self._unrouted, Exception: self._broken}
        return Starlette(routes=[*ours, *told, *answered], exception_handlers=handlers)

    def _guarded(self, handle: Handler) -> Handler:
        """Check the key, take the time a round trip takes, and shape errors."""

        async def guarded(request: Request) -> Response:
            try:
                self._admit(request)
                await asyncio.sleep(self._served.latency_s)
                return await handle(request)
            except WireError as error:
                return self._refused(error)

        return guarded

    def _admit(self, request: Request) -> None:
        if self._served.api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._served.api_key.encode()):
            raise WireError(401, "Unauthorized", "AuthenticationError")

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200)

    async def _charged(self, _: Request) -> Response:
        return _json({"data": [{"id": key} | asdict(charge) for key, charge in self._charges.items()]})

    def _tells(self, fact: Fact) -> Handler:
        async def tell(request: Request) -> Response:
            return _json(fact(await _body(request)))

        return tell

    def _answers(self, endpoint: Endpoint) -> Handler:
        async def answer(request: Request) -> Response:
            named = request.headers.get("x-request-id")
            exchange = endpoint.read(await _body(request), named or uuid.uuid4().hex)
            charge = self._booked(named or exchange.request_id)
            if exchange.streams:
                return _Stream(self._stream(exchange, charge), self._family.framing.media_type)
            return await _unless_gone(request, self._whole(exchange, charge))

        return answer

    def _booked(self, request_id: str) -> Charge:
        """Open an account. A client that repeats its id adds to the first one's: what it owes is the sum."""
        charge = self._charges.setdefault(request_id, Charge())
        while len(self._charges) > MAX_CHARGES:
            self._charges.popitem(last=False)
        return charge

    async def _whole(self, exchange: Exchange, charge: Charge) -> Response:
        answers = []
        for index, ask in enumerate(exchange.asks):
            async with self._slots.borrow(ask.ids, ask.salt) as slot:
                work = Completion(ask, slot, charge, self._served.token_s)
                logits = await work.start()
                steps = [step async for step in work.steps(logits)]
            answers.append(Answer(index, ask, charge, work.prompt_rows, steps))
        return _json(exchange.whole(answers))

    async def _stream(self, exchange: Exchange, charge: Charge) -> AsyncGenerator[str, None]:
        framing, answers = self._family.framing, []
        for index, ask in enumerate(exchange.asks):
            async with self._slots.borrow(ask.ids, ask.salt) as slot:
                work = Completion(ask, slot, charge, self._served.token_s)
                logits = await work.start()
                answer = Answer(index, ask, charge, work.prompt_rows)
                answers.append(answer)
                for piece in exchange.opening(answer):
                    yield framing.frame(piece)
                async for step in work.steps(logits):
                    answer.steps.append(step)
                    if chunk := exchange.chunk(answer):
                        yield framing.frame(chunk)
        for piece in exchange.closing(answers):
            yield framing.frame(piece)
        yield framing.end

    async def _unrouted(self, _: Request, error: Exception) -> Response:
        """No such route, or no such method on it."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        detail = error.detail if isinstance(error, HTTPException) else ""
        return self._refused(WireError(status, detail, "NotFoundError"))

    async def _broken(self, _: Request, error: Exception) -> Response:
        """Our own fault."""
        return self._refused(WireError(500, type(error).__name__, "InternalServerError"))

    def _refused(self, error: WireError) -> Response:
        return _json(self._family.refusal(error), error.status)


async def _unless_gone(request: Request, answer: Coroutine[None, None, Response]) -> Response:
    """Return an answer, or stop working on it once the client has left."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_disconnected(request))
    await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
    for task in (work, gone):
        if not task.done():
            task.cancel()
    await asyncio.wait([work, gone])
    return Response(status_code=499) if work.cancelled() else work.result()


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


def _json(body: Json, status: int = 200) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")
