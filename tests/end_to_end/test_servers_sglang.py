"""What is SGLang's own: checks that read the cache, candidates, rows after the temperature, refused streams.

Its texts, verdicts and bills are compared with our own stub's in ``test_kept_servers``. Its kernels are not there
(``sglang_without_cuda``); its wire, scheduler, prefix cache and log-probabilities are.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from alike import QUESTIONS, assert_shown, told
from arithmetic import tolerance
from cases import each, each_of
from endpoints import PATIENT, connected

import hybrid
from hybrid.assemble import probing
from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.errors import VocabularyMismatch
from hybrid.tasks import FAMILIES, distinct
from hybrid.types import Message, Sampling

# The first test starts the server.
pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(1200)]

ALIEN = Path(hybrid.__file__).parent / "models" / "alien.gguf"
PROMPTS = [problem.question for family in FAMILIES for problem in distinct(family, "test", 3, seed=5)]
# As long as a check may take where the machine is busy; nothing here is measured.
PATIENCE_S = 100.0


@pytest.fixture(scope="module")
def sglang(start_kept):
    return start_kept("sglang")


@pytest.fixture
def at_sglang(sglang, oracles):
    """Do something with the endpoint, and what is known of it."""

    def run(work):
        async def working():
            async with connected(sglang.url, oracles[0].engine) as (endpoint, can):
                return await work(endpoint, can)

        return asyncio.run(working())

    return run


# ---- found out -----------------------------------------------------------------------------------------------------


def test_it_is_known_by_its_own_route_and_its_tokenizer_is_compared(at_sglang):
    async def discover(_, can):
        return can

    can = at_sglang(discover)
    assert (can.dialect, can.model, can.max_context) == ("sglang", "large", 1024)
    assert can.same_words is True
    assert can.abilities == {"open", "write", "score", "ids"}
    assert (can.candidates, can.keeps_cache) == (True, True)


def test_a_local_model_of_another_vocabulary_is_refused(sglang):
    with pytest.raises(VocabularyMismatch), hybrid.open(cloud=sglang.url, local=ALIEN) as client:
        client.generate(QUESTIONS[0])


def test_the_probe_finds_what_it_can_do(sglang, tmp_path, monkeypatch):
    monkeypatch.setattr("hybrid.assemble.reaching.cache_file", lambda: tmp_path / "cache.json")
    probed = asyncio.run(probing.probe(lambda _: None, cloud=sglang.url, price="free"))
    found, can = probed.findings, probed.can
    assert (found.dialect, found.scoring_method, found.scoring_methods) == (
        "sglang",
        "one request",
        {"one request": "agrees"},
    )
    assert (found.rows, found.most_k, found.takes_ids, found.same_words) == (True, 100, True, True)
    # Rows of what is written come after the temperature: never the model's own at another one.
    assert (found.continues, found.raw_rows, found.candidates) == (True, False, True)
    assert (found.cached_usage, found.keeps_cache) == (True, True)
    assert found.noise_nats <= tolerance().nats
    assert "ids" in can.abilities


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_rows_of_a_draft_are_those_of_the_model_itself(at_sglang, oracles):
    """42 prompts, the small model's own draft after each, and candidates by id beside the likeliest."""
    (small, large), asked = oracles, []
    for prompt in PROMPTS:
        prefix, (span, _) = small.engine.render([Message("user", prompt)]), small.text(prompt, 8)
        candidates = tuple((5 + i, 40) for i in range(len(span)))
        asked.append(ScoreQuestion(prefix, span, True, 20, candidates))

    async def score(endpoint, _):
        return [(await endpoint.score(question, uuid.uuid4().hex), endpoint.max_usage(question)) for question in asked]

    num_rows, worst = 0, 0.0
    for question, (scores, most) in each_of(zip(asked, at_sglang(score), strict=True)):
        assert len(scores.rows) == question.num_rows
        for i, row in each_of(enumerate(scores.rows)):
            worst = max(worst, assert_shown(row, large.cursor.row(question.prefix + question.span[:i])))
            assert i == len(question.span) or {5 + i, 40, question.span[i]} <= set(row.ids.tolist())
            num_rows += 1
        assert scores.usage.prompt_tokens == most.prompt_tokens
        assert scores.usage.completion_tokens == 0, "the row after the span comes without a token"
    print(f"{num_rows} rows after {len(PROMPTS)} prompts, at most {worst:.4f} nats off")


def test_a_draft_is_scored_with_the_prefix_kept_and_each_further_one_costs_what_is_new(at_sglang, oracles):
    prompt, (span, _) = oracles[0].engine.render([Message("user", PROMPTS[0])]), oracles[1].text(PROMPTS[0], 12)
    assert len(span) == 12

    async def score(endpoint, _):
        return [
            await endpoint.score(ScoreQuestion(prompt + span[:n], span[n : n + 4], True, 5), uuid.uuid4().hex)
            for n in (0, 4, 8)
        ]

    _, second, third = at_sglang(score)
    # The row of the first drafted token needs the scores of the position before it: computed again.
    assert second.usage.cached_tokens >= len(prompt) + 4 - 1
    assert third.usage.cached_tokens >= len(prompt) + 8 - 1
    assert third.usage.prompt_tokens - third.usage.cached_tokens <= 5


