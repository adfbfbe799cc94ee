"""The port of a verifier is enough for a larger model that runs here: no money, no network, nothing kept open."""

from __future__ import annotations

import time

import numpy as np

from hybrid.engine import Cursor
from hybrid.policy import PolicyOptions, SeededCoin, preset
from hybrid.policy.requests import PendingToken, Scored, Wrote, ids
from hybrid.prob import Dense, TopK
from hybrid.record.answer_builder import AnswerBuilder
from hybrid.run.drafting import Drafter
from hybrid.run.driver import AnswerLimits, Driver
from hybrid.run.verifier import RenderedPrompt
from hybrid.types import Sampling

MAX_TOKENS = 30


class TableVerifier:
    """A second local model: a table of scores, greedy."""

    def __init__(self, scores, end_ids):
        self.scores, self.end_ids, self.num_rests = scores, end_ids, 0

    def _row(self, text):
        scores = np.array(self.scores(text))
        return TopK.from_dense(Dense.from_logits(scores), len(scores))

    async def check(self, prompt, request, waiting):
        text, span = prompt.ids + request.at, ids(request.span)
        num_rows = len(span) + request.wants_next_row
        return Scored(tuple(self._row(text + span[:i]) for i in range(num_rows)))

    async def write(self, prompt, request):
        text, written = prompt.ids + request.at, ()
        while len(written) < request.limit and not (written and written[-1].id in self.end_ids):
            row = self._row(text + ids(written))
            written += (PendingToken(row.best, "cloud", "written", target_row=row),)
        return Wrote(written, ended=True)

    async def rest(self):
        self.num_rests += 1


def test_a_second_local_model_stands_where_the_cloud_does(house, run):
    for name, threshold in (("greedy-exact", None), ("kl", 0.0), ("cloud", None), ("paper", 0.0)):
        h, sampling = house(), Sampling()
        policy = preset(name, PolicyOptions(threshold=threshold, sampling=sampling, max_tokens=MAX_TOKENS))
        verifier = TableVerifier(h.tables[1], h.engine.end_ids)
        builder = AnswerBuilder(len(h.prompt), h.engine.piece, lambda: None, time.monotonic(), lambda _: None)
        drafter = Drafter(Cursor(h.engine), h.prompt, sampling, SeededCoin(0))
        driver = Driver(RenderedPrompt(h.prompt), drafter, h.worker, verifier, builder, AnswerLimits(MAX_TOKENS))
        answer = run(driver.answer(policy))
        if name != "paper":  # which lets tokens through before it looks
            assert tuple(token.id for token in answer.tokens) == h.large(MAX_TOKENS), name
        assert (answer.bill.nanousd, answer.usage.cloud_requests, answer.degraded) == (0, 0, None), name
        assert verifier.num_rests > 0, name
