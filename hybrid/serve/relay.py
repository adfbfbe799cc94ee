"""Requests that go whole to a chat route of the cloud, since no hybrid can honour them.

Only the body goes up, with the upstream's name of its model: no header of a caller does. Only the body, its content
type and the request's id come down. Events pass as they came, but for the one with the usage: it is always asked for,
and told only to those who asked. What becomes of money is in ``run.relaying``; here errors become statuses.

Statuses of the upstream keep their class: what its caller can mend is 4xx, and 5xx asks for another try. A key of ours
that it turned down is 403, not 401: it is not the caller's. To an upstream without a chat route nothing can be relayed:
its 404 says nothing of a route here, so it is a 400 that names the field.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from hybrid.cloud.relay_bounds import UnboundedField
from hybrid.errors import CloudError, CloudRefusal, HybridError, NotAnApi
from hybrid.run import AsyncClient
from hybrid.run.open_request import RequestDenied
from hybrid.run.relaying import RelayedReply, Relayer, encoded
from hybrid.run.retrying import EndpointHealth
from hybrid.serve.app_state import AnswerObserver, AppState
from hybrid.serve.body import listed
from hybrid.serve.errors import SERVER, ApiError, api_error, internal_error, reason_of
from hybrid.serve.reducer import LEFT
from hybrid.serve.replies import SOURCES, ChatFormat, as_usd
from hybrid.serve.requests import GenerationRequest
from hybrid.serve.response import ResponseWriter, pinged
from hybrid.types import NO_USAGE

MODE = {"x-hybrid-mode": "relay"}
NO_RETRY = {"x-should-retry": "false"}
# What a caller is told where the upstream has answered with one of these.
OF_STATUS = {
    401: (403, "permission_error", "upstream_access_denied"),
    402: (402, "insufficient_quota", "upstream_payment_required"),
    403: (403, "permission_error", "upstream_access_denied"),
    429: (429, "rate_limit_error", "upstream_rate_limited"),
}
# No such route, not that way, not built.
NO_ROUTE = frozenset({404, 405, 501})
_encode = msgspec.json.Encoder().encode


async def relay_reply(
    state: AppState, writer: ResponseWriter, fields: dict[str, Any], generation: GenerationRequest
) -> None:
    """Send the reply of the cloud's chat route. Raises ApiError where nothing may be sent to it."""
    settings = state.backend.settings
    offline = generation.choices.get("offline") or settings.offline
    local = (generation.choices.get("policy") or settings.policy) == "local"
    if offline or local:
        why = "offline nothing is sent" if offline else "the local model alone answers"
        said = f"{listed(generation.relay)}: only a cloud model can honour it, and {why}"
        raise ApiError(400, said, code="unsupported_parameter", param=generation.relay[0])
    client = await state.backend.client()
    watch, why = state.watch.begin(ChatFormat(generation.model).request_id, generation.model), LEFT
    reason = None
    try:
        await _relay(client, fields, generation, writer, watch)
        why = ""
    except (HybridError, RequestDenied) as error:
        why, reason = str(error), reason_of(error)
        told = relay_error(error, generation, client.relayer)
        if not writer.begun:
            raise told from error
        await writer.end(b"data: " + _encode(told.body) + b"\n\n")  # no mark of an end: it is none
    except Exception as error:
        why = reason = reason_of(error)
        if writer.begun:
            await writer.end(b"data: " + _encode(internal_error().body) + b"\n\n")
        raise
    finally:
        watch.end(why or None, reason)


async def _relay(
    client: AsyncClient,
    fields: dict[str, Any],
    generation: GenerationRequest,
    writer: ResponseWriter,
    watch: AnswerObserver,
) -> None:
    """Send the body, and hand its reply on."""
    async with client.relay(fields, watch.observe, generation.choices.get("conversation")) as reply:
        headers = MODE | {"content-type": reply.content_type or "application/json"}
        headers |= {"x-request-id": reply.request_id} if reply.request_id else {}
        if not reply.streams:
            await _hand_on(reply, headers, writer)
            return
        await writer.begin(200, {**headers, "cache-control": "no-cache"})
        async with pinged(writer, headers), aclosing(reply.events()) as events:
            async for event in events:
                if event.usage is None:
                    await writer.write(_event(event.data))
                elif generation.include_usage:
                    await writer.write(_event(encoded(_with_cost(event.usage, reply))))
                elif event.usage.get("choices"):
                    await writer.write(_event(encoded({**event.usage, "usage": None})))
                await asyncio.sleep(0)  # a part of a flood holds hundreds: others have their turn between two
        await writer.end(b"data: [DONE]\n\n")


