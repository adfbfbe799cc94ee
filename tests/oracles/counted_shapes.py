"""The JSON of the cloud that counts: what requests may say, what replies look like, what is claimed of their usage.

Written from vLLM's published protocol (``vllm/entrypoints/openai/completion``, releases 0.30 to 0.33, and what a real
0.32 was seen to answer) and from OpenAI's description of chat completions. It must never import ``hybrid`` or
``server_stub``, nor be fitted to what a client can read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from counted_model import Model, Order, Token

CREATED = 1_790_000_000
ABSURD = 10**30


class Refusal(Exception):
    """A request that is turned down before anything is computed or charged.

    ``late``: by the engine, so that a stream has begun by then, with status 200 (seen of a real vLLM 0.32).
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        kind: str = "BadRequestError",
        late: bool = False,
    ):
        super().__init__(message)
        self.status, self.late = status, late
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True)
class Wanted:
    """A request as it was understood. ``k``: how many candidates a written token is told with (None: none)."""

    order: Order
    k: int | None
    prompt_k: int | None
    echo: bool
    only_echo: bool
    as_ids: bool
    with_ids: bool
    stream: bool
    usage_at_end: bool
    usage_always: bool
    salt: str
    per_event: int


def _count(body: Mapping[str, Any], name: str, least: int, default: Any = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"`{name}` must be an integer."
        raise Refusal(msg, name)
    if value < least:
        msg = f"{name} must be at least {least}, got {value}."
        raise Refusal(msg, name)
    return value


def _ids(model: Model, prompt: Any) -> tuple[int, ...]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return tuple(model.tokenize(prompt))
    if not isinstance(prompt, list) or not prompt:
        raise Refusal("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
        raise Refusal("prompt must be one text or one list of ids here", "prompt")
    if unknown := [token for token in prompt if not 0 <= token < model.size]:
        msg = f"Token id {unknown[0]} is out of vocabulary"
        raise Refusal(msg, "prompt", late=True)
    return tuple(prompt)


def _order(model: Model, body: Mapping[str, Any], prompt: tuple[int, ...], max_tokens: int) -> Order:
    if len(prompt) >= model.context:
        msg = (
            f"This model's maximum context length is {model.context} tokens. However, your request has {len(prompt)} "
            "input tokens. Please reduce the length of the input messages."
        )
        raise Refusal(
            msg,
            "input_tokens",
        )
    if body.get("n") not in {None, 1}:
        raise Refusal("n must be 1 here", "n")
    stop = body.get("stop") or ()
    bias = {int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()}
    allowed = body.get("allowed_token_ids")
    for token in [*bias, *(allowed or ())]:
        if not 0 <= token < model.size:
            msg = f"token_id {token} in logit_bias or allowed_token_ids is out of vocabulary"
            raise Refusal(msg, "logit_bias", late=True)

    def number(name: str, default: float) -> float:
        return default if body.get(name) is None else float(body[name])

    return Order(
        prompt,
        max_tokens,
        number("temperature", 1.0),
        int(number("seed", 0)),
        max(0, int(number("top_k", 0))),
        number("top_p", 1.0),
        number("min_p", 0.0),
        (stop,) if isinstance(stop, str) else tuple(stop),
        frozenset(body.get("stop_token_ids") or ()),
        bias,
        None if allowed is None else frozenset(allowed),
        bool(body.get("ignore_eos")),
        int(number("min_tokens", 0)),
    )


def understand(model: Model, body: Mapping[str, Any], max_logprobs: int, per_event: int) -> Wanted:
    """Read a completion request, or refuse it as vLLM does."""
    if body.get("model") not in {None, model.name}:
        msg = f"The model `{body['model']}` does not exist."
        raise Refusal(msg, "model", 404, "NotFoundError")
    stream, options = bool(body.get("stream")), body.get("stream_options") or {}
    if options and not stream:
        raise Refusal("Stream options can only be defined when `stream=True`.", "stream_options")
    echo, k, prompt_k = bool(body.get("echo")), _count(body, "logprobs", -1), _count(body, "prompt_logprobs", -1)
    if stream and prompt_k:
        raise Refusal("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    for name, value in (("logprobs", k), ("prompt_logprobs", prompt_k)):
        asked = model.size if value == -1 else value
        if asked is not None and asked > max_logprobs:
            what = "sample" if name == "logprobs" else "prompt"
            msg = (
                f"Requested {what} logprobs of {asked}, which is greater than max allowed: {max_logprobs} "
                f"(parameter={name}, value={value})"
            )
            raise Refusal(
                msg,
                name,
                late=True,
            )
    only_echo = echo and body.get("max_tokens") == 0
    max_tokens = 1 if only_echo else _count(body, "max_tokens", 1, 16)
    return Wanted(
        _order(model, body, _ids(model, body.get("prompt")), max_tokens),
        k,
        k if echo and prompt_k is None else prompt_k,
        echo,
        only_echo,
        bool(body.get("return_tokens_as_token_ids")),
        bool(body.get("return_token_ids")),
        stream,
        bool(options.get("include_usage")),
        bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        body.get("cache_salt") or "",
        _count(body, "stream_interval", 1, per_event),
    )


def understand_chat(model: Model, body: Mapping[str, Any], per_event: int) -> Wanted:
    """Read a chat request, or refuse it."""
    if body.get("model") not in {None, model.name}:
        msg = f"The model `{body['model']}` does not exist."
        raise Refusal(msg, "model", 404, "invalid_request_error")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("'messages' must be a non-empty array", "messages")
    k = _count(body, "top_logprobs", 0, 0)
    if k and not body.get("logprobs"):
        raise Refusal("top_logprobs needs logprobs", "top_logprobs")
    if k > 20:
        raise Refusal("Invalid value for 'top_logprobs': must be less than or equal to 20.", "top_logprobs")
    options = body.get("stream_options") or {}
    limit = _count(body, "max_completion_tokens", 1) or _count(body, "max_tokens", 1, model.context)
    return Wanted(
        _order(model, body, tuple(model.tokenize(chat_text(messages))), limit),
        k if body.get("logprobs") else None,
        None,
        False,
        False,
        False,
        False,
        bool(body.get("stream")),
        bool(options.get("include_usage")),
        bool(options.get("continuous_usage_stats")),
        "",
        per_event,
    )


def chat_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt of a conversation, in the template of the bundled models."""
    said = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in messages)
    return said + "<|im_start|>assistant\n"


def _best(row: np.ndarray, token: int, k: int) -> list[tuple[int, float, int]]:
    """The token itself, then the k best: ids, float32 logarithms, ranks from 1."""
    ranked = np.argsort(-row, kind="stable")
    places = {int(each): place + 1 for place, each in enumerate(ranked[:k])}
    own = places.get(token) or int((row > row[token]).sum()) + 1
    listed = [(token, own), *((each, rank) for each, rank in places.items() if each != token)]
    return [(each, max(float(np.float32(row[each])), -9999.0), rank) for each, rank in listed]


def prompt_rows(model: Model, ids: Sequence[int], k: int) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: null for the first token, then each token with its k best rivals, by id."""
    rows = model.rows(ids)
    told: list[dict[str, Any] | None] = [None]
    for row, token in zip(rows[:-1], ids[1:], strict=True):
        told.append({
            str(each): {"logprob": value, "rank": rank, "decoded_token": model.piece(each).decode(errors="replace")}
            for each, value, rank in _best(row, token, k)
        })  # fmt: skip
    return told


def legacy_logprobs(model: Model, rows: Sequence[tuple[int, Any]], wanted: Wanted, offset: int) -> dict[str, Any]:
    """The arrays of legacy completions. ``rows``: tokens, each with its row (None: it has none)."""

    def name(token: int) -> str:
        return f"token_id:{token}" if wanted.as_ids else model.piece(token).decode(errors="replace")

    told: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token, row in rows:
        best = None if row is None else _best(row, token, wanted.k or 0)
        told["text_offset"].append(offset)
        told["tokens"].append(name(token))
        told["token_logprobs"].append(best and best[0][1])
        told["top_logprobs"].append(best and {name(each): value for each, value, _ in best})
        offset += len(name(token))
    return told


def chat_logprobs(model: Model, tokens: Sequence[Token], k: int) -> dict[str, Any]:
    """OpenAI's ``logprobs``; an end is no content."""

    def entry(token: int, value: float) -> dict[str, Any]:
        piece = model.piece(token)
        return {"token": piece.decode(errors="replace"), "logprob": value, "bytes": list(piece)}

    content = []
    for token in tokens:
        if token.id not in model.control_ids:
            (_, own, _), *rivals = _best(token.row, token.id, k)
            best = sorted([(token.id, own, 0), *rivals], key=lambda each: -each[1])[:k]
            content.append(entry(token.id, own) | {"top_logprobs": [entry(each, value) for each, value, _ in best]})
    return {"content": content, "refusal": None}


@dataclass(frozen=True)
class Charged:
    """What a request came to so far, as it is known inside. ``hidden_end``: an end that was written and not sent."""

    prompt: int
    cached: int
    completion: int
    max_tokens: int
    preamble: int = 0
    hidden_end: bool = False


def _usage(prompt: Any, completion: Any, total: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion}


def _scaled(change: Any) -> Any:
    return lambda true: _usage(change(true.prompt), change(true.completion), change(true.prompt + true.completion))


def _capped(true: Charged) -> dict[str, Any]:
    completion = min(true.completion, true.max_tokens)
    return _usage(true.prompt, completion, true.prompt + completion)


def _without_end(true: Charged) -> dict[str, Any]:
    completion = true.completion - true.hidden_end
    return _usage(true.prompt, completion, true.prompt + completion)


def _without_preamble(true: Charged) -> dict[str, Any]:
    prompt = true.prompt - true.preamble
    return _usage(prompt, true.completion, prompt + true.completion)


HONEST = _scaled(lambda count: count)
# What each mode claims; a mode that is not listed is honest. None: no usage at all.
CLAIMS = {
    "absent": None,
    "usage-null": lambda _: "null",
    "completion-absent": lambda true: {"prompt_tokens": true.prompt},
    "completion-null": lambda true: _usage(true.prompt, None, None),
    "prompt-absent": lambda true: {"completion_tokens": true.completion},
    "zero": _scaled(lambda _: 0),
    "tenth": _scaled(lambda count: count // 10),
    "ten-times": _scaled(lambda count: 10 * count),
    "absurd": _scaled(lambda _: ABSURD),
    "negative": _scaled(lambda count: -count),
    "fractional": _scaled(lambda count: count + 0.5),
    "as-text": _scaled(str),
    "as-bool": _scaled(bool),
    "end-untold": _without_end,
    "max-tokens-ignored-untold": _capped,
    "preamble-untold": _without_preamble,
}


def claim(mode: str, true: Charged, *, tell_cached: bool) -> dict[str, Any]:
    """The ``usage`` member of a reply, to be merged into it: {} where nothing is said."""
    says = CLAIMS.get(mode, HONEST)
    if says is None:
        return {}
    said = says(true)
    if said == "null":
        return {"usage": None}
    details = {"prompt_tokens_details": {"cached_tokens": true.cached} if tell_cached else None}
    return {"usage": said | details}
