"""OpenAI's chat completions: whole turns in, text out; the first tokens' alternatives, and nothing of the prompt.

Written from openai/openai-openapi ``openapi.yaml`` (``CreateChatCompletionRequest``, ``CreateChatCompletionResponse``,
``CreateChatCompletionStreamResponse``, ``ChatCompletionTokenLogprob``). The turns are rendered with the served model's
own template. ``tests/server_stub/test_openai_chat.py`` holds the shapes and the values.

Habits that a client trips over. There are no ids, no echo, and a last turn of the assistant is not gone on with. The
drawn token's log-probability is -9999.0 where it is not among the 20 likeliest. With ``--no-logprobs`` asking for them
is an error, as Groq's documents say of theirs (console.groq.com/docs/openai).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from hybrid.types import Message
from server_stub import wire
from server_stub.bodies import Body, SamplingFields, parse
from server_stub.completion import Step
from server_stub.dialects.openai_legacy import models
from server_stub.exchange import Answer, Exchange, Family
from server_stub.served import Served
from server_stub.wire import Json, WireError, number

# Beyond so many a token counts as very unlikely, and no more may be asked for.
MAX_LOGPROBS = 20


class Part(Body):
    """A part of a turn; only text is read."""

    type: Literal["text"]
    text: str


class Turn(Body):
    """Who said what."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part] = ""

    @property
    def message(self) -> Message:
        """The turn as the template knows it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return Message("system" if self.role == "developer" else self.role, text)


class CreateChatCompletionRequest(SamplingFields):
    """The fields that are implemented."""

    messages: list[Turn] = Field(min_length=1)
    temperature: float = Field(1.0, ge=0, le=2)
    max_tokens: int = Field(0, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class ChatCompletions:
    """The route."""

    path = "/v1/chat/completions"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = parse(CreateChatCompletionRequest, raw)
        self._served.check_model(asked.model)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise WireError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        if asked.logprobs and not self._served.logprobs:
            raise WireError(400, "logprobs is not supported with this model.", param="logprobs")
        return _Exchange(asked, request_id, self._served)


class _Exchange(Exchange):
    def __init__(self, asked: CreateChatCompletionRequest, request_id: str, served: Served) -> None:
        self._asked, self._served, self.request_id, self.streams = asked, served, request_id, asked.stream
        ids = served.render([turn.message for turn in asked.messages])
        # Without a limit as much is written as there is room for.
        limit = asked.max_completion_tokens or asked.max_tokens or max(1, served.num_context - len(ids))
        served.check_room(ids, limit)
        self.asks = (asked.ask(ids, max_tokens=limit, num_top=MAX_LOGPROBS),)

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": answer.finish}
        told = self._envelope("chat.completion", [choice | {"logprobs": self._logprobs(answer.steps)}])
        return told | {"usage": wire.usage(answer.charge)}

    def opening(self, answer: Answer) -> Iterator[Json]:  # noqa: ARG002
        yield self._delta({"role": "assistant", "content": "", "refusal": None}, [], None)

    def chunk(self, answer: Answer) -> Json:
        step = answer.steps[-1]
        return self._delta({"content": step.text}, [step], None)

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        yield self._delta({}, [], answers[0].finish)
        if self._asked.tells_usage:
            yield self._envelope("chat.completion.chunk", []) | {"usage": wire.usage(answers[0].charge)}

    def _delta(self, delta: Json, steps: list[Step], finish: str | None) -> Json:
        logprobs = self._logprobs(steps) if steps else None
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        told = self._envelope("chat.completion.chunk", [choice])
        return told | ({"usage": None} if self._asked.tells_usage else {})

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        head = {"id": f"chatcmpl-{self.request_id}", "object": kind, "created": int(time.time())}
        return head | {"model": self._served.name, "choices": choices}

    def _logprobs(self, steps: list[Step]) -> Json | None:
        """Return the entries of what is shown; the end token is not."""
        if not self._asked.logprobs:
            return None
        shown = [step for step in steps if step.token not in self._served.vocabulary.end_ids]
        return {"content": [self._entry(step) for step in shown], "refusal": None}

    def _entry(self, step: Step) -> Json:
        best = () if step.row is None else step.row.top[:MAX_LOGPROBS]
        told = self._token(step.token, dict(best).get(step.token, wire.LOWEST))
        return told | {"top_logprobs": [self._token(*pair) for pair in best[: self._asked.top_logprobs or 0]]}

    def _token(self, token: int, logprob: float) -> Json:
        raw = self._served.vocabulary.piece(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": number(logprob), "bytes": list(raw)}


def family(served: Served) -> Family:
    """Return the routes."""
    return Family((ChatCompletions(served),), {("GET", "/v1/models"): lambda _: models(served)})