async def _hand_on(reply: RelayedReply, headers: Mapping[str, str], writer: ResponseWriter) -> None:
    """Hand a whole body on, with what it cost in its usage."""
    found = await reply.whole()
    body = found.data if found.usage is None else encoded(_with_cost(found.usage, reply))
    own = {} if reply.nanousd is None else {"x-hybrid-cost": f"{as_usd(reply.nanousd):.9f}"}
    own |= {} if reply.degraded is None else {"x-hybrid-degraded": reply.degraded}
    await writer.whole(200, {**headers, **own}, body)


def _with_cost(found: dict[str, Any], reply: RelayedReply) -> dict[str, Any]:
    """Return an object that holds a usage, with what is ours in it."""
    cost = as_usd(reply.nanousd)
    charged = reply.charged or NO_USAGE
    own = {"local_tokens": 0, "cloud_tokens": charged.completion_tokens, "checks": 0, "cloud_only_cost": cost}
    cloud = {name: getattr(charged, name) for name in SOURCES}
    usage = {**found["usage"], "cost": cost, "hybrid": {**own, "bytes_sent": reply.bytes_sent, "cloud": cloud}}
    notes = {"notes": list(reply.notes)} if reply.notes else {}
    return {**found, "usage": usage, "hybrid": {"mode": "relay", "cost": cost, "degraded": reply.degraded, **notes}}


def _event(data: bytes) -> bytes:
    """Return an event that holds some data; each of its lines stands alone."""
    return b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"


def relay_error(error: HybridError | RequestDenied, generation: GenerationRequest, relayer: Relayer | None) -> ApiError:
    """Return what a caller is told of a relay that failed."""
    said = str(error)
    match error:
        case RequestDenied(by_cap=True):
            return ApiError(402, said, "insufficient_quota", "budget_exceeded", headers=NO_RETRY)
        case RequestDenied():
            return ApiError(503, said, SERVER, "ledger_unusable", headers=NO_RETRY)
        case UnboundedField(name=name):
            return ApiError(400, said, code="unsupported_parameter", param=name)
        case CloudError() if relayer is None or _has_no_route(error):
            where = "" if relayer is None else "the cloud has no chat route to relay it to ([relay] names another): "
            said = f"{listed(generation.relay)}: {where}{said}"
            return ApiError(400, said, code="unsupported_parameter", param=generation.relay[0])
        case CloudError() if relayer is not None:
            return _of_upstream(error, relayer.health)
        case _:
            return api_error(error)


def _has_no_route(error: CloudError) -> bool:
    """Whether the upstream has turned down the route itself; of a model that it does not have it would say so."""
    detail = str(error).partition(f" answered {error.status}")[2].lower()
    return error.status in NO_ROUTE and (isinstance(error, NotAnApi) or "model" not in detail)


def _of_upstream(error: CloudError, health: EndpointHealth) -> ApiError:
    """Return what a failure or a refusal of the upstream is to a caller."""
    said, status = str(error), error.status
    left_s = error.retry_after_s if health.breaker.lets_pass else health.breaker.remaining_s
    headers = {} if left_s is None else {"retry-after": str(max(1, round(left_s)))}
    if status is None:
        if isinstance(error, CloudRefusal):
            return api_error(error)
        return ApiError(502 if health.breaker.lets_pass else 503, said, SERVER, "upstream_failed", headers=headers)
    if status >= 500 or status < 200:
        known = status if 500 <= status <= 599 else 502  # HTTP has no others, and a server can send none
        return ApiError(known, said, SERVER, "upstream_failed", headers=headers)
    status, kind, code = OF_STATUS.get(status, (max(400, status), "invalid_request_error", "upstream_refused"))
    return ApiError(status, said, kind, code, headers=NO_RETRY if status == 402 else headers)
