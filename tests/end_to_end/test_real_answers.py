"""Answers over servers that nobody here wrote: the large model's texts, our own stub's verdicts, the server's charges.

What is read from them row by row is in ``test_real_servers.py``. Where two texts part, a near tie or a divergence
within 1e-3 of the threshold must excuse it.
"""

from __future__ import annotations

import json
from functools import cache

import pytest
from alike import assert_alike, told
from cases import each, each_of
from real_servers import PACKAGES

import hybrid
from hybrid.errors import MissingCapability
from hybrid.record.events import CheckAnswered, RequestSent, RequestSettled
from hybrid.tasks import FAMILIES, distinct

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MAX_TOKENS = 64
# One of each family, and a second of every other one: 21.
QUESTIONS = [
    problem.question
    for number, family in enumerate(FAMILIES)
    for problem in distinct(family, "test", 1 + number % 2, seed=5)
]


def test_greedy_exact_gives_the_large_models_own_greedy_text(real, oracles):
    parted = 0
    with hybrid.open(
        local="small", cloud=real.url, price="free", policy="greedy-exact", max_tokens=MAX_TOKENS
    ) as client:
        for question in each_of(QUESTIONS):
            expected, tie = oracles[1].text(question, MAX_TOKENS)
            answer = client.generate(question)
            assert answer.degraded is None
            got = tuple(token.id for token in answer.tokens)
            assert got[:tie] == expected[:tie], question
            parted += got != expected
    print(f"{real.family}: {parted} of {len(QUESTIONS)} texts part at a near tie")
    assert parted <= len(QUESTIONS) // 4


CHOICES = {
    "kl": {"policy": "kl"},
    "kl, stopped": {"policy": "kl", "span": 5, "stop": (".", "therefore")},
    "doubt": {"policy": "doubt"},
    "doubt, cut": {"policy": "doubt", "stop": ("=", "\n"), "max_tokens": 20},
    "cloud": {"policy": "cloud"},
    "cloud, cut": {"policy": "cloud", "stop": (" is",), "max_tokens": 12},
}


def questions_of(choices):
    return QUESTIONS if len(choices) == 1 else QUESTIONS[::3]


@pytest.fixture(scope="module")
def told_by_the_stub(stub):
    """What our own stub's model is told to do, and what came of it; asked once for both real servers."""
    return cache(lambda name: list(told(stub.url, questions_of(CHOICES[name]), **CHOICES[name])))


@each("name", CHOICES)
def test_verdicts_and_texts_are_those_against_our_own_stub(real, told_by_the_stub, name):
    choices, questions = CHOICES[name], questions_of(CHOICES[name])
    assert_alike(choices, questions, told_by_the_stub(name), list(told(real.url, questions, **choices)))


@each("policy", ["kl", "doubt", "cloud"])
def test_a_sampled_answer_ends_with_tokens_of_the_vocabulary(real, oracles, policy):
    for events in each_of(told(real.url, QUESTIONS[:6], policy=policy, temperature=1.0, seed=7)):
        answer = events[-1].answer
        assert answer.degraded is None
        assert answer.finish_reason == "stop" or len(answer.tokens) == MAX_TOKENS
        written = b"".join(oracles[0].engine.piece(token.id) for token in answer.tokens)
        assert answer.text == written.decode("utf-8", "replace")
        assert not {token.id for token in answer.tokens} & oracles[0].engine.end_ids


# ---- money ---------------------------------------------------------------------------------------------------------


def said_to_cost(family, body):
    """Prompt, cached and completion tokens, as the server's last word on a request has them.

    llama-cpp-python does not count the end token that it computed; the client does.
    """
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line]
    last = json.loads(lines[-1])
    if family == "llama-server":
        return last["tokens_evaluated"], last["timings"]["cache_n"], last["tokens_predicted"]
    untold = last["choices"][0]["finish_reason"] == "stop"
    return last["usage"]["prompt_tokens"], 0, last["usage"]["completion_tokens"] + untold


@each("policy", ["kl", "doubt", "cloud"])
def test_the_bill_charges_what_the_server_says_and_never_more_than_was_reserved(real, proxy, policy):
    said = []

    def listen(reply, path, _):
        if path in {"/completion", "/v1/completions"} and reply.status == 200:
            said.append(said_to_cost(real.family, reply.body))

    between = proxy(listen, real.url)
    questions = [
        "Sort downwards: 42 17 99 23 68.",
        "Reverse the letters: cheese",
        "How is \u4e2d\u6587 or caf\u00e9 written?",
    ]
    for events in each_of(told(between.url, questions, policy=policy, price="1/0.1/4")):
        answer, kinds = events[-1].answer, (RequestSent, RequestSettled)
        assert answer.degraded is None
        prompt, cached, completion = (sum(column) for column in zip(*said, strict=True))
        said.clear()
        usage = answer.usage
        assert (usage.cloud_prompt_tokens, usage.cloud_cached_tokens) == (prompt, cached)
        assert usage.cloud_completion_tokens == completion
        assert answer.bill.nanousd == (prompt - cached) * 1000 + cached * 100 + completion * 4000
        assert cached > 0 or real.family == "llama-cpp-python" or usage.cloud_requests < 2
        asked, settled = ([event for event in events if isinstance(event, kind)] for kind in kinds)
        reserved = {event.request_id: event.reserved_nanousd for event in asked}
        assert all(event.nanousd <= reserved[event.request_id] for event in settled)
        assert len(settled) == len(asked) == usage.cloud_requests


# ---- what cannot be had --------------------------------------------------------------------------------------------


def test_a_policy_that_draws_from_rows_by_id_is_refused_where_tokens_have_no_numbers(start_real, bundled, proxy):
    between = proxy(lambda *_: None, start_real("llama-cpp-python").url)
    with (
        hybrid.open(local="small", cloud=between.url, policy="exact", temperature=1.0) as client,
        pytest.raises(MissingCapability, match="exact needs an endpoint that can name tokens by number"),
    ):
        client.generate(QUESTIONS[0])
    assert not [path for path, body in between.requests if body.get("prompt")]


def test_exact_samples_where_tokens_have_numbers(start_real, bundled):
    for events in each_of(told(start_real("llama-server").url, QUESTIONS[:4], policy="exact", temperature=1.0, seed=2)):
        assert events[-1].answer.degraded is None
        assert {token.source for token in events[-1].answer.tokens} == {"local", "cloud"}


@each("family", PACKAGES)
def test_a_server_killed_in_the_middle_leaves_a_finished_answer_that_says_so(start_real, oracles, family):
    server = start_real(family)
    with hybrid.open(local="small", cloud=server.url, policy="greedy-exact", span=2, max_tokens=MAX_TOKENS) as client:
        for event in client.stream(QUESTIONS[0]):
            if isinstance(event, CheckAnswered) and server.process.poll() is None:
                server.kill()
        answer = event.answer
        again = client.generate(QUESTIONS[0])
    assert answer.usage.checks == 1
    assert server.url in answer.degraded
    assert answer.finish_reason == "stop" or len(answer.tokens) == MAX_TOKENS
    assert answer.text
    assert server.url in again.degraded
    assert tuple(token.id for token in again.tokens) == oracles[0].text(QUESTIONS[0], MAX_TOKENS)[0]
