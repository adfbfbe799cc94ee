"""Together's completions: prompts in text only, and the prompt's own log-probabilities beside the choices.

Written from togethercomputer/openapi ``openapi.yaml`` (``CompletionRequest``, ``CompletionResponse``, ``PromptPart``,
``LogprobsPart``, ``CompletionChunk``, ``ModelInfo``) and docs.together.ai/docs/logprobs. Together tokenizes the text
anew: the ids beside the rows are all a client has to find its own tokens again. Published as one object, and told here
as one object per token, as OpenAI's: ``top_logprobs``. Not published, and chosen here: the entry of a prompt's first
token is null, and 16 tokens are written where no number is asked for. ``tests/server_stub/test_texts.py`` holds the
shapes and the values.
"""

from __future__ import annotations

import time

from pydantic import Field

from server_stub import wire
from server_stub.ask import Row, Scoring
from server_stub.bodies import ExtendedSamplingFields, parse
from server_stub.exchange import Answer, Exchange, Family
from server_stub.served import Served
from server_stub.wire import Json, WireError

MAX_LOGPROBS = 20


class CompletionRequest(ExtendedSamplingFields):
    """The fields that are implemented."""

    prompt: str = Field(min_length=1)
    stop: list[str] | None = None
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class Completions:
    """The route."""

    path = "/v1/completions"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = parse(CompletionRequest, raw)
        if asked.model is None:
            raise WireError(400, "model: Field required", param="model")
        self._served.check_model(asked.model)
        return _Exchange(asked, request_id, self._served)


class _Exchange(Exchange):
    def __init__(self, asked: CompletionRequest, request_id: str, served: Served) -> None:
        self._asked, self._served, self.request_id, self.streams = asked, served, request_id, asked.stream
        self._k = asked.logprobs if served.logprobs else None
        ids = served.encode(asked.prompt)
        served.check_room(ids, asked.max_tokens)
        self.asks = (asked.ask(ids, scoring=Scoring() if asked.echo and self._k is not None else None),)

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        choice = {"text": answer.text, "seed": self._asked.seed, "finish_reason": self._finish(answer), "index": 0}
        prompt = {"text": self._asked.prompt, "logprobs": self._logprobs(answer.echoed, list(answer.ask.ids))}
        return {
            "id": self.request_id,
            "object": "text.completion",
            "created": int(time.time()),
            "model": self._served.name,
            "prompt": [prompt] if self._asked.echo else [],
            "choices": [choice | {"logprobs": self._logprobs(answer.rows, answer.written)}],
            "usage": _usage(answer),
        }

    def chunk(self, answer: Answer) -> Json:
        step = answer.steps[-1]
        logprob = 0.0 if step.row is None else wire.number(step.row.actual(step.token)[0])
        special = step.token in self._served.vocabulary.end_ids
        return {
            "id": self.request_id,
            "object": "completion.chunk",
            "created": int(time.time()),
            "token": {"id": step.token, "text": step.text, "logprob": logprob, "special": special},
            "choices": [{"index": 0, "text": step.text, "delta": {"role": "assistant", "content": step.text}}],
            "usage": _usage(answer) if step.finish else None,
            "finish_reason": self._finish(answer),
        }

    def _finish(self, answer: Answer) -> str | None:
        ended = answer.finish == "stop" and answer.steps[-1].stopped_by is None
        return "eos" if ended else answer.finish

    def _logprobs(self, rows: list[Row | None], ids: list[int]) -> Json | None:
        if self._k is None:
            return None
        text = self._served.texts(rows, ids)
        legacy = wire.logprobs(rows, ids, self._k, text, as_ids=False, offset=0)
        return {key: legacy[key] for key in ("tokens", "token_logprobs", "top_logprobs")} | {"token_ids": ids}


def _usage(answer: Answer) -> Json:
    """Return ``UsageData``, which does not tell what was cached."""
    told = wire.usage(answer.charge)
    return {key: told[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}


def family(served: Served) -> Family:
    """Return the routes."""

    def models(_: bytes) -> list[Json]:
        model = {"id": served.name, "object": "model", "created": 0, "type": "language"}
        return [model | {"context_length": served.num_context}]

    return Family((Completions(served),), {("GET", "/v1/models"): models})
