"""A cloud that answers from a table: for tests, for teaching, and for every fault on cue."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

import numpy as np

from hybrid.cloud.port import Capabilities, Chunk, Question, ScoreQuestion, Scores, WriteQuestion, worst
from hybrid.errors import CloudError
from hybrid.prob import Dense, TopK
from hybrid.types import CloudUsage, Ids


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
    ) -> None:
        """Take a table, and which request (1, 2, ...) fails how; a write fails after ``fault_after`` tokens.

        ``rows``: what is written comes with its rows.
        """
        self._rows = rows
        self._scores = scores
        self._end_ids = end_ids
        self._fault = fault
        self._fault_after = fault_after
        self.questions: list[ScoreQuestion | WriteQuestion] = []
        self.charged: dict[str, CloudUsage] = {}
        self.num_open = 0

    async def connect(self, probe: str, probe_ids: Ids) -> Capabilities:  # noqa: ARG002  (the port's shape)
        """Say that it can do everything."""
        return Capabilities("scripted", frozenset(("score", "write", "open", "ids")))

    def worst(self, question: Question) -> CloudUsage:
        """One request by ids."""
        return worst(question)

    async def score(self, question: ScoreQuestion) -> Scores:
        """Score from the table."""
        if fault := self._next(question):
            raise fault
        text = question.prefix + question.span
        rows = [
            self._row(text[: len(question.prefix) + i], question.top_k, text[len(question.prefix) + i :][:1])
            for i in range(question.num_rows)
        ]
        usage = self.charged[question.request_id] = CloudUsage(len(text), 1)
        return Scores(tuple(rows), usage)

    async def write(self, question: WriteQuestion) -> AsyncGenerator[Chunk, None]:
        """Write greedily until an end token or the limit, then tell the usage."""
        fault = self._next(question)
        self.num_open += 1
        try:
            text, written = question.prefix, 0
            while written < question.limit:
                if fault and written == self._fault_after:
                    raise fault
                row, everything = self._row(text, question.top_k), self._row(text, len(question.ban) + 1)
                token = next(i for i in everything.ids.tolist() if i not in question.ban)
                text, written = (*text, token), written + 1
                self.charged[question.request_id] = CloudUsage(len(question.prefix), written)
                ended = token in self._end_ids
                full = written == question.limit
                told = row if self._rows else None
                yield Chunk((token,), (told,), finish="stop" if ended else "length" if full else None)
                if ended:
                    break
            yield Chunk(usage=self.charged[question.request_id])
        finally:
            self.num_open -= 1

    async def aclose(self) -> None:
        """Nothing to close."""

    def _next(self, question: ScoreQuestion | WriteQuestion) -> CloudError | None:
        self.questions.append(question)
        return self._fault(len(self.questions))

    def _row(self, prefix: Ids, top_k: int, actual: Ids = ()) -> TopK:
        dense = Dense.from_logits(np.array(self._scores(prefix), dtype=np.float64))
        return TopK.from_dense(dense, top_k, actual[0] if actual else None)
