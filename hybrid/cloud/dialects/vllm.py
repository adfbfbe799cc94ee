"""vLLM's ``/v1/completions``: token ids in, rows by id out, the draft scored as part of the prompt.

The server scores a prompt in one request, reads no prefix cache for it, and gives 20 log-probabilities a token unless
``--max-logprobs`` allows more. Shapes: ``vllm/entrypoints/openai/completion/protocol.py`` and ``vllm/logprobs.py`` of
0.33. Seen running: 0.32, with the V1 and the V2 model runner. Traps:

- ``prompt_logprobs`` gives every position of the prompt its top k *and* the actual token (``rank`` above k when it is
  not among them); position 0 is null. There is no start offset: the rows of the whole prefix come along (12 MB after
  8,000 tokens from ``server_stub``). They are left unread (``CompletionsScoreReply``).
- The row after the prompt is the generated token's ``logprobs.top_logprobs``. With ``return_tokens_as_token_ids`` its
  keys are ``token_id:N``; otherwise two ids with one text would collapse. It holds up to k + 1 entries.
- -inf comes as -9999: not a probability but "not listed".
- Sampling defaults come from the server's generation config, so every parameter is sent.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from msgspec import Raw

from hybrid.cloud.dialects.dialect import (
    ContinuationRequest,
    DialectSpec,
    Json,
    OpenAi,
    Post,
    ScoreFlow,
    TokenizeRoute,
    biases,
    drawn,
)
from hybrid.cloud.dialects.reading import (
    NO_LIST,
    NO_ROW,
    NO_ROWS,
    Written,
    choice_of,
    guarded,
    id_list,
    number,
    one_token,
    read_tokens,
    read_usage,
    row_of,
)
from hybrid.cloud.port import Capabilities, ScoreQuestion, Scores, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import Ids, Message

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"


class _ScoredChoice(TypedDict, total=False):
    prompt_logprobs: list[Raw] | None
    logprobs: Any
    token_ids: Any
    text: Any


class CompletionsScoreReply(TypedDict, total=False):
    """What is wanted of the reply to a check: each row of the prompt stays as it came until it is due."""

    choices: list[_ScoredChoice]
    usage: Any
    error: Any


@dataclass(frozen=True)
class Vllm(OpenAi):
    """The dialect of ``/v1/completions``."""

    can: Capabilities = Capabilities(dialect="vllm", keeps_cache=False)

    def _score(self, question: ScoreQuestion) -> ScoreFlow:
        """One request: the rows of the prompt, and one token for the row after it."""
        body = score_body(question, self.setup.model, self.setup.salt)
        return read_scores(question, (yield Post(COMPLETIONS, body, CompletionsScoreReply)))

    def _write(self, question: WriteQuestion) -> ContinuationRequest | None:
        body = write_body(question, self.setup.model, self.setup.salt)
        return self._continuation(COMPLETIONS, body, partial(read_choice, top_k=question.top_k))


# SGLang's is the same.
TOKENIZE_ROUTE: TokenizeRoute = (
    "/tokenize",
    lambda model, text: {"model": model, "prompt": text, "add_special_tokens": False},
)


def chat_route(model: str, turns: Sequence[Message]) -> Generator[tuple[str, Json], Any, Ids]:
    """Ask the tokenizer for a conversation: it writes it as the chat route does (``TokenizeChatRequest``)."""
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    return read_tokens((yield "/tokenize", {"model": model, "messages": messages, "add_generation_prompt": True}))


SPEC = DialectSpec("vllm", Vllm, ("/version", None), "version", TOKENIZE_ROUTE, chat_route)


def score_body(question: ScoreQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for the rows of a draft. One token is generated because no fewer can be asked for; its row comes free."""
    body = _body(model, question.prefix + question.span, 1, question.top_k, salt)
    if question.span:
        body["prompt_logprobs"] = question.top_k
    return body | {"temperature": 0.0}


def write_body(question: WriteQuestion, model: str, salt: str | None) -> dict[str, Any]:
    """Ask for a continuation."""
    body = _body(model, question.prefix, question.limit, question.top_k, salt) | drawn(question.sampling)
    if question.ban:
        body["logit_bias"] = biases(question.ban)
    return body


