"""Ollama: ``/api/generate`` line by line, and what it tells of itself.

Written from ollama/ollama ``api/types.go`` (``GenerateRequest``, ``GenerateResponse``, ``Metrics``, ``Logprob``,
``ShowResponse``, ``ListModelResponse``, ``DefaultOptions``), ``server/routes.go`` (``GenerateHandler``),
``server/logprob.go`` and ``llm/llama_server.go``. ``tests/server_stub/test_ollama.py`` holds the shapes and the values.

Habits that a client trips over. It streams unless told not to. There are no ids anywhere but in ``context``, and no
rows of the prompt. A token whose text is not shown yet (half a character, the beginning of a stop string) loses its
log-probability, and so does the end token: entries and ``eval_count`` need not agree. ``prompt_eval_count`` counts the
whole prompt, cached or not. ``bytes`` are those of the text, so of U+FFFD where a token is half a character.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from hybrid.types import Message
from server_stub.ask import Ask
from server_stub.bodies import Body, parse
from server_stub.completion import Step
from server_stub.exchange import LINES, Answer, Exchange, Family
from server_stub.served import Served
from server_stub.wire import Json, WireError, number

VERSION = "0.33.0"
MAX_LOGPROBS = 20


class Options(Body):
    """The fields of ``Options`` that are implemented, with its defaults."""

    num_predict: int = Field(-1, ge=-2)
    temperature: float = Field(0.8, ge=0)
    top_k: int = Field(40, ge=0)
    top_p: float = Field(0.9, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)
    seed: int = -1
    stop: list[str] = Field(default_factory=list)


class GenerateRequest(Body):
    """The fields that are implemented."""

    model: str = ""
    prompt: str = ""
    system: str = ""
    raw: bool = False
    stream: bool = True
    options: Options = Field(default_factory=Options)
    logprobs: bool = False
    top_logprobs: int = 0


class _Show(Body):
    model: str = ""


def ollama_error(error: WireError) -> Json:
    """Return an error as Ollama has it: one sentence."""
    return {"error": error.message}


def _check(served: Served, name: str) -> None:
    """Accept a name with its tag or without."""
    if name.removesuffix(":latest") != served.name:
        raise WireError(404, f"model '{name}' not found", "NotFoundError", "model")


class Generate:
    """The route."""

    path = "/api/generate"

    def __init__(self, served: Served) -> None:
        """Take what is served."""
        self._served = served

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = parse(GenerateRequest, raw)
        if not 0 <= asked.top_logprobs <= MAX_LOGPROBS:
            raise WireError(400, "top_logprobs must be between 0 and 20", param="top_logprobs")
        _check(self._served, asked.model)
        return _Exchange(asked, request_id, self._served)


class _Exchange(Exchange):
    def __init__(self, asked: GenerateRequest, request_id: str, served: Served) -> None:
        self._asked, self._served, self.request_id, self.streams = asked, served, request_id, asked.stream
        self._began = time.monotonic_ns()
        self.asks = (self._ask(),)

    def _ask(self) -> Ask:
        asked, drawn, room = self._asked, self._asked.options, self._served.num_context
        turns = [Message("system", asked.system)] if asked.system else []
        said = [*turns, Message("user", asked.prompt)]
        ids = self._served.encode(asked.prompt) if asked.raw else self._served.render(said)
        if not 0 < len(ids) < room:
            raise WireError(400, "the input length exceeds the context length")
        limit = room - len(ids)
        return Ask(
            ids,
            max_tokens=limit if drawn.num_predict < 0 else min(drawn.num_predict, limit),
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            top_k=drawn.top_k,
            min_p=drawn.min_p,
            seed=None if drawn.seed == -1 else drawn.seed,
            stops=tuple(drawn.stop),
            num_top=asked.top_logprobs,
        )

    def whole(self, answers: list[Answer]) -> Json:
        [answer] = answers
        return self._line(answer.text, answer.steps) | self._done(answer)

    def chunk(self, answer: Answer) -> Json | None:
        step = answer.steps[-1]
        return self._line(step.text, [step]) if step.text else None

    def closing(self, answers: list[Answer]) -> Iterator[Json]:
        yield self._line("", []) | self._done(answers[0])

    def _line(self, text: str, steps: list[Step]) -> Json:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line: Json = {"model": self._asked.model, "created_at": now, "response": text, "done": False}
        shown = [entry for step in steps if step.text and (entry := self._entry(step))]
        return line | ({"logprobs": shown} if shown else {})

    def _done(self, answer: Answer) -> Json:
        took = max(1, time.monotonic_ns() - self._began)
        counts = {
            "done": True,
            "done_reason": answer.finish,
            "total_duration": took,
            "load_duration": 1,
            "prompt_eval_count": answer.charge.prompt_tokens,
            "prompt_eval_duration": 1,
            "eval_count": answer.charge.completion_tokens,
            "eval_duration": took,
        }
        return counts | ({} if self._asked.raw else {"context": [*answer.ask.ids, *answer.written]})

    def _entry(self, step: Step) -> Json | None:
        if step.row is None or not self._asked.logprobs or not self._served.logprobs:
            return None
        told = self._token(step.token, step.row.actual(step.token)[0])
        best = [self._token(*pair) for pair in step.row.top[: self._asked.top_logprobs]]
        return told | ({"top_logprobs": best} if best else {})

    def _token(self, token: int, logprob: float) -> Json:
        text = self._served.text((token,))
        return {"token": text, "logprob": number(logprob)} | ({"bytes": list(text.encode())} if text else {})


def family(served: Served) -> Family:
    """Return Ollama's routes."""
    stamp = "2026-01-01T00:00:00Z"
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": "",
        "families": None,
        "parameter_size": "",
        "quantization_level": "",
        "context_length": served.num_context,
    }

    def tags(_: bytes) -> Json:
        name = f"{served.name}:latest"
        model: dict[str, Any] = {"name": name, "model": name, "modified_at": stamp, "size": 0, "digest": ""}
        return {"models": [model | {"details": details}]}

    def show(raw: bytes) -> Json:
        _check(served, parse(_Show, raw).model)
        told = {"details": details, "capabilities": ["completion"], "modified_at": stamp}
        return told | {"model_info": {"general.context_length": served.num_context}}

    facts = {
        ("GET", "/api/version"): lambda _: {"version": VERSION},
        ("GET", "/api/tags"): tags,
        ("POST", "/api/show"): show,
    }
    return Family((Generate(served),), facts, LINES, ollama_error)
