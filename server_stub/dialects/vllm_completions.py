"""vLLM's ``/v1/completions``: prompts in text or ids, rows of prompt and answer, streams.

Written from vLLM 0.33's protocol (``vllm/entrypoints/openai/completion/protocol.py`` and ``serving.py`` beside it), and
held against the replies of vLLM 0.32's own server. ``tests/server_stub/test_vllm_completions.py`` holds the shapes,
``test_server.py`` the values, ``test_vllm_refusals.py`` what is refused.

Habits that a client trips over. What the engine finds wrong (too long a list, an id that is none) is told inside a
stream whose status is 200. More tokens than there is room for are cut to the room. An echo comes with the first written
token in one event, without its text where ids are returned; one of no new tokens is charged one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import Field

from server_stub import wire
from server_stub.ask import Row, Scoring
from server_stub.bodies import ExtendedSamplingFields, parse
from server_stub.completion import Charge, Step
from server_stub.exchange import Answer, Exchange
from server_stub.served import Served
from server_stub.wire import Json, WireError, refusing

# What both of vLLM's generating routes say alike: refusals and usage.
#
# Written from vllm-project/vllm ``vllm/exceptions.py``, ``vllm/sampling_params.py``, ``v1/engine/input_processor.py``
# and ``entrypoints/serve/engine/protocol.py`` (``UsageInfo``), and held against the replies of vLLM 0.32's own server
# (``tests/server_stub/test_vllm_refusals.py``).


def invalid(message: str, parameter: str, value: object = None) -> WireError:
    """Return a refusal as ``VLLMValidationError`` words it."""
    more = "" if value is None else f", value={value}"
    return WireError(400, f"{message} (parameter={parameter}{more})", param=parameter)


def check_counts(logprobs: int | None, prompt_logprobs: int | None, most: int) -> None:
    """Raise WireError where more log-probabilities are asked for than the server gives."""
    for what, name, count in (("sample", "logprobs", logprobs), ("prompt", "prompt_logprobs", prompt_logprobs)):
        if count is not None and count > most:
            message = f"Requested {what} logprobs of {count}, which is greater than max allowed: {most}"
            raise invalid(message, name, count)


def check_ids(served: Served, ids: Iterable[int], bias: Mapping[int, float] | None) -> None:
    """Raise WireError for ids of a prompt or a bias that are no token's."""
    size = served.vocabulary.num_tokens
    if unknown := [token for token in bias or () if not 0 <= token < size]:
        message = f"token_id(s) {unknown} in logit_bias contain out-of-vocab token ids. Vocabulary size: {size}"
        raise invalid(message, "logit_bias", unknown)
    if (highest := max(ids, default=0)) >= size:
        raise WireError(400, f"Token id {highest} is out of vocabulary")


def vllm_usage(charge: Charge, served: Served, *, streamed: bool) -> Json:
    """Return what was charged: whole with every key of the schema, in a stream without those that are null.

    Nothing is said of the cache unless ``--enable-prompt-tokens-details`` was given.
    """
    told = wire.usage(charge)
    details = told.pop("prompt_tokens_details")
    if streamed:
        return told | {"prompt_tokens_details": details} if served.prompt_tokens_details else told
    details |= {"created_cache_tokens": None, "multimodal_tokens": None}
    told["prompt_tokens_details"] = details if served.prompt_tokens_details else None
    return told | {"completion_tokens_details": None}


# The release and a digest of its settings, in vLLM's own.
FINGERPRINT = "server_stub"


class CompletionRequest(ExtendedSamplingFields):
    """The fields that are implemented."""

    prompt: str | list[Annotated[int, Field(ge=0)]]
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = Field(None, min_length=1)

    @property
    def only_echoes(self) -> bool:
        """Whether nothing is to be written. vLLM's engine writes a token all the same: charged, and not shown."""
        return self.echo and self.max_tokens == 0

    @property
    def scores(self) -> int | None:
        """How many log-probabilities to give for each position of the prompt; None: none."""
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


def read_request(raw: bytes, max_logprobs: int) -> CompletionRequest:
    """Read a body. Raises WireError for what vLLM refuses."""
    request = parse(CompletionRequest, raw)
    if request.stream and request.prompt_logprobs:
        message = "`prompt_logprobs` are not available when `stream=True`."
        raise invalid(message, "prompt_logprobs")
    if request.max_tokens == 0 and not request.only_echoes:
        raise too_few(0)
    if request.prompt == "":
        message = "Either prompt or prompt_embeds must be provided and non-empty."
        raise invalid(message, "prompt")
    if not request.prompt:
        raise WireError(400, "You must pass at least one prompt")
    with refusing(streams=request.stream):
        check_counts(request.logprobs, request.prompt_logprobs, max_logprobs)
    return request


