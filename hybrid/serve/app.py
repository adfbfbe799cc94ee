"""The routes of the endpoint, and what becomes of errors and of paths that are none."""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from hybrid.errors import HybridError, to_one_line
from hybrid.serve import handler, monitor
from hybrid.serve.app_state import NAMES, AppState, model_card, policy_named
from hybrid.serve.errors import ApiError, api_error, internal_error
from hybrid.serve.guard import Guard

CHAT, COMPLETIONS, MODELS = "/v1/chat/completions", "/v1/completions", "/v1/models"
# What callers look for that is not here, and what is there in its place.
ELSEWHERE = {
    "/v1/responses": f"use {CHAT} (in openai-agents: OpenAIChatCompletionsModel)",
    "/v1/embeddings": "these models write text, and embed none",
    "/v1/fim/completions": f"text is continued, not filled in: use {COMPLETIONS}",
    "/v1/messages": f"use {CHAT}",
    "/v1/audio": "these models read and write text",
    "/v1/images": "these models read and write text",
}
STARTED = int(time.time())


async def models(request: Request) -> Response:
    """List the models; before the weights are loaded, too."""
    longest = _longest(request.app.state.app_state)
    return JSONResponse({"object": "list", "data": [model_card(name, STARTED, longest) for name in NAMES]})


async def model(request: Request) -> Response:
    """Describe one model; a policy with a number is one too."""
    name = request.path_params["name"]
    policy_named(name)
    return JSONResponse(model_card(name, STARTED, _longest(request.app.state.app_state)))


async def health(request: Request) -> Response:
    """Say whether questions are answered at once."""
    ready = request.app.state.app_state.backend.opened is not None
    return JSONResponse({"status": "ok" if ready else "loading"}, 200)


def _longest(state: AppState) -> int | None:
    client = state.backend.opened
    return None if client is None else client.num_context


async def handle_error(request: Request, error: Exception) -> Response:
    """Return what a caller is told of an error."""
    match error:
        case ApiError():
            return error.response()
        case HybridError():
            return api_error(error).response()
        case ClientDisconnect():  # in the midst of its body: nobody hears this, and it is no fault of ours
            return ApiError(400, "the body did not come whole", code="body_incomplete").response()
        case HTTPException(status_code=status) if status in {404, 405}:
            return _no_route(request, error)
        case HTTPException(status_code=status, detail=detail):
            return ApiError(status, str(detail)).response()
        case _:
            return internal_error(error).response()


def _no_route(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    if error.status_code == 405:
        headers = dict(error.headers or {})
        said = f"{request.method} is not for {to_one_line(path)}; {headers.get('Allow', headers.get('allow', ''))} is"
        return ApiError(405, said, code="method_not_allowed", headers=headers).response()
    if not path.startswith("/v1"):
        return PlainTextResponse("There is nothing here: the API is below /v1, and the monitor at /.\n", 404)
    instead = next((said for start, said in ELSEWHERE.items() if path.startswith(start)), None)
    instead = instead or f"there are {CHAT}, {COMPLETIONS} and {MODELS}"
    return ApiError(404, f"there is no {to_one_line(path)} here: {instead}", code="unknown_route").response()


def make_app(state: AppState) -> Guard:
    """Return the whole endpoint as an ASGI application. ``state.watch`` is a ``Monitor``."""
    routes = [
        Route(CHAT, handler.chat, methods=["POST"]),
        Route(COMPLETIONS, handler.completions, methods=["POST"]),
        Route(MODELS, models),
        Route(MODELS + "/{name:path}", model),
        Route("/health", health),
        Route("/metrics", monitor.metrics_page),
        *monitor.ROUTES,
    ]
    handlers = dict.fromkeys((ApiError, HybridError, HTTPException, ClientDisconnect, Exception), handle_error)
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.app_state = state
    return Guard(app, state.options, monitor.PATHS)
