"""vLLM's ``/v1/completions`` (0.33): pure functions from a question to a body and from a body to an answer.

Where the shapes come from: ``vllm/entrypoints/openai/completion/protocol.py`` and ``vllm/logprobs.py``. What bites:

- ``prompt_logprobs`` gives every position of the prompt its top k *and* the actual token (``rank`` above k when it is
  not among them); position 0 is null. There is no start offset, so the rows of the whole prefix come along
  (12 MB after 8,000 tokens from ``server_stub``). They are left unread (``ScoreReply``).
- The row after the prompt is the generated token's ``logprobs.top_logprobs``; with ``return_tokens_as_token_ids`` its
  keys are ``token_id:N``, otherwise two ids with one text would collapse. It holds up to k + 1 entries.
- -inf comes as -9999: not a probability but "not listed".
- Sampling defaults come from the server's generation config, so every parameter is sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar

from msgspec import Raw

from hybrid.cloud.port import Ability, Chunk, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability, one_line
from hybrid.prob import NotADistribution, TopK
from hybrid.types import CloudUsage, Ids

Json: TypeAlias = Mapping[str, Any]
P = ParamSpec("P")
R = TypeVar("R")
COMPLETIONS, MODELS, TOKENIZE = "/v1/completions", "/v1/models", "/tokenize"
ABILITIES: frozenset[Ability] = frozenset(("score", "write"))
# What OpenAI-style servers take as "never": a token at this bias is not drawn.
BAN = -100.0


class _ScoredChoice(TypedDict, total=False):
    prompt_logprobs: list[Raw] | None
    logprobs: Any
    token_ids: Any
    text: Any


class ScoreReply(TypedDict, total=False):
    """What is wanted of the reply to a check: each row of the prompt stays as it came until it is due."""

    choices: list[_ScoredChoice]
    usage: Any


def _guarded(read: Callable[P, R]) -> Callable[P, R]:
    """Make a reading function total: a reply of any other shape is BadReply, whatever it trips over."""

    @wraps(read)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except NotADistribution as error:
            msg = f"the endpoint gave {error}"
            raise BadReply(msg) from error
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            msg = "the endpoint's reply is not shaped as the protocol says"
            raise BadReply(msg) from error

    return guarded


def score_body(question: ScoreQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for the rows of a draft. One token is generated because no fewer can be asked for; its row comes free."""
    body = _body(model, question.prefix + question.span, 1, question.top_k, salt)
    if question.span:
        body["prompt_logprobs"] = question.top_k
    return body | {"temperature": 0.0}


