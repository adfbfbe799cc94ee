"""Servers of other houses with the large model behind them: its rows, our own stub's texts and verdicts, their bills.

Each runs in an environment of its own (``server_environments``), vLLM with ``tests/check.py --all``, the others with
``--servers``.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from itertools import islice

import httpx
import numpy as np
import pytest
from alike import DETERMINISTIC, QUESTIONS, assert_alike, assert_shown, told, verdicts
from cases import each, each_of
from endpoints import connected

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.vllm import write_body
from hybrid.prob import warp
from hybrid.tasks import FAMILIES, distinct
from hybrid.types import Message, Sampling

# The first test of each starts the server: 35 s on two free cores, minutes on busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1200)]

# A draft of 15 tokens for each of 42 questions, three of each family: 672 rows.
DRAFTED = 15
DRAFTS_ABOUT = [p.question for family in FAMILIES for p in islice(distinct(family, "test", 3, seed=5), 3)]


@pytest.fixture(
    scope="module", params=["vllm", *(pytest.param(kind, marks=pytest.mark.servers) for kind in ("vllm-v2", "sglang"))]
)
def kept(request, start_kept):
    """One of them, for as long as its tests take."""
    server = start_kept(request.param)
    yield server
    server.end()


def reached(server, words, work, dialect=None):
    """Do something with the endpoint as ``hybrid.open`` makes it."""

    async def working():
        async with connected(server.url, words, dialect) as (endpoint, can):
            return await work(endpoint, can)

    return asyncio.run(working())


def test_the_endpoint_is_recognised_without_being_named(kept, oracles):
    async def discover(_, can):
        return can

    can = reached(kept, oracles[0].engine, discover)
    assert (can.dialect, can.model, can.max_context) == (kept.kind.removesuffix("-v2"), "large", 1024)
    assert can.abilities == {"open", "score", "write", "ids"}


def test_rows_are_those_of_the_model_itself(kept, oracles):
    """Of 42 drafts of the small model's own, wrong tokens in some: nothing likelier is hidden, nothing is misplaced."""
    words, questions = oracles[0].engine, []
    for question in DRAFTS_ABOUT[:: 6 if kept.kind == "vllm-v2" else 1]:
        prompt = words.render([Message("user", question)])
        draft = [token for _, token in oracles[0].rows(question, lambda row: row.best, DRAFTED)]
        questions.append(ScoreQuestion(prompt, tuple(draft), draft[-1] not in words.end_ids, 20))

    async def score(endpoint, _):
        return [await endpoint.score(question, uuid.uuid4().hex) for question in questions]

    worst, counted = 0.0, 0
    for question, scores in each_of(zip(questions, reached(kept, words, score), strict=True)):
        assert len(scores.rows) == question.num_rows
        for i, row in each_of(enumerate(scores.rows)):
            expected = oracles[1].cursor.row(question.prefix + question.span[:i])
            worst = max(worst, assert_shown(row, expected))
            counted += 1
    print(f"{kept.kind}: {counted} rows, at most {worst:.4f} nats off")


@pytest.fixture(scope="module")
def told_by_the_stub(bundled, start_server):
    """What comes of a setting over our own stub of a family; asked once for all its servers."""
    flags = {"vllm": ("--block-size", "32", "--enable-prompt-tokens-details"), "sglang": ("--dialect", "sglang")}
    stub = cache(lambda family: start_server(*flags[family], model=bundled[1]))
    return cache(lambda family, name: list(told(stub(family).url, QUESTIONS, **DETERMINISTIC[name] | afresh(name))))


def afresh(name):
    """Choices under which no earlier setting has left anything in the server's cache."""
    return {"price": "1/0.1/4", "cache_salt": f"{name}, {uuid.uuid4().hex}"}


@each("name", DETERMINISTIC)
def test_texts_verdicts_and_bills_are_those_over_our_own_stub(kept, told_by_the_stub, name):
    """To the nano-dollar, where both say how much of a prompt was cached."""
    choices = DETERMINISTIC[name]
    ours = told_by_the_stub(kept.kind.removesuffix("-v2"), name)
    theirs = list(told(kept.url, QUESTIONS, **choices | afresh(name)))
    assert_alike(choices, QUESTIONS, ours, theirs)
    for one, other in each_of(zip(ours, theirs, strict=True)):
        if verdicts(one) == verdicts(other):
            assert replace(one[-1].answer.usage, bytes_sent=0) == replace(other[-1].answer.usage, bytes_sent=0)
            assert one[-1].answer.bill.nanousd == other[-1].answer.bill.nanousd


# ---- what the server says of itself ---------------------------------------------------------------------------------

COUNTERS = {
    "prompt": "vllm:prompt_tokens_total",
    "cached": "vllm:prompt_tokens_cached_total",
    "completion": "vllm:generation_tokens_total",
    "running": "vllm:num_requests_running",
}
ONLY_VLLM = pytest.mark.parametrize(
    "kept", ["vllm", pytest.param("vllm-v2", marks=pytest.mark.servers)], indirect=True
)  # fmt: skip


def counted(server):
    """What vLLM has counted since it started."""
    said = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=60).text
    return {name: float(re.search(rf"^{key}\{{.*\}} (.*)$", said, re.MULTILINE)[1]) for name, key in COUNTERS.items()}


def eventually(server, since, expected):
    """Whether the server comes to have counted this; it does so after its reply has gone out."""
    until, seen = time.monotonic() + 60, {}
    while seen != expected and time.monotonic() < until:
        now = counted(server)
        seen = {name: now[name] - since[name] for name in expected}
        time.sleep(0.1)
    return seen == expected, seen


