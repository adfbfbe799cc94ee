"""A cloud that answers from a table: for tests, for teaching, and for every fault on cue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal

import numpy as np

from hybrid.cloud.port import (
    BeforeSend,
    Capabilities,
    Chunk,
    ModelQuestion,
    ScoreQuestion,
    Scores,
    UsageMeter,
    WriteQuestion,
    final_usage,
    max_usage,
    min_usage,
    unrecorded,
)
from hybrid.errors import CloudError
from hybrid.prob import Dense, TopK
from hybrid.types import NO_USAGE, CloudUsage, Ids


class ScriptedCloud:
    """A model that is a table from prefixes to raw scores; it writes greedily, a token at a time."""

    def __init__(
        self,
        scores: Callable[[Ids], Sequence[float]],
        *,
        end_ids: frozenset[int] = frozenset(),
        fault: Callable[[int], CloudError | None] = lambda _: None,
        fault_after: int = 0,
        rows: bool = True,
        tells: Callable[[CloudUsage], CloudUsage | None] = lambda charged: charged,
        tells_always: bool = False,
        noise: float = 0.0,
    ) -> None:
        """Take a table, and which request (1, 2, ...) fails how; a write fails after ``fault_after`` tokens.

        ``rows``: what is written comes with its rows. ``tells`` is what is said of a charge: with the last chunk of a
        write, or with every one. ``noise``: the nats by which its log-probabilities may be off, as it says.
        """
        self._rows = rows
        self._scores = scores
        self._end_ids = end_ids
        self._fault = fault
        self._fault_after = fault_after
        self._tells = tells
        self._tells_always = tells_always
        self._noise = noise
        self.questions: list[ModelQuestion] = []
        self.request_ids: list[str] = []
        self.charged: dict[str, CloudUsage] = {}
        self.num_open = 0

    async def connect(self, *_: object, **__: object) -> Capabilities:
        """Say that it can do everything."""
        return Capabilities("scripted")

    def max_usage(self, question: ModelQuestion) -> CloudUsage:
        """One request by ids."""
        return max_usage(question)

    async def score(self, question: ScoreQuestion, request_id: str, before_send: BeforeSend = unrecorded) -> Scores:
        """Score from the table."""
        await before_send()
        if fault := self._next(question, request_id):
            raise fault
        text = question.prefix + question.span
        rows = [
            self._row(text[: len(question.prefix) + i], question.top_k, text[len(question.prefix) + i :][:1])
            for i in range(question.num_rows)
        ]
        usage = self.charged[request_id] = CloudUsage(len(text), 1)
        return Scores(tuple(rows), final_usage(self._tells(usage) or NO_USAGE, min_usage(question), len(text)))

    async def write(
        self, question: WriteQuestion, request_id: str, before_send: BeforeSend = unrecorded
    ) -> AsyncGenerator[Chunk, None]:
        """Write greedily until an end token or the limit, then tell the usage."""
        await before_send()
        fault = self._next(question, request_id)
        self.num_open += 1
        meter = UsageMeter(min_usage(question), max_usage(question), self._end_ids)
        try:
            with meter.charge_errors():
                async for chunk in self._written(question, request_id, fault):
                    yield meter.read(chunk)
                for chunk in meter.remaining():
                    yield chunk
        finally:
            self.num_open -= 1

    async def _written(
        self, question: WriteQuestion, request_id: str, fault: CloudError | None
    ) -> AsyncGenerator[Chunk, None]:
        text, written, ended = question.prefix, 0, False
        while written < question.limit and not ended:
            if fault and written == self._fault_after:
                raise fault
            row = self._row(text, question.top_k) if self._rows and question.top_k else None
            everything = self._row(text, len(question.ban) + 1)
            token = next(i for i in everything.ids.tolist() if i not in question.ban)
            text, written = (*text, token), written + 1
            charged = self.charged[request_id] = CloudUsage(len(question.prefix), written)
            ended, full = token in self._end_ids, written == question.limit
            finish: Literal["stop", "length"] | None = "stop" if ended else "length" if full else None
            told = self._tells(charged) if self._tells_always else None
            yield Chunk((token,), (row,), finish=finish, usage=told)
        yield Chunk(usage=self._tells(self.charged[request_id]))

    async def aclose(self) -> None:
        """Nothing to close."""

    def _next(self, question: ModelQuestion, request_id: str) -> CloudError | None:
        self.questions.append(question)
        self.request_ids.append(request_id)
        return self._fault(len(self.questions))

    def _row(self, prefix: Ids, top_k: int, actual: Ids = ()) -> TopK:
        dense = Dense.from_logits(np.array(self._scores(prefix), dtype=np.float64), self._noise)
        return TopK.from_dense(dense, top_k, actual[0] if actual else None)
