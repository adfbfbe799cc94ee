"""vLLM's ``/inference/v1/generate``: token ids in, token ids out, and chosen candidates scored along the prompt.

Written from vllm-project/vllm ``vllm/entrypoints/scale_out/token_in_token_out/protocol.py`` and ``serving.py``,
``vllm/sampling_params.py`` and ``docs/training/prompt_token_id_logprobs.md``. ``prompt_logprob_token_ids`` is that
document's: one list of candidates per scored row (the release before it took one list for all rows).
``tests/server_stub/test_vllm_tokens.py`` holds the shapes and the values.

Habits that a client trips over, all seen on vLLM 0.32's own server. The route is closed without ``--enable-scale-out``.
Scores are asked for along exactly ``prompt_len - 1 - prompt_logprob_start`` rows, which only the V2 model runner does.
With ``skip_reading_prefix_cache: false`` V2 tells only the rows it computed, a null and ``prompt_len - cached - 1`` of
them, and no scores of candidates where the cache was read past the first of theirs. V1 tells rows that nobody
computed, and dies of them. The top list of a written token begins with that token and has k entries in all: where the
token is not among the k likeliest, the k-th is missing.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from server_stub import wire
from server_stub.ask import NO_TOKEN, Ids, Scoring
from server_stub.bodies import Body, ExtendedSamplingFields, StreamOptions, parse
from server_stub.completion import Step
from server_stub.dialects.openai_chat import Turn
from server_stub.dialects.vllm_completions import Completions, check_counts, check_ids, invalid, vllm_usage
from server_stub.exchange import Answer, Exchange, Family, detail
from server_stub.served import Served
from server_stub.wire import Json, Killed, WireError, number, refusing

DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."

Id = Annotated[int, Field(ge=0)]
Candidate = Annotated[int, Field(ge=NO_TOKEN)]


class SamplingParams(ExtendedSamplingFields):
    """The fields of ``SamplingParams`` that are implemented."""

    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    prompt_logprob_token_ids: list[list[Candidate]] | None = None
    prompt_logprob_start: int | None = Field(None, ge=0)
    skip_reading_prefix_cache: bool | None = None
    ignore_eos: bool = False

    @property
    def scores(self) -> bool:
        """Whether rows of the prompt are wanted."""
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None


class GenerateRequest(Body):
    """The fields that are implemented."""

    request_id: str | None = None
    token_ids: list[Id] = Field(min_length=1)
    sampling_params: SamplingParams
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(None, min_length=1)
    return_token_ids: bool = False


class Generate:
    """The route."""

    path = "/inference/v1/generate"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        if not self._served.scale_out:
            raise WireError(403, DISABLED, "PermissionDeniedError")
        asked = parse(GenerateRequest, raw)
        self._served.check_model(asked.model)
        if asked.stream and asked.sampling_params.prompt_logprob_token_ids is not None:
            raise WireError(400, "prompt_logprob_token_ids are not available when stream=true.")
        with refusing(streams=asked.stream):
            self._check(asked.sampling_params, len(asked.token_ids))
            check_ids(self._served, asked.token_ids, asked.sampling_params.logit_bias)
            self._check_room(len(asked.token_ids))
        return _Exchange(asked, asked.request_id or request_id, self._served)

    def _check_room(self, num_prompt: int) -> None:
        most, plus, more = self._served.num_context, "", ""
        if num_prompt < most:
            return
        if num_prompt == most:
            plus = " plus the number of requested output tokens (at least 1)"
            more = " (prompt + requested output tokens)"
        message = (
            f"The decoder prompt (length {num_prompt}){plus} is longer than the maximum model length of {most}. "
            f"Make sure that `max_model_len` is no smaller than the number of text tokens{more}."
        )
        raise WireError(400, message)

    def _check(self, drawn: SamplingParams, num_prompt: int) -> None:
        """Refuse what vLLM refuses, in its order and its words (``sampling_params.py``, ``input_processor.py``)."""
        rows, start = drawn.prompt_logprob_token_ids, drawn.prompt_logprob_start
        check_counts(drawn.logprobs, drawn.prompt_logprobs, self._served.max_logprobs)
        if rows is not None:
            self._check_candidates(rows, max(0, num_prompt - 1 - (start or 0)))
        elif start is not None:
            message = "prompt_logprob_start requires prompt_logprob_token_ids."
            raise invalid(message, "prompt_logprob_start", start)

    def _check_candidates(self, rows: list[list[int]], expected: int) -> None:
        name, most, size = "prompt_logprob_token_ids", self._served.max_logprobs, self._served.vocabulary.num_tokens
        found, widest = [token for row in rows for token in row], max(map(len, rows), default=0)
        if not widest:
            message = f"{name} must be a non-empty integer array of shape [num_rows, num_ids]."
            raise invalid(message, name, "list")
        if widest > most:
            message = f"Requested {widest} token ids per row in {name}, which is greater than max allowed: {most}."
            message += f" Set max_logprobs (--max-logprobs) to at least {widest}."
            raise invalid(message, name, widest)
        if max(found) >= size:
            message = f"{name} contain out-of-vocab token ids (-1 pads a row). Vocabulary size: {size}"
            raise invalid(message, name, [min(found), max(found)])
        if not self._served.v2_runner:
            message = f"{name} requires the V2 model runner (VLLM_USE_V2_MODEL_RUNNER=1)."
            raise invalid(message, name)
        if len(rows) != expected:
            message = f"{name} has {len(rows)} rows, but the prompt has {expected} scored rows"
            message += " (prompt_len - 1 - prompt_logprob_start)."
            raise invalid(message, name, len(rows))


class _Exchange(Exchange):
    def __init__(self, asked: GenerateRequest, request_id: str, served: Served) -> None:
        self._asked, self._served = asked, served
        rows = dict.fromkeys(("logprobs", "prompt_logprobs", "prompt_logprob_token_ids"))
        self._drawn = asked.sampling_params.model_copy(update={} if served.logprobs else rows)
        self.request_id, self.streams = request_id, asked.stream
        ids, limit = tuple(asked.token_ids), served.num_context - len(asked.token_ids)
        if "max_tokens" in self._drawn.model_fields_set:
            limit = min(limit, self._drawn.max_tokens)
        scoring = self._scoring(len(ids)) if self._drawn.scores else None
        more = {"salt": asked.cache_salt, "scoring": scoring, "ignores_end": self._drawn.ignore_eos}
        self.asks = (self._drawn.ask(ids, max_tokens=limit, **more),)
        self._first = True

    def _scoring(self, num_prompt: int) -> Scoring:
        """Skip the prefix cache unless told otherwise: vLLM keeps no scores of cached rows."""
        drawn = self._drawn
        max_cached = num_prompt if drawn.skip_reading_prefix_cache is False else 0
        if drawn.prompt_logprob_token_ids is None:
            return Scoring(max_cached=max_cached)
        width = max(map(len, drawn.prompt_logprob_token_ids))
        rows: tuple[Ids, ...] = tuple(
            (*row, *[NO_TOKEN] * (width - len(row))) for row in drawn.prompt_logprob_token_ids
        )
        start = drawn.prompt_logprob_start or 0
        if drawn.prompt_logprobs is None:
            return Scoring(start, watched=rows, max_cached=max_cached)
        return Scoring(watched=((),) * start + rows, max_cached=max_cached)

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        return {
            "request_id": f"generate-tokens-{self.request_id}",
            "model": self._served.name,
            "created": int(time.time()),
            "usage": vllm_usage(answer.charge, self._served, streamed=False),
            "prompt_logprobs": self._prompt_logprobs(answer),
            "prompt_token_id_logprobs": self._candidates(answer),
            "prompt_token_ids": list(answer.ask.ids) if self._asked.return_token_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [self._choice(answer, answer.steps)],
        }

    def chunk(self, answer: Answer) -> Json:
        told: Json = {
            "request_id": f"generate-tokens-{self.request_id}",
            "output_mode": "tokens",
            "choices": [self._choice(answer, answer.steps[-1:])],
        }
        if self._asked.return_token_ids and self._first:
            told["prompt_token_ids"] = list(answer.ask.ids)
        self._first = False
        return told | {"usage": None}

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        if self._asked.stream_options and self._asked.stream_options.include_usage:
            told = {"request_id": f"generate-tokens-{self.request_id}", "output_mode": "tokens", "choices": []}
            yield told | {"usage": vllm_usage(answers[0].charge, self._served, streamed=True)}

    def _choice(self, answer: Answer, steps: list[Step]) -> Json:
        version = {"version": "default", "start": 0, "end": len(answer.steps)}
        told: Json = {
            "index": 0,
            "logprobs": None,
            "finish_reason": answer.finish,
            "stop_reason": answer.steps[-1].stopped_by if answer.steps else None,
            "token_ids": [s.token for s in steps],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None if answer.finish is None else [version],
        }
        if self._drawn.logprobs is not None:
            told["logprobs"] = {"content": [self._content(step, self._drawn.logprobs) for step in steps]}
        return told

    @staticmethod
    def _content(step: Step, k: int) -> Json:
        if step.row is None:  # serving.py: the sentinel for a token without an entry
            return {"token_id": step.token, "logprob": wire.LOWEST, "rank": None, "top_logprobs": []}
        logprob, rank = step.row.actual(step.token)
        best = [(i, lp, n) for n, (i, lp) in enumerate(step.row.top[:k], start=1) if i != step.token]
        listed = [(step.token, logprob, rank), *best][: max(k, 1)]
        top = [{"token_id": i, "logprob": number(lp), "rank": n} for i, lp, n in listed]
        return top[0] | {"top_logprobs": top}

    def _prompt_logprobs(self, answer: Answer) -> list[Json | None] | None:
        k = self._drawn.prompt_logprobs
        if k is None:
            return None
        if answer.num_cached and not self._served.v2_runner:
            raise Killed("rows of the prompt were to be told that nobody had computed")
        text = self._served.texts(answer.prompt_rows, answer.ask.ids)
        uncached = slice(answer.num_cached, None)
        pairs = zip(answer.prompt_rows[uncached], answer.ask.ids[uncached], strict=True)
        return [None if row is None else wire.prompt_row(row, k, token, text) for row, token in pairs]

    def _candidates(self, answer: Answer) -> str | None:
        if self._drawn.prompt_logprob_token_ids is None:
            return None
        scored = answer.prompt_rows[(self._drawn.prompt_logprob_start or 0) + 1 :]
        table = [[logprob for _, logprob in row.watched] for row in scored if row is not None]
        if len(table) < len(scored):
            return None
        packed = io.BytesIO()
        np.save(packed, np.array(table, dtype=np.float32))
        return base64.b64encode(packed.getvalue()).decode("ascii")


# vLLM: ``/v1/completions``, ``/inference/v1/generate``, and what it tells of itself.

# The release whose shapes are served.
VERSION = "0.33.0"
# What a GPU's cache has by default; vLLM's CPU build takes 128.
BLOCK_SIZE = 16
LAST_WORDS = WireError(
    500,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
)


class _Tokenize(Body):
    """A text, or a conversation, which the model's template writes (``TokenizeChatRequest``)."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Turn] | None = Field(None, min_length=1)
    add_special_tokens: bool = True


def family(served: Served) -> Family:
    """Return vLLM's routes."""

    def models(_: bytes) -> Json:
        model = {"id": served.name, "object": "model", "created": 0, "owned_by": "vllm", "root": served.name}
        return {"object": "list", "data": [model | {"parent": None, "max_model_len": served.num_context}]}

    def tokenize(raw: bytes) -> Json:
        asked = parse(_Tokenize, raw)
        served.check_model(asked.model)
        if asked.messages is not None:
            ids = served.render([turn.message for turn in asked.messages])
        elif asked.prompt is not None:
            ids = served.encode(asked.prompt, special=asked.add_special_tokens)
        else:
            raise WireError(400, "prompt: Field required", param="prompt")
        return {"count": len(ids), "max_model_len": served.num_context, "tokens": list(ids), "token_strs": None}

    def version(_: bytes) -> Json:
        return {"version": VERSION}

    facts = {("GET", "/v1/models"): models, ("GET", "/version"): version, ("POST", "/tokenize"): tokenize}
    endpoints = (Completions(served), Generate(served))
    block_size = served.block_size or BLOCK_SIZE
    return Family(endpoints, facts, unrouted=detail, block_size=block_size, last_words=LAST_WORDS)
