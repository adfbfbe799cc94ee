"""One model's greedy answer, whole, and both models' rows along it: what a pair is calibrated on.

A text of the local model's is drafted here and checked in one request; one of the cloud's is written in one request,
with its rows, and the local model reads along. The law (``tests/run/test_text_rows.py``): the text is the model's own
greedy one; each row is that model's at its place; every request is reserved and settled as any answer's, and one that
writes is sent only if the whole text can be paid. Knows no policy: nothing is decided here.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hybrid.cloud import Capabilities
from hybrid.engine import Worker
from hybrid.policy.gates import ALWAYS
from hybrid.policy.requests import BudgetDenied, Check, Draft, NoAnswer, Scored, Span, Write, Wrote, ids
from hybrid.prob import Dense, TopK
from hybrid.run.drafting import Drafter
from hybrid.run.verifier import RenderedPrompt, Verifier
from hybrid.types import Ids

Writer: TypeAlias = Literal["local", "cloud"]


@dataclass(frozen=True, eq=False)
class TextRows:
    """A text of T tokens, its end token among them where it ended by itself, and the rows before each of them.

    ``local``: T rows. ``cloud``: the rows of the first tokens, T at most; none where the endpoint gives none.
    ``failed``: why the text or its rows could not be had this time; nothing here is to be relied upon then.
    ``nanousd``: what it cost, None where that is not known.
    """

    prompt: Ids
    tokens: Ids
    ended: bool
    local: tuple[Dense, ...]
    cloud: tuple[TopK, ...] = ()
    failed: BudgetDenied | NoAnswer | None = None
    nanousd: int | None = None


@dataclass(frozen=True)
class TextScorer:
    """Both models during one text. Made for it, used once."""

    prompt: RenderedPrompt
    drafter: Drafter
    worker: Worker
    verifier: Verifier

    async def read(self, writer: Writer, limit: int, can: Capabilities) -> TextRows:
        """Have a text of up to ``limit`` tokens written, and both models read it. Raises CloudRefusal.

        Leaves no request open, and no token of the text in the local cache.
        """
        try:
            return await (self._drafted(limit, can) if writer == "local" else self._written(limit))
        finally:
            await self.verifier.rest()
            await self.worker.do(lambda _: self.drafter.rewind_to(()))

    async def _drafted(self, limit: int, can: Capabilities) -> TextRows:
        """Draft, and have the draft checked where the endpoint can score."""
        draft = Draft((), limit, ALWAYS)
        span = (await self.worker.do(lambda cancelled: self.drafter.draft(draft, limit, cancelled))).span
        local = tuple(pending.draft_row for pending in span if pending.draft_row is not None)
        if "score" not in can.abilities:
            return self._text(span, local)
        reply = await self.verifier.check(self.prompt, Check((), span, wants_next_row=False), nullcontext)
        if isinstance(reply, Scored):
            return self._text(span, local, reply.rows)
        return self._text(span, local, failed=reply)

    async def _written(self, limit: int) -> TextRows:
        """Have the cloud write, and read along."""
        span: Span = ()
        ended = False
        while not ended:
            reply = await self.verifier.write(self.prompt, Write(ids(span), limit - len(span), wants_target_rows=True))
            if not isinstance(reply, Wrote):
                return self._text((), (), failed=reply)
            span, ended = span + reply.span, reply.ended
        tokens = ids(span)
        local = await self.worker.do(lambda cancelled: self.drafter.rows((), tokens, cancelled)) if tokens else []
        # The end token may be told without its row: those before it are known.
        unknown = next((place for place, pending in enumerate(span) if pending.target_row is None), len(span))
        cloud = tuple(pending.target_row for pending in span[:unknown] if pending.target_row is not None)
        return self._text(span, tuple(local), cloud)

    def _text(
        self,
        span: Span,
        local: tuple[Dense, ...],
        cloud: tuple[TopK, ...] = (),
        failed: BudgetDenied | NoAnswer | None = None,
    ) -> TextRows:
        ended = bool(span) and span[-1].id in self.drafter.cursor.engine.end_ids
        return TextRows(self.prompt.ids, ids(span), ended, local, cloud, failed)
