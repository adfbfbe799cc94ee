"""SGLang: native ``/generate``, and what it tells of itself and its model.

Written from sgl-project/sglang ``python/sglang/srt``: ``managers/io_struct.py`` (``GenerateReqInput``),
``sampling/sampling_params.py``, ``managers/tokenizer_manager.py`` (``_handle_batch_output``,
``detokenize_top_logprobs_tokens``), ``managers/scheduler.py`` (where rows start) and ``entrypoints/http_server.py``.
``tests/server_stub/test_sglang.py`` holds the shapes and the values.

Held against the replies of SGLang 0.5.23's own server on a CPU, without its kernels.

Habits that a client trips over. The entry of the token at ``logprob_start_len`` is null: it would need the scores of
the position before it. Rows of the prompt are raw; those of written tokens are told after bias and temperature
(``SGLANG_RETURN_ORIGINAL_LOGPROB`` is off by default). A top list never holds the drawn token beside the k likeliest. A
stream repeats all text, ids and rows so far with every event (``incremental_streaming_output`` is off by default), and
is refused inside: status 200, one event. An id of the prompt that is none, a list longer than the vocabulary and a
start below -1 end the server without an answer.

With ``max_new_tokens`` 0 nothing is written, and ``output_top_logprobs`` holds the row after the prompt all the same
(``managers/tp_worker.py``: ``compute_logprobs_only``; seen on 0.5.23).
"""

from __future__ import annotations

import math
import time

from pydantic import Field

from server_stub.ask import Ask, Row, Scoring
from server_stub.bodies import Body, parse
from server_stub.exchange import Answer, Exchange, Family, detail
from server_stub.served import Served
from server_stub.wire import Json, Killed, WireError, refusing

Entry = tuple[float | None, int, str | None]

# ``temperature`` below this is greedy (sampling_params.py: _SAMPLING_EPS).
GREEDY_BELOW = 1e-6
DEFAULT_NEW_TOKENS = 128


class SamplingParams(Body):
    """The fields of ``SamplingParams`` that are implemented."""

    max_new_tokens: int = Field(DEFAULT_NEW_TOKENS, ge=0)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    sampling_seed: int | None = None
    logit_bias: dict[int, float] = Field(default_factory=dict)


class GenerateReqInput(Body):
    """The fields that are implemented, for one prompt."""

    rid: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = Field(default_factory=SamplingParams)
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = Field(0, ge=0)
    token_ids_logprob: list[int] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    cache_salt: str | None = None


class _Tokenize(Body):
    prompt: str | list[str]
    add_special_tokens: bool = True


def sglang_error(error: WireError) -> Json:
    """Return an error as ``_create_error_response`` shapes it, or ``serve_generate_request`` inside a stream."""
    told: Json = {"message": error.message}
    if error.streamed:
        told |= {"type": "invalid_request_error", "code": error.status, "retryable": False}
    return {"error": told}


class Generate:
    """The route."""

    path = "/generate"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = parse(GenerateReqInput, raw)
        prompt = asked.input_ids if asked.text is None else asked.text
        with refusing(streams=asked.stream):
            if prompt is None:
                raise WireError(400, "Either text, input_ids or input_embeds should be provided.")
            if prompt == []:
                raise WireError(400, "input_ids cannot be empty.")
            return _Exchange(asked, self._served.tokenize(prompt), asked.rid or request_id, self._served)


