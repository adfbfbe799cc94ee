"""vLLM's own server without the flags that help, and with shorter lists than are asked for: what then is still right.

No word about its cache, no token-in route, five log-probabilities a token, the V1 model runner.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from alike import QUESTIONS, assert_alike, told, verdicts
from cases import each, each_of
from endpoints import PATIENT

import hybrid
from hybrid.assemble import probing
from hybrid.errors import NotAnApi

# Starting takes 35 s on two free cores, minutes on busy ones.
pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(1200)]

FLAGS = ("--max-logprobs", "5", "--no-enable-prompt-tokens-details", "--no-enable-scale-out")
CHOICES = {
    "kl": {"policy": "kl", "threshold": 0.2},
    "greedy-exact": {"policy": "greedy-exact"},
    "doubt": {"policy": "doubt", "entropy": 0.2},
    "cloud": {"policy": "cloud"},
}


@pytest.fixture(scope="module")
def bare(start_kept):
    return start_kept("vllm", *FLAGS)


@pytest.fixture(scope="module")
def bare_stub(bundled, start_server):
    return start_server("--max-logprobs", "5", "--block-size", "32", model=bundled[1])


@each("name", CHOICES)
def test_the_longest_list_that_is_given_is_asked_for_and_finding_out_costs_nothing(bare, bare_stub, name):
    """20 are asked for first; a stream is refused inside a 200. Nothing is said of a cache: all counts as new."""
    choices = CHOICES[name] | {"price": "1/0.1/4"}
    ours = list(told(bare_stub.url, QUESTIONS[:4], **choices))
    theirs = list(told(bare.url, QUESTIONS[:4], **choices))
    assert_alike(choices, QUESTIONS[:4], ours, theirs)
    for one, other in each_of(zip(ours, theirs, strict=True)):
        if verdicts(one) == verdicts(other):
            assert replace(one[-1].answer.usage, bytes_sent=0) == replace(other[-1].answer.usage, bytes_sent=0)
            assert one[-1].answer.bill.nanousd == other[-1].answer.bill.nanousd
    usages = [events[-1].answer.usage for events in theirs]
    assert any(usage.cloud_requests for usage in usages)
    assert not any(usage.cloud_cached_tokens for usage in usages)


def test_the_token_in_route_is_refused_in_a_sentence_that_names_the_servers_flag(bare):
    with (
        hybrid.open(local="small", cloud=bare.url, dialect="vllm-tokens", price="free", **PATIENT) as client,
        pytest.raises(NotAnApi, match="--enable-scale-out"),
    ):
        client.generate(QUESTIONS[0])


def test_a_probe_names_every_flag_that_would_help(bare, tmp_path, monkeypatch):
    monkeypatch.setattr("hybrid.assemble.reaching.cache_file", lambda: tmp_path / "cache.json")
    probed = asyncio.run(probing.probe(lambda _: None, cloud=bare.url, price="free", **PATIENT))
    found = probed.findings
    assert (found.dialect, found.most_k, found.cached_usage, found.token_route) == ("vllm", 5, False, False)
    assert [hint.flag for hint in probed.hints] == [
        "--max-logprobs 20",
        "--enable-prompt-tokens-details",
        "--enable-scale-out",
    ]
