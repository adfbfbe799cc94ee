"""Requests that go whole to a chat route of the cloud, since no hybrid can honour them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hybrid.serve.api_error import ApiError
from hybrid.serve.asked import Asked
from hybrid.serve.body import listed
from hybrid.serve.served import Served


async def relay_reply(served: Served, request: Request, fields: dict[str, Any], asked: Asked) -> Response:
    """Refuse: no route for it is known."""
    del served, request, fields
    said = f"{listed(asked.relay)}: neither model here can honour it"
    raise ApiError(400, said, code="unsupported_parameter", param=asked.relay[0])
