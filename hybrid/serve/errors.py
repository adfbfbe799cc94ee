"""What a caller is told of each error of this package: the one place where the tree of errors becomes statuses.

openai-python asks again after 408, 409, 429 and 5xx; so a queue that is full is a 503 with a time, and what nothing
will change is a 4xx.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse

from hybrid.errors import (
    CloudFailure,
    CloudRefusal,
    ContextOverflow,
    EngineError,
    HybridError,
    LedgerError,
    QueueError,
    UsageError,
)
from hybrid.run.open_request import RequestDenied
from hybrid.serve.reducer import REASONS

# An error in OpenAI's shape: its four keys, and a status by which the clients decide whether to ask again.
#
# https://github.com/openai/openai-openapi (Error). openai-python asks again after 408, 409, 429 and 5xx, unless
# ``x-should-retry: false`` stands in the answer.


@dataclass(eq=False)  # not frozen: Python sets an exception's traceback
class ApiError(Exception):
    """What a caller is told: ``message`` is a sentence, ``param`` the field at fault."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The object that stands in an answer, or in an event of a stream that has begun."""
        param = None if self.param is None else _sayable(self.param)
        return {"error": {"message": _sayable(self.message), "type": self.kind, "param": param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the whole answer."""
        return JSONResponse(self.body, self.status, dict(self.headers))


def _sayable(text: str) -> str:
    """Return text as UTF-8 can hold it: JSON can name half of a surrogate pair, and a sentence may quote it."""
    return text.encode("utf-8", "replace").decode()


# Seconds after which a caller that found the queue full may ask again.
AGAIN_S = 2
SERVER, CALLER = "server_error", "invalid_request_error"
_FINAL = {"x-should-retry": "false"}
# The first kind that an error is of tells.
_TOLD: Mapping[type[HybridError], tuple[int, str, str | None, Mapping[str, str]]] = {
    ContextOverflow: (400, CALLER, "context_length_exceeded", {}),
    LedgerError: (503, SERVER, "ledger_unusable", _FINAL),
    UsageError: (400, CALLER, None, {}),
    QueueError: (503, SERVER, "overloaded", {"retry-after": str(AGAIN_S)}),
    EngineError: (503, SERVER, "local_model_unusable", _FINAL),
    CloudRefusal: (400, CALLER, "unsupported_by_endpoint", {}),
    CloudFailure: (502, SERVER, "cloud_failed", {}),
}

_REASONS: Mapping[type[BaseException], str] = {
    ContextOverflow: "the conversation does not fit into the model's context",
    LedgerError: "the ledger that holds the caps cannot be used",
    UsageError: "a choice of the request cannot be honoured",
    QueueError: "too many questions waited for a context",
    EngineError: "the local model cannot be used",
    RequestDenied: "no money is left for it",
    CloudRefusal: REASONS["refused"],
    CloudFailure: REASONS["unreachable"],
}


def api_error(error: HybridError) -> ApiError:
    """Return what a caller is told of an error."""
    for kind, (status, what, code, headers) in _TOLD.items():
        if isinstance(error, kind):
            param = "messages" if kind is ContextOverflow else None
            return ApiError(status, str(error), what, code, param, headers)
    return internal_error()


def reason_of(error: BaseException) -> str:
    """Return in plain words why an answer failed, and nothing that a caller, a model or an endpoint has said."""
    return next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), "the endpoint itself failed")


def tell(said: str) -> None:
    """Tell standard error; where it is closed or cannot be written, nobody: what failed is still what is answered."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(f"hybrid: {said}", file=sys.stderr, flush=True)  # noqa: T201


def internal_error(error: BaseException | None = None) -> ApiError:
    """Return what a caller is told of a fault of ours: that there is one, and nothing of the question.

    Standard error is told where it happened. What an exception quotes may be a prompt, so that is left out.
    """
    if error is not None:
        places = traceback.extract_tb(error.__traceback__)[-4:]
        where = ", ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places)
        tell(f"a request failed with {type(error).__name__} ({where})")
    return ApiError(500, "the endpoint failed; its standard error says how", SERVER, "internal_error")
