"""What a first refusal teaches, over real HTTP: the cloud goes on answering, and finding out costs nothing."""

from __future__ import annotations

import json

import pytest
from cases import each

import hybrid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUESTION = "What is 47 + 86?"
POLICIES = {
    "cloud": {},
    "kl": {"threshold": 0.05},
    "doubt": {"entropy": 0.01},
    "exact": {"temperature": 0.7, "top_k": 9},
}


@pytest.fixture(scope="module")
def strict(bundled, start_server):
    """vLLM with ``--max-logprobs 5``, its V1 model runner and its token-in route."""
    return start_server("--max-logprobs", "5", "--enable-scale-out", model=bundled[1])


@pytest.fixture(scope="module")
def generous(bundled, start_server):
    return start_server("--max-logprobs", "50", "--enable-scale-out", "--v2-runner", model=bundled[1])


def ask(server, policy, dialect):
    choices = {"max_tokens": 16, "price": "1/0.1/4", "ledger": "none", "seed": 0} | POLICIES[policy]
    with hybrid.open(local="small", cloud=server.url, dialect=dialect, policy=policy, **choices) as client:
        return [client.generate(QUESTION) for _ in range(2)]


def charges(server):
    return {str(told) for told in server.client.get("/v1/charges").json()["data"]}


@each("dialect", ["vllm", "vllm-tokens"])
@each("policy", POLICIES)
def test_a_shorter_list_and_no_candidates_are_asked_for_and_nothing_is_charged_for_finding_out(
    strict, generous, policy, dialect
):
    before = charges(strict)
    answers = ask(strict, policy, dialect)
    told = [one for one in strict.client.get("/v1/charges").json()["data"] if str(one) not in before]
    assert [answer.degraded for answer in answers] == [None, None]
    for name in ("prompt_tokens", "completion_tokens"):
        assert sum(getattr(answer.usage, f"cloud_{name}") for answer in answers) == sum(one[name] for one in told)
    if policy != "exact":  # of fewer tokens fewer are drawn here, and by other coins
        assert [answer.text for answer in answers] == [answer.text for answer in ask(generous, policy, dialect)]


def without_rows_in_streams(reply, *_):
    """As LiteLLM passes a vLLM's streams on: the text alone."""
    if reply.content_type.startswith("text/event-stream"):
        reply.body = b"".join(map(without_rows, reply.body.splitlines(keepends=True)))


def without_rows(line):
    if not line.startswith(b"data: {"):
        return line
    event = json.loads(line.removeprefix(b"data: "))
    for choice in event["choices"]:
        choice["logprobs"] = None
        choice.pop("token_ids", None)
    return b"data: " + json.dumps(event).encode() + b"\n"


@each("policy", ["cloud", "kl"])
@each("dialect", ["vllm", "openai-completions"])
def test_where_streams_come_without_rows_the_cloud_is_asked_to_write_unstreamed(proxy, policy, dialect):
    choices = {"policy": policy, "dialect": dialect, "cloud_top_k": 5, "max_tokens": 24, "seed": 0, "price": "free"}
    choices |= {"threshold": 1e-6} if policy == "kl" else {}
    answers = []
    for spoil in (without_rows_in_streams, lambda *_: None):
        between = proxy(spoil)
        with hybrid.open(local="small", cloud=between.url, **choices) as client:
            answers.append([client.generate("Sort downwards: 42 17 99 23 68.") for _ in range(2)])
        streams = [bool(body.get("stream")) for path, body in between.requests if path == "/v1/completions"]
        if spoil is without_rows_in_streams:
            assert sum(streams) == 1, "one stream has shown it, for the life of the client"
    assert [answer.degraded for told in answers for answer in told] == [None] * 4
    assert [answer.text for answer in answers[0]] == [answer.text for answer in answers[1]]
    assert any(token.source == "cloud" for token in answers[0][0].tokens)
