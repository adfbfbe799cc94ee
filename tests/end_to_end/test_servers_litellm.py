"""A gateway that others put before a server: LiteLLM's proxy before a real vLLM, and before our own stub.

It shows what a route that passes most things on takes away: rows and ids from streams, ids from prompts, the tokenizer,
what a refusal meant. The answers must be the model's all the same, and none a local one.
"""

from __future__ import annotations

import asyncio
import json
import secrets

import pytest
from alike import DETERMINISTIC, QUESTIONS, assert_alike, told
from arithmetic import tolerance
from cases import each
from endpoints import connected
from kept_servers import serving_kept
from server_environments import Unavailable

import hybrid
from hybrid.assemble import probing
from hybrid.errors import MissingCapability

# The first test starts vLLM and the gateway.
pytestmark = [pytest.mark.slow, pytest.mark.servers, pytest.mark.timeout(1200)]

# How the gateway speaks to what is behind it, and what must then be named: by its own driver for vLLM text goes in and
# comes out; by the one for OpenAI's legacy route all that the server takes and gives, unless it streams.
DRIVERS = {"hosted_vllm": None, "text-completion-openai": "vllm"}
BEHIND = ("vllm", "stub")
KEY = f"sk-{secrets.token_hex(16)}"
WAYS = [(behind, driver) for behind in BEHIND for driver in DRIVERS]


@pytest.fixture(autouse=True)
def key(monkeypatch):
    """What the gateway wants to be shown; those behind it heed none."""
    monkeypatch.setenv("HYBRID_API_KEY", KEY)


@pytest.fixture(scope="module")
def behind(start_kept, bundled, start_server):
    """The servers that the gateway stands before."""
    return {
        "vllm": start_kept("vllm").url,
        "stub": start_server("--block-size", "32", "--enable-prompt-tokens-details", model=bundled[1]).url,
    }


@pytest.fixture(scope="module")
def gateway(behind, tmp_path_factory):
    """One gateway before both. A model there is called after what is behind it, and how that is spoken to."""
    folder = tmp_path_factory.mktemp("gateway")
    models = [
        {
            "model_name": f"{server}, {driver}",
            "litellm_params": {"model": f"{driver}/large", "api_base": f"{behind[server]}/v1", "api_key": "none"},
        }
        for server, driver in WAYS
    ]
    models.append(models[0] | {"model_name": "large"})  # what is asked to see whether it is there
    # YAML is a superset of JSON.
    kept = {"model_list": models, "general_settings": {"master_key": KEY}}
    (folder / "config.yaml").write_text(json.dumps(kept))
    try:
        with serving_kept("litellm", folder / "config.yaml", folder / "log.txt", key=KEY) as server:
            yield server.url
    except Unavailable as why:
        pytest.skip(str(why))


def named(server, driver):
    """What a user says to reach a model there."""
    return {"cloud_model": f"{server}, {driver}", "dialect": DRIVERS[driver]}


@each("driver", DRIVERS)
def test_it_is_known_by_what_it_serves(gateway, oracles, driver):
    async def discover():
        async with connected(gateway, oracles[0].engine, DRIVERS[driver], f"vllm, {driver}", KEY) as (_, can):
            return can

    can = asyncio.run(discover())
    assert can.dialect == (DRIVERS[driver] or "openai-completions")
    assert can.same_words is None, "it has no tokenizer"
    assert ("ids" in can.abilities) is (DRIVERS[driver] == "vllm")


@pytest.mark.parametrize(("server", "driver"), WAYS)
def test_the_probe_finds_that_whole_answers_have_what_streams_lack(gateway, tmp_path, monkeypatch, server, driver):
    monkeypatch.setattr("hybrid.assemble.reaching.cache_file", lambda: tmp_path / "cache.json")
    choices = named(server, driver)
    probed = asyncio.run(probing.probe(lambda _: None, cloud=gateway, price="free", **choices))
    found, can = probed.findings, probed.can
    assert (found.scoring_methods, found.rows, found.streams) == ({"one request": "agrees"}, True, False)
    assert (found.continues, found.raw_rows) == (True, True)
    # What it refuses as too long comes back as a fault of its own: a shorter list is tried.
    assert found.most_k == (20 if DRIVERS[driver] else 5)
    assert found.noise_nats <= tolerance().nats
    with hybrid.open(local="small", cloud=gateway, price="free", policy="kl", **choices) as client:
        assert client.generate(QUESTIONS[0], max_tokens=8).degraded is None
    assert {"score", "write", "open"} <= can.abilities


@each(("server", "driver"), WAYS)
@each("name", ["kl", "kl, spans of 3", "greedy-exact", "doubt", "paper", "cloud"])
def test_an_answer_through_it_is_the_one_without_it(gateway, behind, server, driver, name):
    """Nothing was probed before: the first stream teaches what is missing, and the text is the same."""
    choices, questions = DETERMINISTIC[name], QUESTIONS[:3]
    # By text rows hold as many tokens as the legacy route tells of.
    dialect = DRIVERS[driver] or "openai-completions"
    straight = list(told(behind[server], questions, **choices, dialect=dialect))
    through = list(told(gateway, questions, **choices, **named(server, driver)))
    assert any(events[-1].answer.usage.cloud_requests for events in through)
    assert_alike(choices, questions, straight, through)


def test_drawing_by_rejection_is_refused_where_tokens_have_no_numbers(gateway):
    with (
        hybrid.open(
            local="small", cloud=gateway, policy="exact", temperature=1.0, **named("vllm", "hosted_vllm")
        ) as client,
        pytest.raises(MissingCapability, match="exact needs an endpoint that can name tokens by number"),
    ):
        client.generate(QUESTIONS[0])


@each("name", ["exact", "block", "u-hlm"])
def test_drawing_by_rejection_works_where_they_have(gateway, behind, name):
    choices, questions = DETERMINISTIC[name], QUESTIONS[:3]
    straight = list(told(behind["vllm"], questions, **choices))
    through = list(told(gateway, questions, **choices, **named("vllm", "text-completion-openai")))
    assert_alike(choices, questions, straight, through)
