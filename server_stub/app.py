"""The HTTP surface: routes, errors, charges. Built around slots; knows no model file, no command line and no shape."""

from __future__ import annotations

import asyncio
import hmac
import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import asdict, replace

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server_stub.completion import Charge, Completion
from server_stub.dialects import DIALECTS
from server_stub.exchange import Answer, Endpoint, Exchange, Fact
from server_stub.faults import Faults, Stream, Strike, instead, spoilt, through
from server_stub.served import Served
from server_stub.slots import PrefixCache, Slots
from server_stub.wire import Json, Killed, WireError

# What every request was charged: the truth that tests hold the client's bill against, whatever its answer said.
#
# The law: an account is opened only for a request that is computed, and says what has been computed so far, times what
# the server takes for it (1, unless a fault overcharges). A client that repeats its id owes the sum. Tested in
# ``tests/server_stub/test_faults.py`` and ``test_process.py``.

# Requests remembered; the oldest are forgotten first.
MAX_REQUESTS = 100_000


class ChargeLog:
    """Accounts by request id."""

    def __init__(self) -> None:
        """Nobody owes anything yet."""
        self._opened: OrderedDict[str, list[tuple[Charge, int]]] = OrderedDict()

    def open(self, request_id: str, times: int = 1) -> Charge:
        """Return a new account, to be filled as work is done."""
        charge = Charge()
        self._opened.setdefault(request_id, []).append((charge, times))
        while len(self._opened) > MAX_REQUESTS:
            self._opened.popitem(last=False)
        return charge

    def told(self) -> list[Json]:
        """Return what each id owes, and what was computed for it where that is not the same."""
        return [{"id": request_id} | self._entry(entries) for request_id, entries in self._opened.items()]

    @staticmethod
    def _entry(entries: list[tuple[Charge, int]]) -> Json:
        computed = sum((charge for charge, _ in entries), Charge())
        charged = sum((charge * times for charge, times in entries), Charge())
        return asdict(charged) | ({} if charged == computed else {"computed": asdict(computed)})


