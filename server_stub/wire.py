"""vLLM's ``/v1/completions`` read and written on the server's side: request model, reply shapes, error shape.

Written from vLLM 0.33's protocol (``vllm/entrypoints/openai/completion/protocol.py``), apart from the client's own
reading of it: the wire exists twice, and each side tests the other. Fields this server does not implement are ignored,
as vLLM ignores what it does not know.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from server_stub.rows import Row

# What vLLM sends for a probability of zero, which JSON has no number for.
LOWEST = -9999.0


class WireError(Exception):
    """A request that is answered with an error object."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        """Take the HTTP status and what goes into the object."""
        super().__init__(message)
        self.status, self.message, self.kind, self.param = status, message, kind, param

    def body(self) -> dict[str, Any]:
        """Return the error object; all four keys, always."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


class StreamOptions(BaseModel):
    """What a stream tells besides text."""

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The fields that are implemented."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    prompt: str | list[Annotated[int, Field(ge=0)]]
    max_tokens: int = Field(16, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, lt=1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    logit_bias: dict[int, float] | None = None
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = Field(None, min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, body: object) -> object:
        """As in vLLM, a parameter that is null takes its default."""
        return {k: v for k, v in body.items() if v is not None} if isinstance(body, dict) else body

    @property
    def stops(self) -> list[str]:
        """Stop strings, as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def scores(self) -> int | None:
        """How many log-probabilities to give for each position of the prompt; None: none."""
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


def read_request(raw: bytes, max_logprobs: int) -> CompletionRequest:
    """Read a body. Raises WireError for what vLLM refuses."""
    try:
        request = CompletionRequest.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = ".".join(str(part) for part in first["loc"][:1])
        raise WireError(400, f"{param or 'body'}: {first['msg']}", param=param or None) from None
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(request, name)
        if asked is not None and asked > max_logprobs:
            raise WireError(
                400, f"Requested {name} of {asked}, which is greater than max allowed: {max_logprobs}", param=name
            )
    if request.stream and request.prompt_logprobs is not None:
        raise WireError(400, "`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    if request.max_tokens == 0 and not request.echo:
        raise WireError(400, "max_tokens must be at least 1, or 0 with echo.", param="max_tokens")
    if request.prompt in ("", []):
        raise WireError(400, "The prompt is empty.", param="prompt")
    return request


def number(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(logprob, LOWEST)


def prompt_row(row: Row, k: int, actual: int, text: dict[int, str]) -> dict[str, Any]:
    """Return one position of ``prompt_logprobs``: the top k, and the actual token whatever its rank."""
    ranked = {i: (lp, rank) for rank, (i, lp) in enumerate(row.top[:k], start=1)}
    ranked.setdefault(actual, row.actual(actual))
    return {str(i): {"logprob": number(lp), "rank": rank, "decoded_token": text[i]} for i, (lp, rank) in ranked.items()}


def logprobs(
    rows: list[Row | None], ids: list[int], k: int, text: dict[int, str], *, as_ids: bool, offset: int
) -> dict[str, Any]:
    """Return the legacy log-probability arrays: up to k + 1 entries, the actual token among them."""

    def key(token: int) -> str:
        return f"token_id:{token}" if as_ids else text[token]

    offsets = []
    for token in ids:
        offsets.append(offset)
        offset += len(text[token])
    tops: list[dict[str, float] | None] = []
    for row, token in zip(rows, ids, strict=True):
        if row is None:
            tops.append(None)
            continue
        shown = dict(row.top[:k]) | {token: row.actual(token)[0]}
        tops.append({key(i): number(lp) for i, lp in shown.items()})
    return {
        "tokens": [key(token) for token in ids],
        "token_logprobs": [
            None if row is None else number(row.actual(token)[0]) for row, token in zip(rows, ids, strict=True)
        ],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """Return what was charged."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def envelope(request_id: str, model: str, choices: list[dict[str, Any]], used: dict[str, Any] | None) -> dict[str, Any]:
    """Return the object around the choices."""
    body = {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }
    return body if used is None else body | {"usage": used}


def choice(
    text: str, finish: Literal["stop", "length"] | None, stopped_by: str | None, **more: object
) -> dict[str, Any]:
    """Return one choice, whole or as a delta; fields that were not asked for are absent."""
    head: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish, "stop_reason": stopped_by}
    return head | {name: value for name, value in more.items() if value is not None}