@ONLY_VLLM
@each("name", ["kl", "greedy-exact", "doubt", "paper", "cloud"])
def test_the_bill_is_what_the_server_counted(kept, name):
    """Its own counters, which are no part of any reply; a check reads no cache, a write does, in blocks of 32."""
    since, sums = counted(kept), Counter()
    for events in each_of(told(kept.url, QUESTIONS[:2] * 2, price="1/0.1/4", **DETERMINISTIC[name])):
        usage, bill = events[-1].answer.usage, events[-1].answer.bill
        prompt, cached, completion = usage.cloud_prompt_tokens, usage.cloud_cached_tokens, usage.cloud_completion_tokens
        sums.update(prompt=prompt, cached=cached, completion=completion)
        assert bill.nanousd == (prompt - cached) * 1000 + cached * 100 + completion * 4000
    same, seen = eventually(kept, since, dict(sums))
    assert same, (seen, sums)
    assert sums["cached"] % 32 == 0


SAMPLINGS = [
    Sampling(temperature=2.0, top_p=0.8, seed=7),
    Sampling(temperature=0.5, min_p=0.05, seed=7),
    Sampling(temperature=2.0, top_k=9, top_p=0.7, seed=7),
    Sampling(temperature=2.0, top_k=20, top_p=0.9, min_p=0.1, seed=7),
]


@pytest.mark.parametrize("kept", ["vllm"], indirect=True)
def test_what_it_draws_is_of_the_law_that_was_asked_for(kept, oracles):
    """64 tokens a place: none is cut off by ``warp``, no likely one is missing, and the temperature came first."""
    words, beyond = oracles[0].engine, 0
    prompt = words.render([Message("user", QUESTIONS[0])])
    for text in ("The le", "A", "The answer is t", "b"):
        prefix = prompt + words.tokenize(text)
        row = oracles[1].cursor.row(prefix)
        for sampling in SAMPLINGS:
            body = write_body(WriteQuestion(prefix, 1, 0, sampling), "large", None) | {"n": 64}
            reply = httpx.post(f"{kept.url}/v1/completions", json=body, trust_env=False, timeout=60).json()
            drawn = {choice["token_ids"][0] for choice in reply["choices"]}
            wider = replace(sampling, top_p=min(1.0, sampling.top_p * 1.01), min_p=sampling.min_p * 0.99)
            law, late = warp(row, sampling).probs, warp(row, replace(sampling, temperature=1.0)).probs
            assert drawn.issuperset(np.flatnonzero(law >= 0.1).tolist()), (text, sampling)
            assert (warp(row, wider).probs[list(drawn)] > 0.0).all(), (text, sampling)
            beyond += sum(late[token] == 0.0 for token in drawn)
    assert beyond > 20


@ONLY_VLLM
def test_leaving_a_stream_stops_the_servers_work(kept, oracles):
    """Of 900 tokens, which nothing but the limit would end.

    The tiny model writes them in a second, and a busy server may be done before it sees that its reader has gone:
    one of twenty streams that is cut short is proof, since a stream that nobody stops always reaches its limit.
    """
    words = oracles[0].engine
    prompt = words.render([Message("user", QUESTIONS[0])])
    question = WriteQuestion(prompt, 900, 5, Sampling(), words.end_ids)

    async def leave(endpoint, _):
        async with aclosing(endpoint.write(question, uuid.uuid4().hex)) as chunks:
            async for _ in chunks:
                return

    written = []
    while not written or (written[-1] == 900 and len(written) < 20):
        since = counted(kept)
        reached(kept, words, leave)
        until = time.monotonic() + 60
        while (now := counted(kept))["running"] and time.monotonic() < until:
            time.sleep(0.1)
        assert now["running"] == 0
        written.append(now["completion"] - since["completion"])
    assert 0 < written[-1] < 900


# ---- what it refuses ------------------------------------------------------------------------------------------------


@ONLY_VLLM
@each("dialect", ["vllm", "vllm-tokens"])
@each("name", ["kl", "paper", "cloud", "exact, top 10 at 0.7"])
def test_what_it_refuses_is_asked_again_in_the_way_it_takes_and_costs_nothing(kept, name, dialect):
    """60 log-probabilities, of which it gives 50 and says so inside a stream; candidates, which need the V2 runner."""
    choices, taken, refused = DETERMINISTIC[name], {"cloud_top_k": 50}, {"cloud_top_k": 60, "dialect": dialect}
    plain, again = (list(told(kept.url, QUESTIONS[:2], **choices | afresh(name) | how)) for how in (taken, refused))
    assert_alike(choices, QUESTIONS[:2], plain, again)
    for one, other in each_of(zip(plain, again, strict=True)):
        if verdicts(one) == verdicts(other):
            first, second = one[-1].answer.usage, other[-1].answer.usage
            assert second.cloud_requests > 0
            if dialect == "vllm" or kept.kind == "vllm":  # V2's token-in route reads the cache, and asks more for that
                assert second.cloud_prompt_tokens == first.cloud_prompt_tokens
                assert second.cloud_completion_tokens == first.cloud_completion_tokens


@ONLY_VLLM
@each(("dialect", "policy"), [("openai-completions", "greedy-exact"), ("openai-chat", "cloud")])
def test_its_routes_in_openais_shapes_are_read_as_well(kept, oracles, dialect, policy):
    """The only servers here that speak these and were written elsewhere."""
    questions = QUESTIONS[: 3 if kept.kind == "vllm" else 1]
    for question, events in each_of(
        zip(questions, told(kept.url, questions, policy=policy, dialect=dialect), strict=True)
    ):
        answer, (expected, tie) = events[-1].answer, oracles[1].text(question, 64)
        assert answer.degraded is None
        assert answer.usage.cloud_requests
        assert tuple(token.id for token in answer.tokens)[:tie] == expected[:tie], question