class _Exchange(Exchange):
    def __init__(self, asked: GenerateReqInput, ids: tuple[int, ...], request_id: str, served: Served) -> None:
        self._asked, self._served, self.request_id = asked, served, request_id
        self._tells = asked.return_logprob and served.logprobs
        self.asks = (self._ask(ids),)
        self.streams = asked.stream

    def _ask(self, ids: tuple[int, ...]) -> Ask:
        asked, drawn = self._asked, self._asked.sampling_params
        start = len(ids) if asked.logprob_start_len == -1 or not self._tells else asked.logprob_start_len
        limit, watched = self._new_tokens(len(ids)), tuple(asked.token_ids_logprob or ())
        self._check(ids, start, watched)
        self._start = start
        rows = (watched,) * max(0, len(ids) - 1 - start)
        # Where nothing is written, the row after the prompt is told all the same.
        unwritten = limit == 0 and self._tells
        return Ask(
            ids,
            max_tokens=1 if unwritten else limit,
            temperature=drawn.temperature if drawn.temperature >= GREEDY_BELOW else 0.0,
            top_p=drawn.top_p,
            top_k=drawn.top_k,
            min_p=min(drawn.min_p, 1 - 1e-9),
            seed=drawn.sampling_seed,
            stops=(drawn.stop,) if isinstance(drawn.stop, str) else tuple(drawn.stop or ()),
            logit_bias=drawn.logit_bias,
            salt=asked.cache_salt or None,
            scoring=Scoring(start, asked.top_logprobs_num, rows, max_cached=start) if start < len(ids) else None,
            num_top=asked.top_logprobs_num,
            watched=watched,
            processed_rows=True,
            ignores_end=drawn.ignore_eos,
            unwritten=unwritten,
        )

    def _check(self, ids: tuple[int, ...], start: int, watched: tuple[int, ...]) -> None:
        """Raise WireError for what SGLang's front refuses, and Killed for what it lets through to its scheduler."""
        size = self._served.vocabulary.num_tokens
        for token in watched:
            if not 0 <= token < size:
                message = f"token_ids_logprob contains out-of-vocabulary token id {token}; valid range is [0, {size})."
                raise WireError(400, message)
        if start > len(ids):
            message = (
                f"req.logprob_start_len={start} is higher than the number of input tokens "
                f"len(req.origin_input_ids)={len(ids)}. Please use a smaller logprob_start_len."
            )
            raise WireError(400, message)
        if not all(0 <= token < size for token in ids):
            raise Killed("the prompt holds an id that is none")
        if self._tells and self._asked.top_logprobs_num > size:
            raise Killed("more log-probabilities were asked for than there are tokens")
        if start < 0:
            raise Killed("rows were asked for from before the prompt")

    def _new_tokens(self, num_prompt: int) -> int:
        room, drawn = self._served.num_context, self._asked.sampling_params
        if not 0 < num_prompt < room:
            message = f"The input ({num_prompt} tokens) is longer than the model's context length ({room} tokens)."
            raise WireError(400, message)
        if "max_new_tokens" not in drawn.model_fields_set:
            return min(DEFAULT_NEW_TOKENS, room - num_prompt)
        if num_prompt + drawn.max_new_tokens > room:
            message = (
                f"Requested token count exceeds the model's maximum context length of {room} tokens. You requested a "
                f"total of {num_prompt + drawn.max_new_tokens} tokens: {num_prompt} tokens from the input messages and "
                f"{drawn.max_new_tokens} tokens for the completion. Please reduce the number of tokens in the input "
                "messages or the completion to fit within the limit."
            )
            raise WireError(400, message)
        return drawn.max_new_tokens

    def whole(self, answers: list[Answer]) -> Json:
        return self._told(answers[0])

    def chunk(self, answer: Answer) -> Json:
        return self._told(answer)

    def _told(self, answer: Answer) -> Json:
        cached = answer.charge.cached_tokens
        meta: Json = {
            "id": self.request_id,
            "finish_reason": _finish(answer),
            "prompt_tokens": answer.charge.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": answer.charge.completion_tokens,
            "cached_tokens": cached,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "dp_rank": None,
        }
        if answer.finish is not None:
            written = 0 if answer.ask.unwritten else len(answer.steps)
            meta["weight_versions"] = [{"version": "default", "start": 0, "end": written}]
        if self._tells:
            meta |= self._logprobs(answer)
        text, ids = ("", []) if answer.ask.unwritten else (answer.text, answer.written)
        return {"text": text, "output_ids": ids, "meta_info": meta}

    def _logprobs(self, answer: Answer) -> Json:
        asked, ids = self._asked, list(answer.ask.ids[self._start :])
        sides = {"input": (ids, answer.echoed[self._start :]), "output": (answer.written, answer.rows)}
        shown: Json = {}
        for side, (tokens, rows) in sides.items():
            pairs = zip(tokens, rows, strict=True) if side == "input" or not answer.ask.unwritten else ()
            shown[f"{side}_token_logprobs"] = [self._entry(t, None if r is None else r.actual(t)[0]) for t, r in pairs]
            if side == "output":
                shown["output_token_logprobs_length"] = len(shown["output_token_logprobs"])
            if asked.top_logprobs_num:
                shown[f"{side}_top_logprobs"] = [self._top(row) for row in rows]
            if asked.token_ids_logprob:
                shown[f"{side}_token_ids_logprobs"] = [self._watched(row) for row in rows]
        return shown

    def _top(self, row: Row | None) -> list[Entry] | None:
        return None if row is None else [self._entry(i, lp) for i, lp in row.top[: self._asked.top_logprobs_num]]

    def _watched(self, row: Row | None) -> list[Entry] | None:
        return None if row is None else [self._entry(i, lp) for i, lp in row.watched]

    def _entry(self, token: int, logprob: float | None) -> Entry:
        text = self._served.text((token,)) if self._asked.return_text_in_logprobs else None
        # orjson, which SGLang answers with, writes an infinite number as null.
        return (None if logprob is None or math.isinf(logprob) else logprob), token, text


def _finish(answer: Answer) -> Json | None:
    if answer.finish is None:
        return None
    if answer.ask.unwritten:
        return {"type": "length", "length": 0}
    if answer.finish == "length":
        return {"type": "length", "length": len(answer.steps)}
    last = answer.steps[-1]
    return {"type": "stop", "matched": last.token if last.stopped_by is None else last.stopped_by}


def family(served: Served) -> Family:
    """Return SGLang's routes."""

    def models(_: bytes) -> Json:
        model = {"id": served.name, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
        more = {"root": served.name, "parent": None, "max_model_len": served.num_context}
        return {"object": "list", "data": [model | more]}

    def model_info(_: bytes) -> Json:
        return {
            "model_path": served.name,
            "tokenizer_path": served.name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
        }

    def server_info(_: bytes) -> Json:
        return {
            "model_path": served.name,
            "served_model_name": served.name,
            "context_length": served.num_context,
            "incremental_streaming_output": False,
            "internal_states": [],
            "version": "0.5.23",
        }

    def tokenize(raw: bytes) -> Json:
        asked = parse(_Tokenize, raw)
        texts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        ids = [list(served.tokenize(text, special=asked.add_special_tokens)) for text in texts]
        alone = isinstance(asked.prompt, str)
        told = {"tokens": ids[0], "count": len(ids[0])} if alone else {"tokens": ids, "count": [*map(len, ids)]}
        return told | {"max_model_len": served.num_context}

    facts = {
        ("POST", "/tokenize"): tokenize,
        ("POST", "/v1/tokenize"): tokenize,
        ("GET", "/v1/models"): models,
        ("GET", "/get_model_info"): model_info,
        ("GET", "/model_info"): model_info,
        ("GET", "/get_server_info"): server_info,
        ("GET", "/server_info"): server_info,
    }
    return Family((Generate(served),), facts, refusal=sglang_error, unrouted=detail, block_size=served.block_size or 1)
