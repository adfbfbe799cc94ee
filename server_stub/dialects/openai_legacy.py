"""OpenAI's legacy completions: prompts in text or ids, texts as keys, five log-probabilities, no ids back.

Written from openai/openai-openapi ``openapi.yaml`` (``CreateCompletionRequest``, ``CreateCompletionResponse``,
``Model``). Ids are accepted and never returned: a client must find out for itself which tokens an answer's texts are,
and two tokens of one text are one key. ``tests/server_stub/test_texts.py`` holds the shapes and the values.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator

from pydantic import Field

from server_stub import wire
from server_stub.ask import Ask, Row, Scoring
from server_stub.bodies import Prompts, SamplingFields, each, parse
from server_stub.exchange import Answer, Exchange, Family
from server_stub.served import Served
from server_stub.wire import Json

# Completions in texts, as OpenAI's legacy route has them and others took over: choices, echo, arrays, streams.
#
# Written from openai/openai-openapi ``openapi.yaml`` (``CreateCompletionRequest``, ``CreateCompletionResponse``). What
# a family says differently overrides one of the three methods that say so. vLLM's own route tells so much more that it
# stands alone.


class CompletionsReply(Exchange):
    """One choice for every prompt."""

    def __init__(self, asked: SamplingFields, asks: tuple[Ask, ...], request_id: str, served: Served) -> None:
        """Take the request and what it wants computed."""
        self.asks, self.request_id, self.streams = asks, request_id, asked.stream
        self.served, self.tells_usage = served, asked.tells_usage
        self.offsets = [0] * len(asks)

    @abstractmethod
    def echoed(self, ask: Ask) -> int:
        """Return how many of the prompt's last tokens are told again."""

    @abstractmethod
    def logprobs(self, rows: list[Row | None], ids: list[int], offset: int) -> Json | None:
        """Return what is told of some tokens; ``offset`` is where their text begins."""

    def more(self, answer: Answer, ids: list[int], *, first: bool) -> Json:  # noqa: ARG002
        """Return what a choice says besides."""
        return {}

    def whole(self, answers: list[Answer]) -> Json:
        """Return every choice, and the usage of all."""
        choices = []
        for answer in answers:
            ids, rows = self._echo(answer)
            told = self._choice(answer, [*ids, *answer.written], [*rows, *answer.rows], answer.finish)
            text = self.served.text(ids) + answer.text
            choices.append(told | {"text": text} | self.more(answer, answer.written, first=True))
        return self.envelope(choices) | {"usage": wire.usage(answers[0].charge)}

    def opening(self, answer: Answer) -> Iterator[Json]:
        """Yield the echo."""
        ids, rows = self._echo(answer)
        if ids:
            told = self._choice(answer, ids, rows, answer.finish) | {"text": self.served.text(ids)}
            yield self._event(told | self.more(answer, [], first=True))

    def chunk(self, answer: Answer) -> Json:
        """Return the last token's text."""
        step, echoes = answer.steps[-1], self.echoed(answer.ask) > 0
        told = self._choice(answer, [step.token], [step.row], step.finish) | {"text": step.text}
        return self._event(told | self.more(answer, [step.token], first=len(answer.steps) == 1 and not echoes))

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        """Yield the usage, where it was asked for."""
        if self.tells_usage:
            yield self.envelope([]) | {"usage": wire.usage(answers[0].charge)}

    def envelope(self, choices: list[Json]) -> Json:
        """Return the object around the choices."""
        head = {"id": f"cmpl-{self.request_id}", "object": "text_completion", "created": int(time.time())}
        return head | {"model": self.served.name, "choices": choices}

    def _event(self, choice: Json) -> Json:
        return self.envelope([choice]) | ({"usage": None} if self.tells_usage else {})

    def _echo(self, answer: Answer) -> tuple[list[int], list[Row | None]]:
        start = len(answer.ask.ids) - self.echoed(answer.ask)
        return list(answer.ask.ids[start:]), answer.echoed[start:]

    def _choice(self, answer: Answer, ids: list[int], rows: list[Row | None], finish: str | None) -> Json:
        offset = self.offsets[answer.index]
        self.offsets[answer.index] += self.served.width(ids)
        return {"index": answer.index, "logprobs": self.logprobs(rows, ids, offset), "finish_reason": finish}


MAX_LOGPROBS = 5


class CreateCompletionRequest(SamplingFields):
    """The fields that are implemented."""

    prompt: Prompts
    temperature: float = Field(1.0, ge=0, le=2)
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
        asked = parse(CreateCompletionRequest, raw)
        self._served.check_model(asked.model)
        return _Exchange(asked, request_id, self._served)


class _Exchange(CompletionsReply):
    def __init__(self, asked: CreateCompletionRequest, request_id: str, served: Served) -> None:
        self._asked = asked
        self._k = asked.logprobs if served.logprobs else None
        scoring = Scoring() if asked.echo and self._k is not None else None
        prompts = [served.encode(prompt) for prompt in each(asked.prompt)]
        for ids in prompts:
            served.check_room(ids, asked.max_tokens)
        super().__init__(asked, tuple(asked.ask(ids, scoring=scoring) for ids in prompts), request_id, served)

    def echoed(self, ask: Ask) -> int:
        return len(ask.ids) if self._asked.echo else 0

    def logprobs(self, rows: list[Row | None], ids: list[int], offset: int) -> Json | None:
        if self._k is None:
            return None
        return wire.logprobs(rows, ids, self._k, self.served.texts(rows, ids), as_ids=False, offset=offset)


def models(served: Served) -> Json:
    """Return OpenAI's list of models: a name, and nothing of its limits."""
    return {
        "object": "list",
        "data": [{"id": served.name, "object": "model", "created": 0, "owned_by": "server_stub"}],
    }


def family(served: Served) -> Family:
    """Return the routes."""
    return Family((Completions(served),), {("GET", "/v1/models"): lambda _: models(served)})
