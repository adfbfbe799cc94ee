"""A remote model over HTTP: a dialect's words on a wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from hybrid.cloud.dialects.dialect import Dialect, Setup
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.cloud.dialects.vllm import Vllm
from hybrid.cloud.find import found
from hybrid.cloud.port import Capabilities, Chunk, Question, ScoreQuestion, Scores, Words, WriteQuestion
from hybrid.cloud.wire import Wire
from hybrid.types import CloudUsage, Ids


class Endpoint:
    """The cloud port over one dialect."""

    def __init__(
        self,
        wire: Wire,
        model: str | None = None,
        salt: str | None = None,
        words: Words | None = None,
        dialect: str | None = None,
    ) -> None:
        """Take a wire, the model's name (None: the only one served), the salt of this client's prefix cache.

        ``words`` is the local vocabulary, for dialects that speak in text; ``dialect`` None: it is found out.
        """
        self._wire = wire
        self._setup = Setup(model or "", Spelling(words) if words else None, salt)
        self._wanted = dialect
        self._dialect: Dialect = Vllm(self._setup)
        self._model = model

    def __repr__(self) -> str:
        """Name endpoint, dialect and model."""
        return f"Endpoint({self._wire.url}, {self._dialect.name}, {self._model or None})"

    async def connect(self, probe: str, probe_ids: Ids) -> Capabilities:
        """Find out at no charge which model is served in which dialect, and whether it splits the probe alike."""
        self._dialect, capabilities = await found(self._wire, self._setup, self._wanted, (probe, probe_ids))
        self._model = capabilities.model
        return capabilities

    def worst(self, question: Question) -> CloudUsage:
        """Ask the dialect."""
        return self._dialect.worst(question)

    async def score(self, question: ScoreQuestion) -> Scores:
        """Ask what the dialect asks until it has its rows."""
        asking = self._dialect.score(question)
        try:
            asked = next(asking)
            while True:
                reply = await self._wire.post(asked.path, asked.body, question.request_id, shape=asked.shape)
                asked = asking.send(reply)
        except StopIteration as done:
            scores: Scores = done.value
            return scores

    async def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; where none can be asked for, one that ends at once and costs nothing."""
        written = self._dialect.write(question)
        if written is None:
            yield Chunk(finish="length", usage=CloudUsage(0, 0))
            return
        asked, read = written
        if asked.stream is None:
            yield read(await self._wire.post(asked.path, asked.body, question.request_id, shape=asked.shape))
            return
        lines = asked.stream == "lines"
        async with aclosing(self._wire.stream(asked.path, asked.body, question.request_id, lines=lines)) as replies:
            async for reply in replies:
                chunk = read(reply)
                yield chunk
                if chunk.finish and asked.stream != "to done":
                    return

    async def aclose(self) -> None:
        """Close the wire."""
        await self._wire.aclose()