MAX_BODY_BYTES = 16 * 1024 * 1024
# What a server within a process of others answers from then on; one with a process of its own has ended.
DEAD = WireError(500, "The server has died of an earlier request.", "InternalServerError")

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """Answers requests; one per process, which a request may end where it ends the family's own server."""

    def __init__(
        self,
        served: Served,
        slots: Slots,
        dialect: str = "vllm",
        faults: Faults | None = None,
        end: Callable[[Killed], None] = lambda _: None,
    ) -> None:
        """Take what is served, where it is computed, whose words are spoken, what shall go wrong, and how to end."""
        self._served = served
        self._slots = slots
        self._family = DIALECTS[dialect](served)
        slots.share(PrefixCache(self._family.block_size))
        self._faults = faults or Faults()
        self._accounts = ChargeLog()
        self._end, self._dead = end, False

    def routes(self) -> Starlette:
        """Return the ASGI application."""
        told = [
            Route(path, self._guarded(self._struck(self._tells(fact), generates=False)), methods=[method])
            for (method, path), fact in self._family.facts.items()
        ]
        answered = [
            Route(each.path, self._guarded(self._struck(self._answers(each), generates=True)), methods=["POST"])
            for each in self._family.endpoints
        ]
        ours = [
            Route("/health", self._health),
            Route("/v1/charges", self._guarded(self._charged)),
            Route("/v1/faults", self._guarded(self._counted)),
        ]
        handlers = {HTTPException: self._unrouted, Exception: self._broken}
        return Starlette(routes=[*ours, *told, *answered], exception_handlers=handlers)

    def _guarded(self, handle: Handler) -> Handler:
        """Check the key, take the time a round trip takes, and shape errors."""

        async def guarded(request: Request) -> Response:
            if self._dead:
                return self._refused(DEAD)
            try:
                self._admit(request)
                await asyncio.sleep(self._served.latency_s)
                return await handle(request)
            except WireError as error:
                return self._refused(error)
            except Killed as error:
                return self._killed(error)

        return guarded

    def _killed(self, error: Killed) -> Response:
        """End as the family's server does: after its last words, or without any."""
        self._dead = True
        if self._family.last_words is not None:
            return self._refused(self._family.last_words, then=BackgroundTask(self._end, error))
        self._end(error)
        return self._refused(DEAD)

    def _struck(self, handle: Handler, *, generates: bool) -> Handler:
        """Let a fault strike: before, instead, or afterwards. ``request.state.strike`` is for those in between."""

        async def struck(request: Request) -> Response:
            strike = self._faults.pick(request.headers.get("x-fault"), generates=generates)
            await strike.delay()
            request.state.strike = strike
            return instead(strike, request.url, self._refused) or spoilt(strike, await handle(request))

        return struck

    def _admit(self, request: Request) -> None:
        if self._served.api_key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._served.api_key.encode()):
            raise WireError(401, "Unauthorized", "AuthenticationError")

    async def _health(self, _: Request) -> Response:
        return Response(status_code=503 if self._dead else 200)

    async def _charged(self, _: Request) -> Response:
        return _json({"data": self._accounts.told()})

    async def _counted(self, _: Request) -> Response:
        return _json({"data": dict(sorted(self._faults.counts.items()))})

    def _tells(self, fact: Fact) -> Handler:
        async def tell(request: Request) -> Response:
            return _json(fact(await _body(request)))

        return tell

    def _answers(self, endpoint: Endpoint) -> Handler:
        async def answer(request: Request) -> Response:
            named = request.headers.get("x-request-id")
            exchange = endpoint.read(await _body(request), named or uuid.uuid4().hex)
            strike: Strike = request.state.strike
            charge = self._accounts.open(named or exchange.request_id, strike.times)
            if exchange.streams:
                pieces = through(strike, self._stream(exchange, charge, strike))
                return Stream(pieces, self._family.framing.media_type)
            return await _unless_gone(request, self._whole(exchange, charge, strike))

        return answer

    async def _whole(self, exchange: Exchange, charge: Charge, strike: Strike) -> Response:
        answers = []
        for index, ask in enumerate(exchange.asks):
            async with self._slots.borrow(ask.ids, ask.salt) as slot:
                work = Completion(ask, slot, charge, self._served.token_s, self._served.prefill_s)
                logits = await work.start()
                steps = [strike.step(step) async for step in work.steps(logits)]
            rows = strike.prompt_rows(work.prompt_rows, ask.ids)
            answers.append(Answer(index, ask, charge, rows, steps, work.num_cached))
        return _json(exchange.whole([replace(answer, charge=strike.told(charge)) for answer in answers]))

    async def _stream(self, exchange: Exchange, charge: Charge, strike: Strike) -> AsyncGenerator[str, None]:
        framing, answers = self._family.framing, []
        for index, ask in enumerate(exchange.asks):
            async with self._slots.borrow(ask.ids, ask.salt) as slot:
                work = Completion(ask, slot, charge, self._served.token_s, self._served.prefill_s)
                logits = await work.start()
                rows = strike.prompt_rows(work.prompt_rows, ask.ids)
                answer = Answer(index, ask, charge, rows, num_cached=work.num_cached)
                answers.append(answer)
                for piece in exchange.opening(answer):
                    yield framing.frame(piece)
                async for step in work.steps(logits):
                    answer.steps.append(strike.step(step))
                    answer.charge = strike.told(charge)
                    if chunk := exchange.chunk(answer):
                        yield framing.frame(chunk)
        for answer in answers:
            answer.charge = strike.told(charge)
        for piece in exchange.closing(answers):
            yield framing.frame(piece)
        if framing.end:
            yield framing.end

    async def _unrouted(self, _: Request, error: Exception) -> Response:
        """No such route, or no such method on it."""
        status = error.status_code if isinstance(error, HTTPException) else 404
        detail = error.detail if isinstance(error, HTTPException) else ""
        return _json(self._family.unrouted(WireError(status, detail, "NotFoundError")), status)

    async def _broken(self, _: Request, error: Exception) -> Response:
        """Our own fault."""
        return self._refused(WireError(500, type(error).__name__, "InternalServerError"))

    def _refused(self, error: WireError, then: BackgroundTask | None = None) -> Response:
        told, framing = self._family.refusal(error), self._family.framing
        if error.streamed:
            return Response(framing.frame(told) + framing.end, media_type=framing.media_type)
        response = _json(told, error.status)
        response.background = then
        return response


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


def _json(body: Json | list[Json], status: int = 200) -> Response:
    return Response(json.dumps(body), status, media_type="application/json")
