"""An error in OpenAI's shape: its four keys, and a status by which the clients decide whether to ask again.

https://github.com/openai/openai-openapi (Error). openai-python asks again after 408, 409, 429 and 5xx, unless
``x-should-retry: false`` stands in the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse


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
