"""What is said of a drafter's acceptance: true of other questions in as many cases as is said."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hybrid.defer import DraftSignals
from hybrid.tune.diagnosis import greedy_acceptance


def question(agreed):
    """A question whose cloud text has a token a flag; it is the drafter's likeliest where the flag is set."""
    top = np.full(len(agreed), 0.6)
    logprob = np.log(np.where(agreed, 0.6, 0.1))
    ids, zeros = np.arange(len(agreed)), np.zeros(len(agreed))
    signals = DraftSignals((), 5, 0, ids, zeros, top, zeros + 0.2, logprob, ended=True)
    return SimpleNamespace(written=SimpleNamespace(signals=signals))


def drawn(rng, num):
    """Questions that differ: each has a share of its own."""
    return [question(rng.random(rng.integers(5, 60)) < rng.beta(8, 2)) for _ in range(num)]


def test_it_is_the_share_of_tokens_and_not_the_mean_of_questions():
    found = greedy_acceptance([question([True] * 30), question([False] * 10)])
    assert (found.share, found.num_tokens) == (0.75, 40)
    assert (found.low, found.high) == pytest.approx((0.0, 1.0), abs=0.3)


@pytest.mark.slow
def test_its_interval_holds_the_share_on_other_questions_in_95_of_100_cases():
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        told, seen = greedy_acceptance(drawn(rng, 60)), greedy_acceptance(drawn(rng, 60)).share
        held += told.low <= seen <= told.high
    assert 90 <= held <= 99
