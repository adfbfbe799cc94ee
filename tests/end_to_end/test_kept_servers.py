"""Servers of other houses with the large model behind them: its rows, our own stub's texts and verdicts, their bills.

Each runs in an environment of its own (``server_environments``), vLLM with ``tests/check.py --all``, the others with
``--servers``.
"""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import islice

import numpy as np
import pytest
from alike import DETERMINISTIC, NEAR_TIE_NATS, QUESTIONS, assert_alike, told
from asking import FLOAT16_NATS

from hybrid.assemble import PROBE
from hybrid.bench.tasks import FAMILIES, distinct
from hybrid.cloud import ScoreQuestion
from hybrid.cloud.deadlines import Deadlines
from hybrid.cloud.endpoint import Endpoint
from hybrid.cloud.wire import Wire
from hybrid.types import Message

# The first test of each starts the server: 35 s on two free cores, minutes on busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# A draft of 15 tokens for each of 42 questions, three of each family: 672 rows.
DRAFTED = 15
DRAFTS_ABOUT = [p.question for family in FAMILIES for p in islice(distinct(family, "test", 3, seed=5), 3)]
PATIENT = {"first_byte_timeout_s": 300.0, "read_timeout_s": 300.0, "request_timeout_s": 900.0}


@pytest.fixture(scope="module", params=["vllm", pytest.param("vllm-v2", marks=pytest.mark.servers)])
def kept(request, start_kept):
    """One of them, for as long as its tests take."""
    server = start_kept(request.param)
    yield server
    server.end()


def reached(server, words, work, dialect=None):
    """Do something with the endpoint as ``hybrid.open`` makes it."""

    async def working():
        wire = Wire(server.url, None, Deadlines(60, 300, 300, 900), through_proxies=False)
        endpoint = Endpoint(wire, words=words, dialect=dialect)
        try:
            can = await endpoint.connect(PROBE, words.tokenize(PROBE))
            return await work(endpoint, can)
        finally:
            await endpoint.aclose()

    return asyncio.run(working())


def test_the_endpoint_is_recognised_without_being_named(kept, oracles):
    async def look(_, can):
        return can

    can = reached(kept, oracles[0].engine, look)
    assert (can.dialect, can.model, can.max_context) == ("vllm", "large", 1024)
    assert can.abilities == {"open", "score", "write", "ids"}


def test_rows_are_those_of_the_model_itself(kept, oracles):
    """Of 42 drafts of the small model's own, wrong tokens in some: nothing likelier is hidden, nothing is misplaced."""
    words, questions = oracles[0].engine, []
    for number, question in enumerate(DRAFTS_ABOUT[:: 1 if kept.kind == "vllm" else 6]):
        prompt = words.render([Message("user", question)])
        draft = [token for _, token in oracles[0].rows(question, lambda row: row.best, DRAFTED)]
        questions.append(ScoreQuestion(prompt, tuple(draft), draft[-1] not in words.end_ids, 20, f"score-{number}"))

    async def score(endpoint, _):
        return [await endpoint.score(question) for question in questions]

    worst, counted = 0.0, 0
    for question, scores in zip(questions, reached(kept, words, score), strict=True):
        assert len(scores.rows) == question.num_rows
        for i, row in enumerate(scores.rows):
            expected = oracles[1].cursor.row(question.prefix + question.span[:i])
            likely = expected.probs[row.ids] >= 1e-3
            worst = max(worst, np.abs(row.logprobs - expected.logprobs[row.ids])[likely].max())
            assert np.delete(expected.probs, row.ids).max() <= row.cap * np.exp(FLOAT16_NATS) + 1e-6
            (best, first), (_, second) = expected.top(2)
            assert row.best == best or first - second <= NEAR_TIE_NATS
            counted += 1
    print(f"{kept.kind}: {counted} rows, at most {worst:.4f} nats off")
    assert worst <= FLOAT16_NATS


@pytest.fixture(scope="module")
def told_by_the_stub(stub):
    """What comes of a setting over our own stub; asked once for all servers."""
    return cache(lambda name: list(told(stub.url, QUESTIONS, **DETERMINISTIC[name])))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_texts_and_verdicts_are_those_over_our_own_stub(kept, told_by_the_stub, name):
    choices, several = DETERMINISTIC[name], slice(None) if kept.kind == "vllm" else slice(0, None, 4)
    theirs = list(told(kept.url, QUESTIONS[several], **choices | PATIENT))
    assert_alike(choices, QUESTIONS[several], told_by_the_stub(name)[several], theirs)
