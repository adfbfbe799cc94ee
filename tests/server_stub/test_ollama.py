"""Ollama: lines and fields as published, log-probabilities the model's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from arithmetic import tolerance
from cases import each, each_of

PROMPT = [1, 2, 0, 5, 3]
TEXT = "w1 w2 w0 w5 w3"
# ollama/ollama, api/types.go: GenerateResponse and Metrics, less what is omitted when empty.
LINE = {"model", "created_at", "response", "done"}
COUNTS = {"prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}
LAST = LINE | COUNTS | {"done_reason", "total_duration", "load_duration"}


def generate(client, *, options=None, **fields) -> list[dict]:
    """Return the lines of an answer."""
    options = {"temperature": 0, "num_predict": 3} | (options or {})
    body = {"model": "m", "prompt": TEXT, "raw": True, "options": options}
    reply = client.post("/api/generate", json=body | fields)
    assert reply.status_code == 200, reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


@pytest.fixture
def client(spoken):
    return spoken("ollama")


def test_it_streams_lines_unless_told_not_to(client):
    *lines, last = generate(client)
    assert all(set(line) == LINE and not line["done"] for line in lines)
    assert set(last) == LAST
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "length")
    [whole] = generate(client, stream=False)
    assert set(whole) == LAST
    assert whole["response"] == "".join(line["response"] for line in lines)
    assert [whole[key] for key in ("prompt_eval_count", "eval_count")] == [5, 3]


def test_the_whole_prompt_is_counted_cached_or_not(client):
    """llm/llama_server.go: ``CacheN + PromptN``. A client that takes it for what was computed overestimates."""
    assert [generate(client)[-1]["prompt_eval_count"] for _ in range(2)] == [5, 5]
    assert [charge["cached_tokens"] for charge in client.get("/v1/charges").json()["data"]] == [0, 4]


@each("k", [0, 2])
def test_log_probabilities_are_the_models_and_have_texts_for_ids(client, row_of, k):
    prefix = list(PROMPT)
    for line in each_of(generate(client, logprobs=True, top_logprobs=k)[:-1]):
        row, [entry] = row_of(prefix), line["logprobs"]
        assert (entry["token"], entry["logprob"]) == (f"w{row.best} ", row.logprobs[row.best])
        assert bytes(entry["bytes"]).decode() == entry["token"]
        tops = [{key: top[key] for key in ("token", "logprob")} for top in entry.get("top_logprobs", [])]
        assert tops == [{"token": f"w{i} ", "logprob": logprob} for i, logprob in row.top(k)]
        prefix.append(row.best)
    [whole] = generate(client, logprobs=True, top_logprobs=k, stream=False)
    assert len(whole["logprobs"]) == 3


def test_what_is_held_back_for_a_stop_string_loses_its_entry(client):
    """llm/llama_server.go sends a line, and with it the entries, only where there is text."""
    lines = generate(client)
    second = lines[1]["response"]
    for stream in (True, False):
        told = generate(client, options={"stop": [second + "never"]}, logprobs=True, stream=stream)
        entries = [entry for line in told for entry in line.get("logprobs", [])]
        assert len(entries) < told[-1]["eval_count"] == 3
        assert "".join(line["response"] for line in told) == "".join(line["response"] for line in lines)


def test_a_rendered_prompt_returns_its_context(client):
    last = generate(client, raw=False)[-1]
    assert last["context"][:5] == PROMPT
    assert len(last["context"]) == 8


def test_without_a_limit_as_much_is_written_as_there_is_room_for(client):
    [told] = generate(client, prompt="w1 " * 3990, options={"num_predict": -1}, stream=False)
    assert (told["eval_count"], told["done_reason"]) == (10, "length")


@each(
    ("body", "status"),
    [
        ({"model": "other"}, 404),
        ({"model": "m", "top_logprobs": 21}, 400),
        ({"model": "m", "prompt": "w1 " * 4000, "raw": True}, 400),
        ({"model": "m", "options": {"temperature": "hot"}}, 400),
    ],
    ids=["model", "top", "long", "options"],
)
def test_what_is_refused_is_told_in_one_sentence(client, body, status):
    reply = client.post("/api/generate", json={"prompt": "w1"} | body)
    assert reply.status_code == status
    assert set(reply.json()) == {"error"}
    assert isinstance(reply.json()["error"], str)


def test_the_server_tells_of_itself(client):
    assert set(client.get("/api/version").json()) == {"version"}
    [model] = client.get("/api/tags").json()["models"]
    assert (model["name"], model["model"]) == ("m:latest", "m:latest")
    for name in ("m", "m:latest"):
        told = client.post("/api/show", json={"model": name}).json()
        assert {"details", "model_info", "capabilities"} <= set(told)
    assert client.post("/api/show", json={"model": "other"}).status_code == 404


def test_without_log_probabilities_there_are_none(spoken):
    lines = generate(spoken("ollama", logprobs=False), logprobs=True, top_logprobs=2)
    assert not any("logprobs" in line for line in lines)


@pytest.mark.slow
def test_the_served_models_rows_are_its_own(start_server, oracle, prompt):
    server = start_server("--dialect", "ollama")
    prompt = prompt[:20]  # the whole of it ends at once, and an end has no entry
    text = oracle.text(prompt)
    assert oracle.ids(text) == prompt
    [told] = generate(server.client, model="small", prompt=text, logprobs=True, top_logprobs=20, stream=False)
    row = oracle.row(prompt)
    entry = told["logprobs"][0]
    assert abs(entry["logprob"] - np.max(row.logprobs)) <= tolerance().nats
    for top, (_, logprob) in each_of(zip(entry["top_logprobs"], row.top(20), strict=True)):
        assert abs(top["logprob"] - logprob) <= tolerance().nats
    assert server.stderr == ""