def too_few(max_tokens: int) -> WireError:
    """Return the refusal of an answer of no tokens."""
    return invalid(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)


def room(num_prompt: int, max_tokens: int, num_context: int) -> int:
    """Return how many tokens may be written: as many as fit. Raises WireError where none does, or none ever could."""
    if num_prompt > num_context:
        message = (
            f"This model's maximum context length is {num_context} tokens. However, your prompt contains {num_prompt} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt."
        )
        raise invalid(message, "input_tokens", num_prompt)
    if max_tokens > num_context:
        message = f"max_tokens={max_tokens} cannot be greater than max_model_len={num_context}."
        message += " Please request fewer output tokens."
        raise invalid(message, "max_tokens", max_tokens)
    if num_prompt == num_context:
        raise too_few(0)
    return min(max_tokens, num_context - num_prompt)


class Completions:
    """The route."""

    path = "/v1/completions"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = read_request(raw, self._served.max_logprobs)
        self._served.check_model(asked.model)
        if not self._served.logprobs:
            asked = asked.model_copy(update={"logprobs": None, "prompt_logprobs": None})
        return _Exchange(asked, request_id, self._served)


class _Exchange(Exchange):
    def __init__(self, asked: CompletionRequest, request_id: str, served: Served) -> None:
        self._asked, self._served, self.request_id = asked, served, request_id
        self._ids = served.tokenize(asked.prompt, special=asked.add_special_tokens)
        limit = room(len(self._ids), asked.max_tokens or 1, served.num_context)
        with refusing(streams=asked.stream):
            check_ids(served, self._ids, asked.logit_bias)
        scoring = None if asked.scores is None else Scoring(keeps_rows=served.scoring_keeps_cache)
        self.asks = (asked.ask(self._ids, max_tokens=limit, salt=asked.cache_salt, scoring=scoring),)
        self.streams = asked.stream
        self._offset, self._first = 0, True

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        told = self._choice(answer, answer.text, answer.steps)
        told |= {"prompt_logprobs": self._prompt_logprobs(answer), "routed_experts": None}
        used = {"usage": vllm_usage(answer.charge, self._served, streamed=False), "system_fingerprint": FINGERPRINT}
        unused = dict.fromkeys(("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"))
        return self._envelope([told]) | used | unused

    def chunk(self, answer: Answer) -> Json:
        step = answer.steps[-1]
        event = self._envelope([self._choice(answer, step.text, [step])])
        self._first = False
        return event if step.finish is None or self._asked.tells_usage else event | {"system_fingerprint": FINGERPRINT}

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        if self._asked.tells_usage:
            told = {"usage": vllm_usage(answers[0].charge, self._served, streamed=True)}
            yield self._envelope([]) | told | {"system_fingerprint": FINGERPRINT}

    def _envelope(self, choices: list[Json]) -> Json:
        head = {"id": f"cmpl-{self.request_id}", "object": "text_completion", "created": int(time.time())}
        return head | {"model": self._served.name, "choices": choices}

    def _choice(self, answer: Answer, text: str, steps: list[Step]) -> Json:
        """Return one choice, whole or a part of it; the first part begins with the prompt where it is echoed."""
        asked, written = self._asked, [step.token for step in steps]
        ids, rows = written, [step.row for step in steps]
        if asked.echo and self._first:
            if asked.only_echoes:
                text, ids, rows = "", [], []
            text = text if asked.return_token_ids else self._served.text(self._ids) + text
            ids, rows = [*self._ids, *ids], [*answer.echoed, *rows]
        return {
            "index": 0,
            "text": text,
            "logprobs": self._logprobs(rows, ids),
            "finish_reason": steps[-1].finish if steps else answer.finish,
            "stop_reason": steps[-1].stopped_by if steps else None,
            "prompt_token_ids": list(self._ids) if asked.return_token_ids and self._first else None,
            "token_ids": written if asked.return_token_ids else None,
        }

    def _logprobs(self, rows: list[Row | None], ids: list[int]) -> Json | None:
        asked = self._asked
        if asked.logprobs is None:
            return None
        text, as_ids = self._served.texts(rows, ids), asked.return_tokens_as_token_ids
        told = wire.logprobs(rows, ids, asked.logprobs, text, as_ids=as_ids, offset=self._offset)
        self._offset += sum(map(len, told["tokens"]))
        return told

    def _prompt_logprobs(self, answer: Answer) -> list[Json | None] | None:
        k = self._asked.scores
        if k is None:
            return None
        text = self._served.texts(answer.prompt_rows, self._ids)
        pairs = zip(answer.prompt_rows, self._ids, strict=True)
        return [None if row is None else wire.prompt_row(row, k, token, text) for row, token in pairs]
