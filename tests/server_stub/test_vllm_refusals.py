"""What vLLM refuses, in the very words and at the very place of vLLM 0.32's own server: before a stream, or inside it.

``refused/vllm.json`` holds bodies as that server refused them, its limits replaced by this one's. ``inside``: whether a
stream is told so inside; null: such a request cannot be streamed; ``length``: of a prompt that is only long. A client
that takes an error inside a stream for a broken one pays for tokens that nobody computed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import each, each_of

COMPLETIONS, GENERATE = "/v1/completions", "/inference/v1/generate"
PROMPTS = {COMPLETIONS: "prompt", GENERATE: "token_ids"}
REFUSED = json.loads((Path(__file__).parent / "refused" / "vllm.json").read_text())
ROOM = 4000
DETAILS = {"created_cache_tokens": None, "multimodal_tokens": None}


@pytest.fixture
def client(spoken):
    return spoken("vllm", scale_out=True, v2_runner=True)


def events_of(reply) -> list[dict]:
    """The events of a stream that ended as it should."""
    assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@each("case", REFUSED, ids=lambda case: case["message"][:40])
def test_what_is_refused_is_told_in_vllms_words_and_place(client, case):
    body = case["body"] | ({PROMPTS[case["path"]]: [1] * case["length"]} if "length" in case else {})
    told = {"message": case["message"], "type": "BadRequestError", "param": case["param"], "code": 400}
    streamed = body | {"stream": True}
    if case["inside"] is True:
        assert events_of(client.post(case["path"], json=streamed)) == [{"error": told}]
    alone = [body] * ("only streamed" not in case) + [streamed] * (case["inside"] is False)
    for one in each_of(alone):
        reply = client.post(case["path"], json=one)
        assert (reply.status_code, reply.json()) == (400, {"error": told})


def test_what_is_refused_inside_a_stream_is_computed_for_nobody(client):
    client.post(COMPLETIONS, json={"prompt": [1], "logprobs": 60, "stream": True})
    assert client.get("/v1/charges").json() == {"data": []}


@each("stream", [False, True])
def test_more_tokens_than_there_is_room_for_are_cut_to_the_room(client, stream):
    body = {"stream": stream, "stream_options": {"include_usage": True}} if stream else {}
    prompt, params = [1] * (ROOM - 3), {"temperature": 0, "max_tokens": 50}
    for reply in (
        client.post(COMPLETIONS, json={"prompt": prompt} | params | body),
        client.post(GENERATE, json={"token_ids": prompt, "sampling_params": params} | body),
    ):
        assert reply.status_code == 200
        events = (
            [json.loads(e.removeprefix("data: ")) for e in reply.text.split("\n\n")[:-2]] if stream else [reply.json()]
        )
        [finish] = [c["finish_reason"] for event in events for c in event["choices"] if c["finish_reason"]]
        assert (finish, events[-1]["usage"]["completion_tokens"]) == ("length", 3)


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_of_no_new_tokens_is_charged_one(client, stream):
    """vLLM's engine writes at least one token; the answer hides it, and the bill does not."""
    body = {"prompt": [1, 2, 3], "echo": True, "max_tokens": 0, "logprobs": 1, "stream": stream}
    reply = client.post(COMPLETIONS, json=body, headers={"x-request-id": "mine"})
    [choice] = (events_of(reply)[0] if stream else reply.json())["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("w1 w2 w3 ", "length")
    assert choice["logprobs"]["tokens"] == ["w1 ", "w2 ", "w3 "]
    [charge] = client.get("/v1/charges").json()["data"]
    assert charge == {"id": "mine", "prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 1}


def test_an_echo_streams_with_the_first_token_and_without_its_text_where_ids_are_told(client):
    body = {"prompt": [1, 2], "echo": True, "max_tokens": 2, "temperature": 0, "stream": True}
    plain, by_ids = (
        json.loads(client.post(COMPLETIONS, json=body | more).text.split("\n\n")[0].removeprefix("data: "))["choices"][
            0
        ]
        for more in ({}, {"return_token_ids": True})
    )
    assert plain["text"] == "w1 w2 " + by_ids["text"]
    assert (by_ids["prompt_token_ids"], len(by_ids["token_ids"])) == ([1, 2], 1)


@each(("flag", "block", "held"), [(False, None, 32), (True, None, 32), (True, 24, 24)])
def test_nothing_is_said_of_the_cache_without_the_flag(spoken, flag, block, held):
    """By default a vLLM server tells no cached tokens, so that a client must take all of them for new."""
    client = spoken("vllm", scale_out=True, prompt_tokens_details=flag, block_size=block)
    body, expected = {"prompt": [1, 2, 3, 4, 5] * 8, "max_tokens": 1}, {"cached_tokens": held} if flag else None
    client.post(COMPLETIONS, json=body)
    tokens = {"token_ids": body["prompt"], "sampling_params": {"max_tokens": 1}}
    for path, whole in ((COMPLETIONS, body), (GENERATE, tokens)):
        told = client.post(path, json=whole).json()["usage"]["prompt_tokens_details"]
        assert told == (expected and expected | DETAILS)
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    assert events_of(client.post(COMPLETIONS, json=streamed))[-1]["usage"].get("prompt_tokens_details") == expected
    charged = [one["cached_tokens"] for one in client.get("/v1/charges").json()["data"]]
    assert charged == [0, held, held, held]


def test_the_last_token_is_always_computed_and_its_block_with_it(spoken):
    """Seen with blocks of 32: 960 tokens after the same 960, 928 cached; 65 of them, 64."""
    client = spoken("vllm", prompt_tokens_details=True, block_size=32)
    ids = [(7 * n) % 7 for n in range(960)]
    told = []
    for length in (960, 960, 959, 64, 65, 33, 32):
        reply = client.post(COMPLETIONS, json={"prompt": ids[:length], "max_tokens": 1})
        told.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert told == [0, 928, 928, 32, 64, 32, 0]
