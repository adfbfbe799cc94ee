"""Generated drafts with prices and a worth: what tests of the planner, and of what pacing does to it, decide about."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from naive_planner import Case, Shop
from toy_score import ToyScore

from hybrid.defer import DraftSignals, QuestionForecast
from hybrid.policy.plan import Worth
from hybrid.policy.planning import Planner
from hybrid.spend import AskPrices


def signals(num, shown=0, prompt=0):
    floats = np.full(num, 0.5)
    return DraftSignals((), prompt, shown, np.arange(num), floats, floats, floats / 2, -floats, ended=True)


def prices(scoring="uncached", in_front=0, cached=0.1, written=4.0):
    closing = 0.0 if scoring == "new" else written
    return AskPrices(1.0, cached, written, scoring=scoring, closing=closing, in_front=in_front)


SETTINGS = [("uncached", 0), ("cached", 0), ("cached", 500), ("uncached", 500), ("new", 0)]
chances = st.floats(0.0, 0.9)
cases = st.builds(
    Case,
    st.sampled_from([Shop(scoring=scoring, front=front) for scoring, front in SETTINGS]),
    st.lists(chances, min_size=1, max_size=14).map(tuple),
    st.integers(1, 60),
    st.integers(0, 9),
    st.integers(0, 69),
    st.sampled_from([0.0, 0.4, 1.0, 2.2, 9.0]),
)


def planner_of(case, **more):
    ask = prices(case.shop.scoring, case.shop.front, case.shop.cached, case.shop.written)
    made = {"score": ToyScore(case.hazard), "prices": ask, "prompt_tokens": case.prompt}
    return Planner(worth=Worth(case.multiple), **made, **more)


def nats(excess, **more):
    score = ToyScore((0.3,) * len(excess), excess, "excess:0.5", question=QuestionForecast(0.99, 50.0, 1.0))
    return Planner(score=score, prompt_tokens=39, mean_excess=1.0, worth=Worth(amount=200.0), **more)
