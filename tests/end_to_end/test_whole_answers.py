"""A chat service whose model has another vocabulary than the local one: whole answers work, nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import each

import hybrid
from hybrid.errors import MissingCapability

pytestmark = pytest.mark.slow

ALIEN = Path(hybrid.__file__).parent / "models" / "alien.gguf"
QUESTION = "What is 475 * 86?"


@pytest.fixture(scope="module")
def service(bundled, start_server):
    """The large model behind a chat route."""
    return start_server("--dialect", "openai-chat", model=bundled[1])


def asked(service, local, **choices):
    flags = {"price": "1/0.1/4", "ledger": "none", "max_tokens": 96, "learn": False, **choices}
    with hybrid.open(cloud=service.url, local=local, **flags) as client:
        return client.generate(QUESTION)


@each("sampling", [{}, {"temperature": 1.0, "seed": 7}], ids=["greedy", "sampled"])
def test_the_answer_is_the_clouds_own_whatever_the_local_vocabulary(service, sampling):
    theirs = asked(service, "small", policy="cloud", **sampling)
    for policy in ({"policy": "cloud"}, {"policy": "route", "worth": "1e6"}):
        answer = asked(service, ALIEN, **policy, **sampling)
        assert answer.text == theirs.text
        assert {token.source for token in answer.tokens} == {"cloud"}
        assert (answer.finish_reason, answer.degraded) == (theirs.finish_reason, None)
        assert answer.usage.cloud_requests == 1


def test_the_answer_is_the_local_models_own_where_asking_is_worth_nothing(service):
    alone = asked(service, ALIEN, policy="local")
    answer = asked(service, ALIEN, policy="route", worth="0.001")
    assert (answer.text, answer.bill.nanousd) == (alone.text, 0)


@each("policy", ["kl", "doubt", "greedy-exact", "once"])
def test_every_other_policy_is_refused_with_a_sentence_that_names_route(service, policy):
    with pytest.raises(MissingCapability, match=r"here .*\broute\b.* work"):
        asked(service, ALIEN, policy=policy)
