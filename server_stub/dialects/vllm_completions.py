"""vLLM's ``/v1/completions``: prompts in text or ids, rows of prompt and answer, streams.

Written from vLLM 0.33's protocol (``vllm/entrypoints/openai/completion/protocol.py`` and ``serving.py`` beside it).
``tests/server_stub/test_vllm_completions.py`` holds the shapes, ``test_server.py`` the values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from server_stub import wire
from server_stub.ask import Scoring
from server_stub.bodies import Sampled, parse
from server_stub.exchange import Answer, Exchange
from server_stub.rows import Row
from server_stub.served import Served
from server_stub.wire import Json, WireError


class CompletionRequest(Sampled):
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
    def scores(self) -> int | None:
        """How many log-probabilities to give for each position of the prompt; None: none."""
        return self.logprobs if self.echo and self.prompt_logprobs is None else self.prompt_logprobs


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


def read_request(raw: bytes, max_logprobs: int) -> CompletionRequest:
    """Read a body. Raises WireError for what vLLM refuses."""
    request = parse(CompletionRequest, raw)
    check_counts(request.logprobs, request.prompt_logprobs, max_logprobs)
    if request.stream and request.prompt_logprobs is not None:
        raise WireError(400, "`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
    if request.max_tokens == 0 and not request.echo:
        raise WireError(400, "max_tokens must be at least 1, or 0 with echo.", param="max_tokens")
    if request.prompt in ("", []):
        raise WireError(400, "The prompt is empty.", param="prompt")
    return request


def envelope(request_id: str, model: str, choices: list[Json], used: Json | None) -> Json:
    """Return the object around the choices."""
    body = {
        "id": f"cmpl-{request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
    }
    return body if used is None else body | {"usage": used}


def choice(text: str, finish: str | None, stopped_by: str | None, **more: object) -> Json:
    """Return one choice, whole or as a delta; fields that were not asked for are absent."""
    head: Json = {"index": 0, "text": text, "finish_reason": finish, "stop_reason": stopped_by}
    return head | {name: value for name, value in more.items() if value is not None}


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
        self._ids = served.encode(asked.prompt, special=asked.add_special_tokens)
        served.check_room(self._ids, asked.max_tokens)
        scoring = None if asked.scores is None else Scoring(keeps_rows=served.scoring_keeps_cache)
        self.asks = (asked.ask(self._ids, salt=asked.cache_salt, scoring=scoring),)
        self.streams = asked.stream
        self._offset, self._first = 0, True

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        text, ids, rows = answer.text, answer.written, answer.rows
        if self._asked.echo:
            text, ids = self._served.text(self._ids) + text, [*self._ids, *ids]
            rows = [*answer.echoed, *rows]
        told = choice(
            text,
            answer.finish,
            answer.steps[-1].stopped_by if answer.steps else None,
            logprobs=self._logprobs(rows, ids, 0),
            prompt_logprobs=self._prompt_logprobs(answer),
            token_ids=answer.written if self._asked.return_token_ids else None,
            prompt_token_ids=self._prompt_ids(),
        )
        return envelope(self.request_id, self._served.name, [told], wire.usage(answer.charge))

    def opening(self, answer: Answer) -> Iterator[Json]:
        if not self._asked.echo:
            return
        told = choice(
            self._served.text(self._ids),
            answer.finish,
            None,
            logprobs=self._logprobs(answer.echoed, list(self._ids), 0),
            prompt_token_ids=self._prompt_ids(),
        )
        self._offset, self._first = self._served.width(self._ids), False
        yield envelope(self.request_id, self._served.name, [told], None)

    def chunk(self, answer: Answer) -> Json:
        step = answer.steps[-1]
        told = choice(
            step.text,
            step.finish,
            step.stopped_by,
            logprobs=self._logprobs([step.row], [step.token], self._offset),
            token_ids=[step.token] if self._asked.return_token_ids else None,
            prompt_token_ids=self._prompt_ids() if self._first else None,
        )
        self._offset, self._first = self._offset + self._served.width((step.token,)), False
        return envelope(self.request_id, self._served.name, [told], None)

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        if self._asked.tells_usage:
            yield envelope(self.request_id, self._served.name, [], wire.usage(answers[0].charge))

    def _prompt_ids(self) -> list[int] | None:
        return list(self._ids) if self._asked.return_token_ids else None

    def _logprobs(self, rows: list[Row | None], ids: list[int], offset: int) -> Json | None:
        asked = self._asked
        if asked.logprobs is None:
            return None
        text = self._served.texts(rows, ids)
        return wire.logprobs(rows, ids, asked.logprobs, text, as_ids=asked.return_tokens_as_token_ids, offset=offset)

    def _prompt_logprobs(self, answer: Answer) -> list[Json | None] | None:
        k = self._asked.prompt_logprobs
        if k is None:
            return None
        text = self._served.texts(answer.prompt_rows, self._ids)
        pairs = zip(answer.prompt_rows, self._ids, strict=True)
        return [None if row is None else wire.prompt_row(row, k, token, text) for row, token in pairs]