def _body(model: str, prompt: Ids, max_tokens: int, top_k: int, salt: str | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    body |= {"logprobs": top_k} if top_k else {}
    return body | ({"cache_salt": salt} if salt else {})


@guarded
def read_scores(question: ScoreQuestion, reply: Json) -> Scores:
    """Read the rows that were due. Raises BadReply for fewer, null or impossible ones, MissingCapability for none."""
    choice = choice_of(reply)
    rows: list[TopK] = []
    pieces: dict[int, str] = {}
    if question.span:
        for token, entry in zip(question.span, due_rows(question, choice.get("prompt_logprobs")), strict=True):
            rows.append(ranked_row(token, entry, question.top_k, {}))
            pieces |= {int(i): e["decoded_token"] for i, e in entry.items() if isinstance(e.get("decoded_token"), str)}
    if question.after:
        logprobs = choice.get("logprobs")
        rows += _generated_rows(one_token(_ids(choice)), logprobs, question.top_k)
    return Scores(tuple(rows), read_usage(reply), pieces)


def due_rows(question: ScoreQuestion, listed: object, *, from_cache: bool = False) -> list[Any]:
    """Return the prompt's rows that are due; the others stay unread.

    ``from_cache``: those of the tokens that were read from the cache, and the one after them, are missing.
    """
    prompt = len(question.prefix) + len(question.span)
    if listed is None:
        msg = "the endpoint answered without prompt_logprobs: it cannot score a draft; --policy cloud only writes"
        raise MissingCapability(msg)
    if not isinstance(listed, list) or not (len(question.span) if from_cache else prompt - 1) < len(listed) <= prompt:
        given = len(listed) if isinstance(listed, list) else "no"
        msg = f"the endpoint gave {given} rows for a prompt of {prompt} tokens"
        raise BadReply(msg)
    return [json.loads(bytes(e)) if isinstance(e, Raw) else e for e in listed[-len(question.span) :]]


def ranked_row(token: int, entry: object, top_k: int, named: Mapping[int, float]) -> TopK:
    """Build a row from entries that tell their rank: the k likeliest, the actual token, and those asked for by name."""
    if not isinstance(entry, dict) or str(token) not in entry:
        raise BadReply(NO_ROW)
    try:
        ranked = {int(i): (int(e["rank"]), number(e["logprob"])) for i, e in entry.items()}
    except (KeyError, TypeError, ValueError) as error:
        msg = "the endpoint gave a row without ranks and log-probabilities"
        raise BadReply(msg) from error
    top = {i: logprob for i, (rank, logprob) in ranked.items() if 1 <= rank <= top_k}
    return TopK.from_lists(top, (token, ranked[token][1]), named)


def read_choice(choice: Json, top_k: int) -> Written:
    """Read the tokens of a continuation, with their rows if they were asked for."""
    ids = _ids(choice)
    rows = _generated_rows(ids, choice.get("logprobs"), top_k) if ids and top_k else [None] * len(ids)
    return ids, rows, str(choice.get("text") or "")


def _generated_rows(ids: Ids, logprobs: object, top_k: int) -> list[TopK]:
    tops = logprobs.get("top_logprobs") if isinstance(logprobs, dict) else None
    actual = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(tops, list) or not isinstance(actual, list):
        raise MissingCapability(NO_ROWS)
    if len(tops) != len(ids) or len(actual) != len(ids):
        msg = f"the endpoint gave {len(tops)} rows for {len(ids)} tokens"
        raise BadReply(msg)
    rows = []
    for token, logprob, top in zip(ids, actual, tops, strict=True):
        if not isinstance(top, dict) or not top:
            raise BadReply(NO_LIST)
        if not all(key.startswith("token_id:") for key in top):
            msg = "the endpoint names tokens by text where ids were asked for"
            raise MissingCapability(msg)
        listed = {int(key.removeprefix("token_id:")): number(value) for key, value in top.items()}
        rows.append(row_of(listed, token, number(logprob), top_k, None))
    return rows


def _ids(choice: Json) -> Ids:
    ids = choice.get("token_ids")
    if ids is None and choice.get("text"):
        msg = "the endpoint does not return token ids (return_token_ids): its text cannot be aligned with ours"
        raise MissingCapability(msg)
    return id_list([] if ids is None else ids)
