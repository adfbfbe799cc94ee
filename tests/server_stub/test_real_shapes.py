"""The server here answers in the shapes of the real ones: what those were asked and said is on record.

``tests/cloud/recorded/servers`` holds it. The same is asked here, over the same model. Numbers and texts are compared
over real servers in ``tests/end_to_end``; this is about statuses, keys and types.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cases import each, each_of
from exchanges import Exchanges

import hybrid
from hybrid.engine import Worker
from hybrid.engine.llama import Weights
from server_stub.app import App
from server_stub.served import Served
from server_stub.slots import Slot, Slots

LARGE = Path(hybrid.__file__).parent / "models" / "large.gguf"
ALL_TOLD = {"max_logprobs": 50, "scale_out": True, "prompt_tokens_details": True, "block_size": 32}
# How the server here is started as each of the real ones was.
SERVED = {
    "vllm_v1": ("vllm", ALL_TOLD),
    "vllm_v1_plain": ("vllm", {}),
    "vllm_v2": ("vllm", ALL_TOLD | {"v2_runner": True}),
    "sglang": ("sglang", {}),
}
# What the real ones tell besides, and no client of theirs here reads: of models, of times.
UNTOLD = (
    "/v1/models .data[].permission[]",
    "/get_model_info .",
    "/generate .meta_info.e2e_latency",
    "/generate .meta_info.response_sent_to_client_ts",
)
# Here one server speaks one family's words; vLLM has a chat route beside its others.
ELSEWHERE = {"/v1/chat/completions"}


@pytest.fixture(scope="module")
def weights():
    if not LARGE.exists():
        pytest.skip("the bundled model large.gguf is not installed")
    with closing(Weights(LARGE)) as weights:
        yield weights


@pytest.fixture
def answered(weights, local):
    """Ask the server here what a real one was asked: each recorded exchange with the reply of ours."""

    def ask(server):
        dialect, flags = SERVED[server]
        with closing(weights.context(1024, threads=1)) as engine, closing(Worker("slot")) as worker:
            served = Served("large", engine, 1024, **flags)
            client = local(App(served, Slots([Slot(engine, worker, served.max_logprobs)]), dialect).routes())
            for exchange in Exchanges.load(server):
                path, body = exchange["path"], exchange["body"]
                if path not in ELSEWHERE:
                    yield exchange, client.get(path) if body is None else client.post(path, json=body)

    return ask


def kind_of(reply: httpx.Response) -> str:
    return reply.headers["content-type"].partition(";")[0]


def told(reply: httpx.Response) -> list:
    """Every JSON value of a reply."""
    if kind_of(reply) != "text/event-stream":
        return [reply.json()]
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def shapes(value, at=""):
    """Yield every place of a value with its type; the keys of a row are its tokens, and any of them stands for all."""
    if isinstance(value, dict):
        row = at.endswith((".prompt_logprobs[]", ".logprobs.top_logprobs[]"))
        for key, part in value.items():
            yield from shapes(part, f"{at}.{'*' if row else key}")
    elif isinstance(value, list):
        for part in value:
            yield from shapes(part, f"{at}[]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield f"{at} number"
    else:
        yield f"{at} {type(value).__name__}"


@each("server", SERVED)
def test_statuses_keys_and_types_are_those_of_the_real_server(answered, server):
    """No key or type that it does not have; and none left out but those that are named."""
    real, ours = defaultdict(set), defaultdict(set)
    for exchange, reply in each_of(answered(server)):
        asked = f"{exchange['path']} {str(exchange['body'])[:200]}"
        assert (reply.status_code, kind_of(reply)) == (exchange["status"], exchange["type"]), asked
        if reply.status_code == 404 and not exchange["path"].startswith("/v1/"):
            continue  # a route that is not there: the web framework's own words
        kind = f"{exchange['path']} {exchange['status']} {exchange['type']}"
        events = [event for event in exchange.get("events", [exchange.get("reply")]) if event != "[DONE]"]
        real[kind].update(place for event in events for place in shapes(event))
        ours[kind].update(place for event in told(reply) for place in shapes(event))
    for kind, places in each_of(real.items()):
        assert not ours[kind] - places, kind
        missing = {f"{kind.split()[0]} {place}" for place in places - ours[kind]}
        assert not {place for place in missing if not place.startswith(UNTOLD)}, kind
    assert real