def write_body(question: WriteQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for a streamed continuation whose last chunk reports the usage."""
    sampling = question.sampling
    body = _body(model, question.prefix, question.limit, question.top_k, salt) | {
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "seed": sampling.seed,
    }
    if question.ban:
        body["logit_bias"] = {str(token): BAN for token in sorted(question.ban)}
    return body


def _body(model: str, prompt: Ids, max_tokens: int, top_k: int, salt: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "logprobs": top_k,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return body | ({"cache_salt": salt} if salt else {})


@_guarded
def read_scores(question: ScoreQuestion, reply: Json) -> Scores:
    """Read the rows that were due. Raises BadReply for fewer, null or impossible ones, MissingCapability for none."""
    choice = _choice(reply)
    prompt = len(question.prefix) + len(question.span)
    rows: list[TopK] = []
    pieces: dict[int, str] = {}
    if question.span:
        listed = choice.get("prompt_logprobs")
        if listed is None:
            msg = "the endpoint answered without prompt_logprobs: it cannot score a draft; --policy cloud only writes"
            raise MissingCapability(msg)
        if not isinstance(listed, list) or len(listed) != prompt:
            count = len(listed) if isinstance(listed, list) else "no"
            msg = f"the endpoint gave {count} rows for a prompt of {prompt} tokens"
            raise BadReply(msg)
        due = [json.loads(bytes(e)) if isinstance(e, Raw) else e for e in listed[len(question.prefix) :]]
        for token, entry in zip(question.span, due, strict=True):
            rows.append(_prompt_row(token, entry, question.top_k))
            pieces |= {int(i): e["decoded_token"] for i, e in entry.items() if isinstance(e.get("decoded_token"), str)}
    if question.after:
        logprobs = choice.get("logprobs")
        rows += _generated_rows(_ids(choice, 1), logprobs, question.top_k)
    return Scores(tuple(rows), read_usage(reply), pieces)


def _prompt_row(token: int, entry: object, top_k: int) -> TopK:
    if not isinstance(entry, dict) or str(token) not in entry:
        msg = "the endpoint gave no row (null) for a drafted token"
        raise BadReply(msg)
    try:
        ranked = {int(i): (int(e["rank"]), _number(e["logprob"])) for i, e in entry.items()}
    except (KeyError, TypeError, ValueError) as error:
        msg = "the endpoint gave a row without ranks and log-probabilities"
        raise BadReply(msg) from error
    top = {i: logprob for i, (rank, logprob) in ranked.items() if 1 <= rank <= top_k}
    return TopK.from_lists(top, (token, ranked[token][1]))


@_guarded
def read_chunk(reply: Json, top_k: int) -> Chunk:
    """Read one server-sent event of a continuation: tokens with their rows, or the closing usage."""
    if reply.get("error"):
        msg = f"the endpoint broke off: {_error_text(reply)}"
        raise BadReply(msg)
    usage = read_usage(reply) if reply.get("usage") else None
    if not reply.get("choices"):
        return Chunk(usage=usage)
    choice = _choice(reply)
    ids = _ids(choice, None)
    rows = _generated_rows(ids, choice.get("logprobs"), top_k) if ids else []
    finish = choice.get("finish_reason")
    if finish not in (None, "stop", "length"):
        msg = f"the endpoint ended with finish_reason {finish!r}"
        raise BadReply(msg)
    return Chunk(ids, tuple(rows), str(choice.get("text") or ""), finish, usage)


def _generated_rows(ids: Ids, logprobs: object, top_k: int) -> list[TopK]:
    tops = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    actual = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(tops, list) or not isinstance(actual, list):
        msg = "the endpoint wrote without log-probabilities: no policy can weigh its tokens"
        raise MissingCapability(msg)
    if len(tops) != len(ids) or len(actual) != len(ids):
        msg = f"the endpoint gave {len(tops)} rows for {len(ids)} tokens"
        raise BadReply(msg)
    return [_generated_row(token, lp, top, top_k) for token, lp, top in zip(ids, actual, tops, strict=True)]


def _generated_row(token: int, logprob: object, top: object, top_k: int) -> TopK:
    if not isinstance(top, dict) or not top:
        msg = "the endpoint gave a token without a top-k list: missing, not certain"
        raise BadReply(msg)
    if not all(key.startswith("token_id:") for key in top):
        msg = "the endpoint names tokens by text where ids were asked for"
        raise MissingCapability(msg)
    listed = {int(key.removeprefix("token_id:")): _number(value) for key, value in top.items()}
    own = _number(logprob)
    if len(listed) > top_k and token in listed:
        del listed[token]  # the appended actual token: it tells nothing about the others
    return TopK.from_lists(listed, (token, own))


def _choice(reply: Json) -> dict[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        msg = "the endpoint's reply has no choices"
        raise BadReply(msg)
    return choices[0]


def _ids(choice: Json, expected: int | None) -> Ids:
    ids = choice.get("token_ids")
    if ids is None and choice.get("text"):
        msg = "the endpoint does not return token ids (return_token_ids): its text cannot be aligned with ours"
        raise MissingCapability(msg)
    if ids is None:
        ids = []
    if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
        msg = "the endpoint's token ids are not a list of numbers"
        raise BadReply(msg)
    if expected is not None and len(ids) != expected:
        msg = f"the endpoint wrote {len(ids)} tokens where {expected} was asked for"
        raise BadReply(msg)
    return tuple(ids)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = "not a number"
        raise TypeError(msg)
    return float(value) if not math.isinf(float(value)) else -math.inf if value < 0 else math.nan


@_guarded
def read_usage(reply: Json) -> CloudUsage:
    """Read what was charged. Raises BadReply where the reply does not say."""
    usage = reply.get("usage")
    try:
        details = usage.get("prompt_tokens_details") or {}  # type: ignore[union-attr]
        read = CloudUsage(
            _count(usage["prompt_tokens"]),  # type: ignore[index]
            _count(usage["completion_tokens"]),  # type: ignore[index]
            _count(details.get("cached_tokens") or 0),
        )
    except (AttributeError, KeyError, TypeError) as error:
        msg = "the endpoint's reply does not say what it charged (usage)"
        raise BadReply(msg) from error
    if read.cached_tokens > read.prompt_tokens:
        msg = "the endpoint says that more prompt tokens were cached than there were"
        raise BadReply(msg)
    return read


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = "not a count"
        raise TypeError(msg)
    return value


@_guarded
def read_models(reply: Json) -> dict[str, int | None]:
    """Read the served models and their context lengths (None: not told)."""
    try:
        return {
            str(model["id"]): None if model.get("max_model_len") is None else _count(model["max_model_len"])
            for model in reply["data"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        msg = "the endpoint's model list cannot be read"
        raise BadReply(msg) from error


@_guarded
def read_tokens(reply: Json) -> Sequence[int]:
    """Read the ids of a tokenised text."""
    tokens = reply.get("tokens")
    if not isinstance(tokens, list):
        msg = "the endpoint's tokenizer gave no tokens"
        raise BadReply(msg)
    return tokens


def _error_text(reply: Json) -> str:
    error = reply.get("error")
    return one_line(error.get("message", error) if isinstance(error, dict) else error)
