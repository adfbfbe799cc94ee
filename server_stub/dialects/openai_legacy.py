"""OpenAI's legacy completions: prompts in text or ids, texts as keys, five log-probabilities, no ids back.

Written from openai/openai-openapi ``openapi.yaml`` (``CreateCompletionRequest``, ``CreateCompletionResponse``,
``Model``). Ids are accepted and never returned: a client must find out for itself which tokens an answer's texts are,
and two tokens of one text are one key. ``tests/server_stub/test_texts.py`` holds the shapes and the values.
"""

from __future__ import annotations

from pydantic import Field

from server_stub import wire
from server_stub.ask import Ask, Scoring
from server_stub.bodies import Drawn, Prompts, each, parse
from server_stub.dialects.texts import Texts
from server_stub.exchange import Exchange, Family
from server_stub.rows import Row
from server_stub.served import Served
from server_stub.wire import Json

MAX_LOGPROBS = 5


class CreateCompletionRequest(Drawn):
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


class _Exchange(Texts):
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
