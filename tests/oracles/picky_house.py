"""A house whose engine is pickier than llama.cpp, and a cloud that waits until so many tokens were decoded ahead.

For what must not depend on whether a prefix was decoded ahead: its scores depend on which tokens were decoded together,
so a row that was read along another way is another row.
"""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pytest
from scripted_engine import ScriptedEngine

from hybrid.run import Finished, RequestSent, SpanDrafted

PROMPT = "a b c"
MAX_TOKENS = 30


class PickyEngine(ScriptedEngine):
    """Scores after a prefix depend a little on how its tokens were grouped when they were decoded."""

    def __init__(self, words, scores, **more):
        super().__init__(words, lambda prefix: np.array(scores(prefix)) + self._grain(len(prefix)), **more)
        self._groups = []

    def _grain(self, length):
        seed = hashlib.sha256(repr(self._groups[:length]).encode()).digest()[:8]
        return np.random.default_rng(int.from_bytes(seed, "big")).standard_normal(self.num_tokens) * 0.2

    def extend(self, ids, num_rows=1, cancelled=lambda: False):
        self._groups += [(len(ids), i) for i in range(len(ids))]
        try:
            return super().extend(ids, num_rows, cancelled)
        finally:
            del self._groups[len(self.ids) :]

    def rewind(self, length):
        super().rewind(length)
        del self._groups[length:]


@pytest.fixture
def answer(picky_house, run):
    """Ask once and return everything that must not depend on overlap, and how much was ready."""

    def ask(num_ahead, models=None, **choices):
        h = picky_house(num_ahead, **(models or {}))
        events = run(gather(h.client, max_tokens=MAX_TOKENS, overlap=num_ahead is not None, **choices))
        answer = next(event.answer for event in events if isinstance(event, Finished))
        asked = [(e.kind, e.position, e.num_tokens, e.reserved_nanousd) for e in events if isinstance(e, RequestSent)]
        drafts = [event for event in events if isinstance(event, SpanDrafted)]
        assert all(0 <= draft.num_ready <= len(draft.ids) for draft in drafts)
        told = (answer.experts, answer.text, answer.tokens, answer.usage, answer.bill, answer.handoffs, answer.degraded)
        return (*told, asked, [(d.position, d.ids) for d in drafts]), sum(d.num_ready for d in drafts), h

    return ask


async def gather(client, **choices):
    return [event async for event in client.stream(PROMPT, **choices)]


def answer_late(h, num_ahead):
    """Have a house's cloud answer a check once ``num_ahead`` tokens were decoded meanwhile (None: at once)."""
    score = h.cloud.score

    async def slow_score(question, *attempt):
        if num_ahead is not None:
            start, done = h.engine.num_decoded, asyncio.ensure_future(h.worker.do(lambda _: None))
            while h.engine.num_decoded < start + num_ahead and not done.done():  # noqa: ASYNC110  (a count)
                await asyncio.sleep(0)
        return await score(question, *attempt)

    h.cloud.score = slow_score


@pytest.fixture
def picky_house(house):
    """A house whose cloud answers a check once ``num_ahead`` tokens were decoded meanwhile (None: at once)."""

    def build(num_ahead, **more):
        h = house(made=PickyEngine, **more)
        answer_late(h, num_ahead)
        return h

    return build