# ---- answers -------------------------------------------------------------------------------------------------------


def test_greedy_exact_gives_the_large_models_own_greedy_text(sglang, oracles):
    with hybrid.open(
        local="small", cloud=sglang.url, price="free", policy="greedy-exact", max_tokens=40, **PATIENT
    ) as client:
        for prompt in each_of(PROMPTS):
            expected, tie = oracles[1].text(prompt, 40)
            answer = client.generate(prompt)
            assert answer.degraded is None
            assert tuple(token.id for token in answer.tokens)[:tie] == expected[:tie], prompt


@each("policy", ["kl", "doubt", "paper", "cloud"])
def test_the_bill_charges_what_the_server_says(sglang, proxy, policy):
    said = []

    def listen(reply, path, _):
        if path == "/generate":
            events = [line for line in reply.body.decode().splitlines() if line.startswith(("{", "data: {"))]
            info = json.loads(events[-1].removeprefix("data: "))["meta_info"]
            said.append([info[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")])

    between = proxy(listen, sglang.url)
    for events in each_of(
        told(between.url, QUESTIONS[:4], policy=policy, price="1/0.1/4", ledger="none", max_tokens=32)
    ):
        answer = events[-1].answer
        assert answer.degraded is None
        assert answer.usage.cloud_requests == len(said)
        prompt, cached, completion = (sum(one[i] for one in said) for i in range(3))
        said.clear()
        assert answer.usage.cloud_prompt_tokens == prompt
        assert answer.usage.cloud_cached_tokens == cached
        assert answer.usage.cloud_completion_tokens == completion
        assert answer.bill.nanousd == (prompt - cached) * 1000 + cached * 100 + completion * 4000


# ---- refused, and left ---------------------------------------------------------------------------------------------


def test_what_is_too_long_is_refused_whole_and_inside_a_stream_and_costs_nothing(at_sglang, oracles):
    long = (oracles[0].engine.tokenize("What is 47 + 86? ") * 120)[:1100]

    async def ask(endpoint, _):
        refused = []
        for work in (
            endpoint.score(ScoreQuestion(long, (5,), True, 5), uuid.uuid4().hex),
            anext(aiter(endpoint.write(WriteQuestion(long, 4, 5, Sampling()), uuid.uuid4().hex))),
        ):
            with pytest.raises(hybrid.errors.CloudError, match="longer than the model's context length") as error:
                await work
            refused.append(error.value)
        return refused

    assert [error.sent for error in at_sglang(ask)] == [False, False]


def load(sglang):
    """What its scheduler says of itself: requests that run, tokens they hold, steps it ever decoded."""
    [told] = httpx.get(sglang.url + "/v1/loads", trust_env=False, timeout=PATIENCE_S).json()["loads"]
    return told["num_running_reqs"] + told["num_waiting_reqs"], told["num_used_tokens"], told["decode_moments"][0]


def test_leaving_a_stream_stops_the_work(sglang, at_sglang, oracles):
    ban = oracles[0].engine.end_ids
    question = WriteQuestion((5, 6, 7), 900, 0, Sampling(), frozenset(ban))
    *_, before = load(sglang)

    async def leave(endpoint, _):
        async with aclosing(endpoint.write(question, uuid.uuid4().hex)) as chunks:
            async for chunk in chunks:
                if chunk.ids:
                    return

    at_sglang(leave)
    until = time.monotonic() + PATIENCE_S
    while (busy := load(sglang))[:2] != (0, 0):
        assert time.monotonic() < until, busy
        time.sleep(0.1)
    assert 0 <= busy[2] - before < 450, "it went on writing"


def test_a_sampled_answer_ends_with_tokens_of_the_vocabulary(sglang, oracles):
    for events in each_of(told(sglang.url, QUESTIONS[:4], policy="cloud", temperature=1.0, seed=7)):
        answer = events[-1].answer
        assert answer.degraded is None
        written = b"".join(oracles[0].engine.piece(token.id) for token in answer.tokens)
        assert answer.text == written.decode("utf-8", "replace")


def test_a_banned_token_is_never_written(at_sglang, oracles):
    prompt = oracles[0].engine.render([Message("user", PROMPTS[0])])
    ban = frozenset(token for token, _ in oracles[1].cursor.row(prompt).top(6)) | oracles[0].engine.end_ids

    async def write(endpoint, _):
        found = []
        for how in (Sampling(), *(Sampling(temperature=1.0, seed=seed) for seed in range(4))):
            question = WriteQuestion(prompt, 12, 5, how, ban)
            found.append([chunk async for chunk in endpoint.write(question, uuid.uuid4().hex)])
        return found

    texts = [[token for chunk in chunks for token in chunk.ids] for chunks in at_sglang(write)]
    assert all(texts)
    assert not ban & {token for text in texts for token in text}
