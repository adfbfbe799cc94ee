"""A remote model over HTTP: a dialect's words on a wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from hybrid.cloud.dialects import vllm
from hybrid.cloud.port import Capabilities, Chunk, ScoreQuestion, Scores, WriteQuestion
from hybrid.cloud.wire import Wire
from hybrid.errors import ModelNotFound, NotAnApi, VocabularyMismatch
from hybrid.types import Ids


class Endpoint:
    """The cloud port over vLLM's dialect."""

    def __init__(self, wire: Wire, model: str | None = None, salt: str | None = None) -> None:
        """Take a wire, the model's name (None: the only one served) and the salt of this client's prefix cache."""
        self._wire = wire
        self._model = model
        self._salt = salt

    def __repr__(self) -> str:
        """Name endpoint and model."""
        return f"Endpoint({self._wire.url}, {self._model})"

    async def connect(self, probe: str, probe_ids: Ids) -> Capabilities:
        """Ask for the model list and, where there is a tokenizer, for the probe's ids."""
        models = vllm.read_models(await self._wire.get(vllm.MODELS))
        if self._model is None and len(models) != 1:
            msg = f"{self._wire.url} serves {len(models)} models: choose one with --cloud-model ({', '.join(models)})"
            raise ModelNotFound(msg)
        model = self._model or next(iter(models))
        if model not in models:
            msg = f"{self._wire.url} does not serve {model!r}; it serves {', '.join(models)}"
            raise ModelNotFound(msg)
        self._model = model
        await self._compare(model, probe, probe_ids)
        return Capabilities(model, vllm.ABILITIES, models[model])

    async def _compare(self, model: str, probe: str, probe_ids: Ids) -> None:
        body = {"model": model, "prompt": probe, "add_special_tokens": False}
        try:
            tokens = vllm.read_tokens(await self._wire.post(vllm.TOKENIZE, body))
        except (NotAnApi, ModelNotFound):  # 404: a server of this family without a tokenizer route
            return
        if tuple(tokens) != probe_ids:
            msg = (
                f"{model} at {self._wire.url} and the local model do not share a vocabulary "
                f"(the same text is {list(tokens)[:8]} there and {list(probe_ids)[:8]} here)"
            )
            raise VocabularyMismatch(msg)

    async def score(self, question: ScoreQuestion) -> Scores:
        """Score a draft."""
        body = vllm.score_body(question, self._model or "", self._salt)
        reply = await self._wire.post(vllm.COMPLETIONS, body, question.request_id, shape=vllm.ScoreReply)
        return vllm.read_scores(question, reply)

    async def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation."""
        body = vllm.write_body(question, self._model or "", self._salt)
        async with aclosing(self._wire.stream(vllm.COMPLETIONS, body, question.request_id)) as replies:
            async for reply in replies:
                yield vllm.read_chunk(reply, question.top_k)

    async def aclose(self) -> None:
        """Close the wire."""
        await self._wire.aclose()
