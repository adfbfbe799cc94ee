"""OpenAI's chat route: shapes as published, log-probabilities the model's, and what it does not tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from arithmetic import tolerance
from asking import TEXT
from cases import each, each_of

from hybrid.types import Message

PATH = "/v1/chat/completions"
PROMPT = [1, 2, 0, 5, 3]
MESSAGES = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w0 w5 w3"}]


def complete(client, **fields) -> dict:
    body = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_tokens": 3} | fields
    reply = client.post(PATH, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture
def client(spoken):
    return spoken("openai-chat")


def test_an_answer_has_the_published_keys(client):
    """openapi.yaml: CreateChatCompletionResponse; ``logprobs`` and ``refusal`` are required, and null."""
    told = complete(client)
    assert set(told) == {"id", "object", "created", "model", "choices", "usage"}
    assert told["object"] == "chat.completion"
    [choice] = told["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
    assert set(choice["message"]) == {"role", "content", "refusal"}
    assert choice["logprobs"] is None
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (5, 3)


@each("k", [None, 0, 2])
def test_log_probabilities_are_the_models(client, row_of, k):
    fields = {"logprobs": True} | ({} if k is None else {"top_logprobs": k})
    logprobs, prefix = complete(client, **fields)["choices"][0]["logprobs"], list(PROMPT)
    assert set(logprobs) == {"content", "refusal"}
    for entry in each_of(logprobs["content"]):
        row = row_of(prefix)
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert (entry["token"], entry["logprob"]) == (f"w{row.best} ", row.logprobs[row.best])
        assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
            (f"w{i} ", logprob) for i, logprob in row.top(k or 0)
        ]
        prefix.append(row.best)


def test_turns_in_parts_are_read_as_their_text(client):
    parts = [{"type": "text", "text": "w1 w2 "}, {"type": "text", "text": "w0 w5 w3"}]
    told = complete(client, messages=[{"role": "developer", "content": "w1"}, {"role": "user", "content": parts}])
    assert told["usage"]["prompt_tokens"] == 6


def test_a_stream_is_the_whole_answer_in_pieces(client):
    """CreateChatCompletionStreamResponse: usage null but in the last event, which has no choices."""
    body = {"model": "m", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 3, "logprobs": True}
    more = {"stream": True, "stream_options": {"include_usage": True}, "top_logprobs": 1}
    *events, done = client.post(PATH, json=body | more).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    *pieces, closing = [json.loads(event.removeprefix("data: ")) for event in events]
    whole = complete(client, logprobs=True, top_logprobs=1)
    assert {piece["object"] for piece in pieces} == {"chat.completion.chunk"}
    assert {piece["usage"] for piece in pieces} == {None}
    choices = [piece["choices"][0] for piece in pieces]
    assert choices[0]["delta"]["role"] == "assistant"
    message, logprobs = whole["choices"][0]["message"], whole["choices"][0]["logprobs"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == message["content"]
    shown = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert shown == logprobs["content"]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]
    assert closing["choices"] == []
    assert closing["usage"]["total_tokens"] == 8


def test_without_a_limit_as_much_is_written_as_there_is_room_for(client):
    body = {"model": "m", "messages": [{"role": "user", "content": "w1 " * 3990}]}
    assert client.post(PATH, json=body).json()["usage"]["completion_tokens"] == 10


@each(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "nobody", "content": "w1"}]},
        {"messages": "w1"},
        {"logprobs": True, "top_logprobs": 21},
        {"top_logprobs": 2},
        {"max_tokens": 0},
        {"max_tokens": 5000},
        {"temperature": 3},
        {"n": 2},
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused(client, body):
    reply = client.post(PATH, json={"model": "m", "messages": MESSAGES} | body)
    assert (reply.status_code, set(reply.json()["error"])) == (400, {"message", "type", "param", "code"})


def test_asking_for_log_probabilities_where_there_are_none_is_an_error(spoken):
    """As Groq's documents say; a client must find out before it bills its user for a conversation."""
    client = spoken("openai-chat", logprobs=False)
    reply = client.post(PATH, json={"messages": MESSAGES, "logprobs": True})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
    assert complete(client)["choices"][0]["message"]["content"]


def test_the_model_is_told_without_its_context(client):
    [model] = client.get("/v1/models").json()["data"]
    assert set(model) == {"id", "object", "created", "owned_by"}


@pytest.fixture(scope="module")
def chatting(start_server):
    return start_server("--dialect", "openai-chat")


@pytest.mark.slow
def test_the_served_models_rows_are_its_own(chatting, oracle):
    messages = [{"role": "user", "content": TEXT}]
    fields = {"model": "small", "messages": messages, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    [entry] = complete(chatting.client, **fields)["choices"][0]["logprobs"]["content"]
    row = oracle.row(oracle.weights.render([Message("user", TEXT)]))
    for top, (_, logprob) in each_of(zip(entry["top_logprobs"], row.top(20), strict=True)):
        assert abs(top["logprob"] - logprob) <= tolerance().nats
    assert chatting.stderr == ""


@pytest.mark.slow
def test_a_drawn_token_outside_the_likeliest_is_censored(chatting, oracle):
    """-9999.0 is no log-probability: taken for one, it makes any divergence infinite."""
    row = oracle.row(oracle.weights.render([Message("user", TEXT)]))
    rare = int(np.argsort(-row.logprobs)[30])
    fields = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1, "logit_bias": {str(rare): 100}}
    told = complete(chatting.client, model="small", logprobs=True, top_logprobs=2, **fields)
    [entry] = told["choices"][0]["logprobs"]["content"]
    assert entry["logprob"] == -9999.0
    assert len(entry["top_logprobs"]) == 2
