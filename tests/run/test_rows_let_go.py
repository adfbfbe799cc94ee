"""Rows of the local model that nobody reads any more are not kept: at 150,000 tokens each takes 0.6 MB."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from picky_house import MAX_TOKENS, gather, picky_house

from hybrid.policy.progress import WITH_LABELS, Progress, write
from hybrid.policy.requests import AnswerContinues, AnswerEnded, Emit, PendingToken, Wrote
from hybrid.prob import Dense

__all__ = ["picky_house"]


def test_labels_of_what_the_cloud_wrote_are_let_go_of_once_they_are_shown():
    """Nothing weighs them, and a whole answer brings one for each of its tokens."""
    flow = write(WITH_LABELS, Progress(lambda *_: 0), 9, None)
    next(flow)
    row = Dense.from_logits(np.arange(5.0), 0.01)
    shown = flow.send(Wrote((PendingToken(3, "cloud", "written", draft_row=row),), ended=False))
    assert isinstance(shown, Emit)
    assert shown.tokens[0].draft_row is row
    del shown
    read = weakref.ref(row)
    del row
    assert flow.send(AnswerContinues()).limit == 8
    flow.send(Wrote((PendingToken(4, "cloud", "written"),), ended=False))
    gc.collect()
    assert read() is None
    with pytest.raises(StopIteration):
        flow.send(AnswerEnded("stop"))


def test_an_answer_that_is_over_keeps_no_row(picky_house, run):
    h = picky_house(None)
    run(gather(h.client, policy="once", threshold=float("inf"), max_tokens=MAX_TOKENS))
    assert h.client._contexts.pool.free[0].cursor._rows == {}
