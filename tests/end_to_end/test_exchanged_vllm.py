"""A vLLM that reads its cache for checks, exchanged between two of them for one that would die of that."""

from __future__ import annotations

import asyncio
import uuid

import httpx
import pytest
from arithmetic import tolerance
from cases import each_of
from endpoints import connected
from kept_servers import free_port

from hybrid.cloud import ScoreQuestion
from hybrid.errors import Unreachable
from hybrid.types import Message

pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(2400)]

# Long enough that a check finds whole blocks of 32 tokens in the cache.
SYSTEM = "Work with care, and say no more than was asked for. " * 4
QUESTION = "Sort downwards: 42 17 99 23 68."
SPAN = 4


def test_a_server_with_the_v1_runner_survives_where_one_with_v2_was_before(start_kept, oracles):
    """What was learned of the one is not believed of the other: the same field that spares V2 work ends V1's server."""
    words, port = oracles[0].engine, free_port()
    prompt = words.render([Message("system", SYSTEM), Message("user", QUESTION)])
    draft = [token for _, token in oracles[0].rows(QUESTION, lambda row: row.best, 4 * SPAN)]
    starts = range(0, len(draft) - SPAN + 1, SPAN)
    questions = [
        ScoreQuestion(prompt + tuple(draft[:start]), tuple(draft[start : start + SPAN]), False, 20) for start in starts
    ]

    async def exchange():
        first = start_kept("vllm-v2", port=port)
        async with connected(first.url, words, "vllm-tokens") as (endpoint, _):
            before = [await endpoint.score(question, uuid.uuid4().hex) for question in questions[:2]]
            first.end()
            second = start_kept("vllm", port=port)
            after = [await insisting(endpoint, question) for question in questions[2:]]
        return second, before, after

    server, before, after = asyncio.run(exchange())
    assert before[1].usage.cached_tokens > 0, "nothing was ever asked of V2 that would end V1"
    assert after, "V1 was never asked"
    assert not any(scores.usage.cached_tokens for scores in after)
    for question, scores in each_of(zip(questions, [*before, *after], strict=True)):
        assert len(scores.rows) == SPAN
        for i, row in each_of(enumerate(scores.rows)):
            (best, first), (_, second) = oracles[1].cursor.row(question.prefix + question.span[:i]).top(2)
            assert row.best == best or first - second <= tolerance().gap
    assert httpx.get(f"{server.url}/health", trust_env=False, timeout=60).is_success
    assert ended_by_the_field(server, prompt), "V1 takes the field by now: the precaution has lost its reason"


async def insisting(endpoint, question):
    """What a client does whose connection is gone: it asks again."""
    for _ in range(3):
        try:
            return await endpoint.score(question, uuid.uuid4().hex)
        except Unreachable as error:
            print(error)
    raise AssertionError("the new server was never reached")


def ended_by_the_field(server, prompt):
    """Whether a check that reads the cache fails where no candidates come with it."""
    drawn = {"max_tokens": 1, "logprobs": 1, "prompt_logprobs": 1, "skip_reading_prefix_cache": False}
    body = {"model": "large", "token_ids": list(prompt), "sampling_params": drawn}
    try:
        replies = [
            httpx.post(f"{server.url}/inference/v1/generate", json=body, trust_env=False, timeout=300) for _ in range(2)
        ]
    except httpx.TransportError:
        return True
    return not replies[-1].is_success
