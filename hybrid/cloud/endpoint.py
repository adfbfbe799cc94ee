"""A remote model over HTTP: a dialect's words on a wire.

What a probe has found is believed until an answer contradicts it: then it is forgotten, and found out anew.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, get_args

from hybrid.cloud.deadlines import Waits
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.dialect import Altering, Asked, Dialect, Reading, Setup, tells_rows
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.cloud.dialects.vllm import MODELS, Vllm
from hybrid.cloud.find import found
from hybrid.cloud.findings import Findings, Notebook
from hybrid.cloud.metering import Meter, settled
from hybrid.cloud.port import Capabilities, Chunk, Question, ScoreQuestion, Scores, WriteQuestion
from hybrid.cloud.wire import Wire
from hybrid.errors import CloudError, MissingCapability, ModelNotFound, NotAnApi, VocabularyMismatch
from hybrid.prob import UNMEASURED
from hybrid.types import NO_USAGE, CloudUsage, Ids, Words


class Endpoint:
    """The cloud port over one dialect."""

    def __init__(
        self,
        wire: Wire,
        model: str | None = None,
        salt: str | None = None,
        words: Words | None = None,
        dialect: str | None = None,
        notebook: Notebook | None = None,
    ) -> None:
        """Take a wire, the model's name (None: the only one served), the salt of this client's prefix cache.

        ``words`` is the local vocabulary, for dialects that speak in text; ``dialect`` None: it is found out;
        ``notebook`` holds what earlier probes found.
        """
        self._wire = wire
        self._setup = Setup(model or "", Spelling(words) if words else None, salt)
        self._wanted = dialect
        self._notebook = notebook
        self.dialect: Dialect = Vllm(self._setup)
        self._model = model or ""
        self._noise = UNMEASURED

    def __repr__(self) -> str:
        """Name endpoint, dialect and model."""
        return f"Endpoint({self._wire.url}, {self.dialect.name}, {self._model or None})"

    async def connect(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Find out at no charge which model is served in which dialect, and whether it splits the probe alike."""
        capabilities = await self.look(probe, probe_ids, asked_at)
        if capabilities.same_words is False:
            there = f"{capabilities.model} at {self._wire.url}"
            msg = f"{there} and the local model do not share a vocabulary: they split the same text in two ways"
            raise VocabularyMismatch(msg)
        known = self._notebook.read(self._wire.url, self._model, self.dialect.name) if self._notebook else None
        return self.believe(known, capabilities) if known else capabilities

    async def look(self, probe: str, probe_ids: Ids, asked_at: float | None = None) -> Capabilities:
        """Find out the same, and leave it to the caller what another vocabulary means."""
        with self._wire.discreet():
            async with self._wire.waits(asked_at).whole():
                self.dialect, capabilities = await found(self._wire, self._setup, self._wanted, (probe, probe_ids))
        self._model = capabilities.model
        return capabilities

    def believe(self, known: Findings, said: Capabilities) -> Capabilities:
        """Take what a probe has shown of this dialect over what documents say."""
        # Every dialect is a frozen dataclass with these fields.
        altered = _altering(known.raw_rows, self.dialect)
        self.dialect = replace(  # type: ignore[type-var]
            self.dialect, rows=known.rows, way=known.way, rows_altered_by=altered
        )
        if known.noise_nats is not None and known.noise_nats >= 0.0:
            self._noise = known.noise_nats
        abilities = set(self.dialect.abilities)
        if known.way is None:
            abilities.discard("score")
        if known.continues is False:
            abilities.discard("write")
        return replace(
            said,
            abilities=frozenset(abilities),
            way=known.way,
            most_k=known.most_k or said.most_k,
            keeps_cache=said.keeps_cache if known.keeps_cache is None else known.keeps_cache,
            candidates=said.candidates if known.candidates is None else known.candidates,
        )

    async def knock(self) -> None:
        """Make one round trip for nothing; that there is no such list takes as long."""
        with suppress(NotAnApi, ModelNotFound):
            await self._wire.get(MODELS)

    def worst(self, question: Question) -> CloudUsage:
        """Ask the dialect."""
        return self.dialect.worst(question)

    async def score(self, question: ScoreQuestion) -> Scores:
        """Ask what the dialect asks until it has its rows, all of it within one total."""
        asking, waits = self.dialect.score(question), self._wire.waits(question.asked_at, question.leaving)
        asked: Asked | None = None
        last, answered = NO_USAGE, 0
        try:
            with self._doubted():
                asked = next(asking)
                while True:
                    last = NO_USAGE
                    reply = await self._wire.post(asked.path, asked.body, question.request_id, asked.shape, waits)
                    last, answered = self.dialect.charged(question, reply), answered + 1
                    asked = asking.send(reply)
        except StopIteration as done:
            scores: Scores = done.value
            scores = replace(scores, rows=tuple(replace(row, noise=self._noise) for row in scores.rows))
            if asked is None:
                return scores
            return replace(scores, usage=replace(self._metered(question, scores.usage, last), requests=answered))
        except CloudError as error:
            error.sent = error.sent and asked is not None  # what is refused before it is asked costs nothing
            error.charged = replace(NO_USAGE if asked is None else asked.before + last, requests=answered)
            raise

    def _metered(self, question: ScoreQuestion, told: CloudUsage, last: CloudUsage) -> CloudUsage:
        """Return what a check was charged: what the last reply shows is part of it, whoever read its rows."""
        known = self.dialect.least(question).at_least(last)
        return settled(told, known, self.dialect.worst(question).prompt_tokens)

    async def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        """Stream a continuation; where none can be asked for, one that ends at once and costs nothing.

        Rows that the sampling or a ban has altered are missing.
        """
        try:
            written = self.dialect.write(question)  # what it refuses to ask contradicts nothing, and costs nothing
        except CloudError as error:
            error.sent = False
            raise
        if written is None:
            yield Chunk(finish="length", usage=NO_USAGE)
            return
        asked, read = written[0], written[1] if tells_rows(self.dialect, question) else _rowless(written[1])
        meter = Meter(self.dialect.least(question), self.dialect.worst(question), self._end_ids)
        with self._doubted(), meter.noting():
            waits = self._wire.waits(question.asked_at, question.leaving)
            async with aclosing(self._replies(asked, read, question.request_id, waits)) as chunks:
                async for chunk in chunks:
                    self._learn(question, chunk.usage)
                    read_chunk = self._with_noise(meter.read(chunk))
                    with waits.paused():
                        yield read_chunk
            for chunk in meter.rest():
                yield self._with_noise(chunk)

    async def _replies(self, asked: Asked, read: Reading, request_id: str, waits: Waits) -> AsyncGenerator[Chunk, None]:
        """Ask, and read what comes until the end that the dialect knows."""
        put = asked.path, asked.body, request_id
        if asked.stream is None:
            yield read(await self._wire.post(*put, asked.shape, waits))
            return
        async with aclosing(self._wire.stream(*put, waits, lines=asked.stream == "lines")) as replies:
            async for reply in replies:
                chunk = read(reply)
                yield chunk
                if chunk.finish and asked.stream != "to done":
                    return

    @property
    def _end_ids(self) -> frozenset[int]:
        spelling = self._setup.spelling
        return frozenset() if spelling is None else spelling.end_ids

    def _learn(self, question: WriteQuestion, told: CloudUsage | None) -> None:
        """Remember how long a prompt becomes that the server renders itself: reserved from then on."""
        if told is not None and isinstance(self.dialect, Chat):
            self.dialect = self.dialect.learned(question, told)

    def _with_noise(self, chunk: Chunk) -> Chunk:
        return replace(chunk, rows=tuple(row and replace(row, noise=self._noise) for row in chunk.rows))

    @contextmanager
    def _doubted(self) -> Iterator[None]:
        """Forget what was found where an answer contradicts it; tell no key, whatever is raised."""
        try:
            with self._wire.discreet():
                yield
        except (MissingCapability, VocabularyMismatch):
            if self._notebook is not None:
                self._notebook.forget(self._wire.url, self._model, self.dialect.name)
            raise

    async def aclose(self) -> None:
        """Close the wire."""
        await self._wire.aclose()


def _altering(raw_rows: bool | None, dialect: Dialect) -> frozenset[Altering]:
    """Return what alters the rows of written tokens, once a probe has seen whether another temperature does.

    A server of a family whose rows are raw, and which tells others, was set to tell them after all that is done.
    """
    if raw_rows is None:
        return dialect.rows_altered_by
    if raw_rows:
        return dialect.rows_altered_by - {"temperature"}
    return dialect.rows_altered_by or frozenset(get_args(Altering))


def _rowless(read: Reading) -> Reading:
    def reading(reply: Any) -> Chunk:
        chunk = read(reply)
        return replace(chunk, rows=(None,) * len(chunk.ids))

    return reading
