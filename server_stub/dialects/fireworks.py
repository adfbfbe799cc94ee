"""Fireworks' completions: the last N tokens of a prompt echoed with their rows, ids both ways, five log-probabilities.

Written from fw-ai-external/python-sdk ``src/fireworks/types``: ``completion_create_params.py``,
``completion_create_response.py``, ``completion_chunk.py``, ``shared/choice.py``, ``shared/new_log_probs_content.py``.
``logprobs: true`` with ``top_logprobs`` gives content entries with ids; an integer gives the legacy arrays, with
``token_ids`` beside them. Not to be found there, and chosen here: the row of a prompt's first token is null, a top list
holds the k likeliest whatever was drawn, scoring does not read the cache, 16 tokens are written where none are asked
for. ``tests/server_stub/test_texts.py`` holds the shapes and the values.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server_stub import wire
from server_stub.ask import Ask, Row, Scoring
from server_stub.bodies import ExtendedSamplingFields, Prompts, each, parse
from server_stub.dialects.openai_legacy import CompletionsReply, models
from server_stub.exchange import Answer, Exchange, Family
from server_stub.served import Served
from server_stub.wire import Json, WireError, number

MAX_LOGPROBS = 5


class CompletionCreateParams(ExtendedSamplingFields):
    """The fields that are implemented."""

    prompt: Prompts
    temperature: float = Field(1.0, ge=0, le=2)
    top_k: int = Field(0, ge=0, le=100)
    max_completion_tokens: int | None = Field(None, ge=0)
    echo: bool = False
    echo_last: int | None = Field(None, ge=0)
    logprobs: bool | int | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    return_token_ids: bool = False
    context_length_exceeded_behavior: Literal["error", "truncate"] = "truncate"
    prompt_cache_isolation_key: str | None = None

    @property
    def tells(self) -> bool:
        """Whether log-probabilities are wanted; ``logprobs: 0`` wants those of the tokens themselves."""
        return self.logprobs is not None and self.logprobs is not False

    @property
    def is_new(self) -> bool:
        """Whether they are wanted as content entries."""
        return self.logprobs is True

    @property
    def k(self) -> int:
        """How many at each position."""
        if self.top_logprobs is not None:
            return self.top_logprobs
        return 0 if self.logprobs is None or self.is_new else int(self.logprobs)


class Completions:
    """The route."""

    def __init__(self, served: Served, path: str) -> None:
        """Take what is served, and where."""
        self._served, self.path = served, path

    def read(self, raw: bytes, request_id: str) -> Exchange:
        """Read a body."""
        asked = parse(CompletionCreateParams, raw)
        self._served.check_model(asked.model)
        if not asked.is_new and not 0 <= int(asked.logprobs or 0) <= MAX_LOGPROBS:
            raise WireError(400, f"logprobs must be between 0 and {MAX_LOGPROBS}", param="logprobs")
        return _Exchange(asked, request_id, self._served)


class _Exchange(CompletionsReply):
    def __init__(self, asked: CompletionCreateParams, request_id: str, served: Served) -> None:
        self._asked, self.served = asked, served
        self._tells = asked.tells and served.logprobs
        asks = tuple(self._ask(served.encode(prompt)) for prompt in each(asked.prompt))
        super().__init__(asked, asks, request_id, served)

    def _ask(self, ids: tuple[int, ...]) -> Ask:
        asked, room = self._asked, self.served.num_context
        limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
        if asked.context_length_exceeded_behavior == "truncate":
            limit = max(0, min(limit, room - len(ids)))
        self.served.check_room(ids, limit)
        num_echoed = self._num_echoed(len(ids))
        scoring = Scoring(max(0, len(ids) - num_echoed - 1)) if self._tells and num_echoed else None
        return asked.ask(ids, max_tokens=limit, scoring=scoring, salt=asked.prompt_cache_isolation_key)

    def _num_echoed(self, num_prompt: int) -> int:
        return num_prompt if self._asked.echo else min(self._asked.echo_last or 0, num_prompt)

    def echoed(self, ask: Ask) -> int:
        return self._num_echoed(len(ask.ids))

    def more(self, answer: Answer, ids: list[int], *, first: bool) -> Json:
        if not self._asked.return_token_ids:
            return {}
        return {"token_ids": ids} | ({"prompt_token_ids": list(answer.ask.ids)} if first else {})

    def logprobs(self, rows: list[Row | None], ids: list[int], offset: int) -> Json | None:
        if not self._tells:
            return None
        text = self.served.texts(rows, ids)
        if not self._asked.is_new:
            legacy = wire.logprobs(rows, ids, self._asked.k, text, as_ids=False, offset=offset)
            return legacy | {"token_ids": ids}
        content = []
        for row, token in zip(rows, ids, strict=True):
            content.append(self._entry(row, token, offset))
            offset += len(text[token])
        return {"content": content}

    def _entry(self, row: Row | None, token: int, offset: int) -> Json:
        logprob = None if row is None else row.actual(token)[0]
        best = () if row is None else row.top[: self._asked.k]
        told = {"sampling_logprob": None, "text_offset": offset, "top_logprobs": [self._token(*pair) for pair in best]}
        return self._token(token, logprob) | told

    def _token(self, token: int, logprob: float | None) -> Json:
        raw = self.served.vocabulary.piece(token)
        told = {"token": raw.decode("utf-8", "replace"), "token_id": token, "bytes": list(raw)}
        return told | {"logprob": None if logprob is None else number(logprob)}


def family(served: Served) -> Family:
    """Return the routes, at the root and where Fireworks has them."""
    roots = ("/v1", "/inference/v1")
    routes = tuple(Completions(served, f"{root}/completions") for root in roots)
    return Family(routes, {("GET", f"{root}/models"): lambda _: models(served) for root in roots})
