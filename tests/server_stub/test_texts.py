"""Families that complete texts (OpenAI's legacy route, Fireworks, Together): shapes as published, rows the model's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from arithmetic import tolerance
from asking import noise_of
from cases import each, each_of

PATH = "/v1/completions"
PROMPT = [1, 2, 0, 5, 3]
TEXT = "w1 w2 w0 w5 w3 "


def complete(client, **fields) -> dict:
    reply = client.post(PATH, json={"model": "m", "temperature": 0, "max_tokens": 3} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(client, **fields) -> list[dict]:
    body = {"model": "m", "temperature": 0, "max_tokens": 3, "stream": True} | fields
    *events, done = client.post(PATH, json=body).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


def words(row, k: int, actual: int) -> dict[str, float]:
    """A legacy top list: texts as keys, the actual token among them."""
    return {f"w{i} ": row.logprobs[i] for i in {*(i for i, _ in row.top(k)), actual}}


def refusals(client, bodies) -> set[int]:
    return {client.post(PATH, json={"model": "m", "prompt": "w1"} | body).status_code for body in bodies}


class TestOpenAI:
    """openai/openai-openapi, openapi.yaml: CreateCompletionResponse."""

    @pytest.fixture
    def client(self, spoken):
        return spoken("openai-legacy")

    def test_an_answer_has_the_published_keys(self, client):
        told = complete(client, prompt=PROMPT)
        assert set(told) == {"id", "object", "created", "model", "choices", "usage"}
        assert told["object"] == "text_completion"
        [choice] = told["choices"]
        assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
        assert choice["logprobs"] is None
        arrays = complete(client, prompt=PROMPT, logprobs=2)["choices"][0]["logprobs"]
        assert set(arrays) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}

    def test_an_echo_scores_the_prompt_with_texts_as_keys(self, client, row_of):
        [choice] = complete(client, prompt=PROMPT, max_tokens=0, echo=True, logprobs=2)["choices"]
        assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
        arrays = choice["logprobs"]
        assert arrays["tokens"] == [f"w{i} " for i in PROMPT]
        assert arrays["text_offset"] == [0, 3, 6, 9, 12]
        assert (arrays["token_logprobs"][0], arrays["top_logprobs"][0]) == (None, None)
        for n in each_of(range(1, len(PROMPT))):
            row = row_of(PROMPT[:n])
            assert arrays["token_logprobs"][n] == row.logprobs[PROMPT[n]]
            assert arrays["top_logprobs"][n] == words(row, 2, PROMPT[n])

    @pytest.mark.parametrize("prompts", [[TEXT, "w3 w3"], [PROMPT, [3, 3]]])
    def test_several_prompts_give_several_choices_and_one_bill(self, client, prompts):
        told = complete(client, prompt=prompts, logprobs=1)
        alone = [complete(client, prompt=ids, logprobs=1)["choices"][0] for ids in (PROMPT, [3, 3])]
        assert told["choices"] == [choice | {"index": n} for n, choice in enumerate(alone)]
        assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (7, 6)

    def test_many_prompts_of_one_token_each_verify_a_draft(self, client, row_of):
        """The way to check where nothing scores a prompt: every prefix, and one token after it."""
        prompts = [PROMPT[:n] for n in range(1, 6)]
        told = complete(client, prompt=prompts, max_tokens=1, logprobs=2)
        for choice, ids in each_of(zip(told["choices"], prompts, strict=True)):
            row = row_of(ids)
            assert choice["logprobs"]["top_logprobs"] == [words(row, 2, row.best)]

    def test_a_stream_is_the_whole_answer_in_pieces(self, client):
        fields = {"prompt": [PROMPT, [3]], "echo": True, "logprobs": 2}
        *events, closing = streamed(client, stream_options={"include_usage": True}, **fields)
        assert {event["usage"] for event in events} == {None}
        whole = complete(client, **fields)
        assert closing["choices"] == []
        assert closing["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
        for expected in each_of(whole["choices"]):
            pieces = [event["choices"][0] for event in events if event["choices"][0]["index"] == expected["index"]]
            assert "".join(piece["text"] for piece in pieces) == expected["text"]
            for key, values in each_of(expected["logprobs"].items()):
                assert [value for piece in pieces for value in piece["logprobs"][key]] == values
            assert [piece["finish_reason"] for piece in pieces] == [None] * 3 + ["length"]

    def test_what_it_cannot_do_is_refused(self, client):
        bodies = [{"logprobs": 6}, {"n": 2}, {"temperature": 2.1}, {"prompt": []}, {"prompt": [[]]}, {"model": "other"}]
        assert refusals(client, bodies) == {400, 404}

    def test_the_model_is_told_without_its_context(self, client):
        [model] = client.get("/v1/models").json()["data"]
        assert set(model) == {"id", "object", "created", "owned_by"}


class TestFireworks:
    """fw-ai-external/python-sdk, types/shared/choice.py and new_log_probs_content.py."""

    @pytest.fixture
    def client(self, spoken):
        return spoken("fireworks")

    @pytest.mark.parametrize("last", [1, 3, len(PROMPT), 99])
    def test_the_last_tokens_of_the_prompt_are_echoed_with_their_rows(self, client, row_of, last):
        fields = {"logprobs": True, "top_logprobs": 2, "echo_last": last, "max_tokens": 1}
        [choice] = complete(client, prompt=PROMPT, **fields)["choices"]
        content = choice["logprobs"]["content"]
        start = max(0, len(PROMPT) - last)
        assert [entry["token_id"] for entry in content[:-1]] == PROMPT[start:]
        assert choice["text"].startswith("".join(f"w{i} " for i in PROMPT[start:]))
        for n, entry in each_of(enumerate(content[:-1], start=start)):
            if n == 0:
                assert (entry["logprob"], entry["top_logprobs"]) == (None, [])
                continue
            row = row_of(PROMPT[:n])
            assert entry["logprob"] == row.logprobs[PROMPT[n]]
            assert [(top["token_id"], top["logprob"]) for top in entry["top_logprobs"]] == row.top(2)

    def test_entries_have_the_published_keys(self, client):
        [choice] = complete(client, prompt=PROMPT, logprobs=True, top_logprobs=1, return_token_ids=True)["choices"]
        assert set(choice) == {"index", "text", "logprobs", "finish_reason", "token_ids", "prompt_token_ids"}
        assert choice["prompt_token_ids"] == PROMPT
        entries = choice["logprobs"]["content"]
        keys = {"token", "bytes", "logprob", "sampling_logprob", "text_offset", "token_id", "top_logprobs"}
        assert {frozenset(entry) for entry in entries} == {frozenset(keys)}
        assert set(entries[0]["top_logprobs"][0]) == {"token", "logprob", "token_id", "bytes"}
        assert [entry["token_id"] for entry in entries] == choice["token_ids"]
        assert [entry["text_offset"] for entry in entries] == [0, 3, 6]
        assert bytes(entries[0]["bytes"]).decode() == entries[0]["token"]

    def test_an_integer_asks_for_the_legacy_arrays(self, client, row_of):
        [choice] = complete(client, prompt=PROMPT, logprobs=2, max_tokens=1)["choices"]
        row = row_of(PROMPT)
        assert choice["logprobs"] == {
            "tokens": [f"w{row.best} "],
            "token_ids": [row.best],
            "token_logprobs": [row.logprobs[row.best]],
            "top_logprobs": [words(row, 2, row.best)],
            "text_offset": [0],
        }

    def test_a_length_that_does_not_fit_is_cut_unless_it_shall_be_an_error(self, client):
        fields = {"prompt": [1] * 3998, "max_tokens": 50}
        assert complete(client, **fields)["usage"]["completion_tokens"] == 2
        assert refusals(client, [fields | {"context_length_exceeded_behavior": "error"}]) == {400}

    def test_a_stream_is_the_whole_answer_in_pieces(self, client):
        fields = {"prompt": PROMPT, "logprobs": True, "top_logprobs": 1, "echo_last": 2, "return_token_ids": True}
        pieces = [event["choices"][0] for event in streamed(client, **fields)]
        [whole] = complete(client, **fields)["choices"]
        assert [token for piece in pieces for token in piece["token_ids"]] == whole["token_ids"]
        assert [entry for piece in pieces for entry in piece["logprobs"]["content"]] == whole["logprobs"]["content"]
        assert [piece.get("prompt_token_ids") for piece in pieces] == [PROMPT, None, None, None]

    def test_what_it_cannot_do_is_refused(self, client):
        bodies = [{"logprobs": 6}, {"logprobs": -1}, {"top_logprobs": 6}, {"echo_last": -1}]
        assert refusals(client, bodies) == {400}

    def test_it_is_served_where_fireworks_has_it_too(self, client):
        assert client.get("/inference/v1/models").status_code == 200
        body = {"prompt": PROMPT, "max_tokens": 1}
        assert client.post("/inference/v1/completions", json=body).status_code == 200


class TestTogether:
    """togethercomputer/openapi, openapi.yaml: CompletionResponse, PromptPart, LogprobsPart, CompletionChunk."""

    @pytest.fixture
    def client(self, spoken):
        return spoken("together")

    def test_an_echo_tells_the_prompts_rows_beside_the_choices(self, client, row_of):
        told = complete(client, prompt=TEXT, echo=True, logprobs=2, max_tokens=1)
        assert set(told) == {"id", "choices", "prompt", "usage", "created", "model", "object"}
        assert told["object"] == "text.completion"
        [part] = told["prompt"]
        assert (set(part), part["text"]) == ({"text", "logprobs"}, TEXT)
        assert set(part["logprobs"]) == {"token_ids", "tokens", "token_logprobs", "top_logprobs"}
        assert part["logprobs"]["token_ids"] == PROMPT
        assert part["logprobs"]["token_logprobs"][0] is None
        for n in each_of(range(1, len(PROMPT))):
            row = row_of(PROMPT[:n])
            assert part["logprobs"]["token_logprobs"][n] == row.logprobs[PROMPT[n]]
            assert part["logprobs"]["top_logprobs"][n] == words(row, 2, PROMPT[n])
        [choice] = told["choices"]
        assert choice["logprobs"]["token_ids"] == [row_of(PROMPT).best]
        assert choice["finish_reason"] == "length"

    def test_without_an_echo_the_prompt_is_an_empty_list(self, client):
        assert complete(client, prompt=TEXT)["prompt"] == []

    def test_a_stream_tells_a_token_at_a_time(self, client, row_of):
        events = streamed(client, prompt=TEXT)
        required = {"id", "token", "choices", "usage", "finish_reason"}
        assert all(required <= set(event) and event["object"] == "completion.chunk" for event in events)
        prefix = list(PROMPT)
        for event in each_of(events):
            row = row_of(prefix)
            assert (event["token"]["id"], event["token"]["logprob"]) == (row.best, row.logprobs[row.best])
            assert event["choices"][0]["text"] == event["token"]["text"]
            prefix.append(row.best)
        assert [event["finish_reason"] for event in events] == [None, None, "length"]
        assert events[-1]["usage"]["total_tokens"] == 8

    def test_what_it_cannot_do_is_refused(self, client):
        bodies = [
            {"prompt": PROMPT},
            {"prompt": [TEXT]},
            {"prompt": ""},
            {"logprobs": 21},
            {"stop": "x"},
            {"model": None},
        ]
        assert refusals(client, bodies) == {400}

    def test_models_are_a_bare_list(self, client):
        assert client.get("/v1/models").json() == [
            {"id": "m", "object": "model", "created": 0, "type": "language", "context_length": 4000}
        ]


@each(
    ("dialect", "fields"),
    [
        ("vllm", {"prompt_logprobs": 1}),
        ("openai-legacy", {"echo": True}),
        ("fireworks", {"echo": True}),
        ("together", {"echo": True}),
    ],
)
def test_without_log_probabilities_there_are_none(spoken, dialect, fields):
    told = complete(spoken(dialect, logprobs=False), prompt=TEXT, logprobs=1, **fields)
    assert told["choices"][0].get("logprobs") is None
    assert told["choices"][0].get("prompt_logprobs") is None
    assert all(part["logprobs"] is None for part in told.get("prompt", []))


@pytest.mark.slow
@each("dialect", ["openai-legacy", "fireworks", "together"])
def test_the_served_models_rows_are_its_own(start_server, oracle, dialect):
    server = start_server("--dialect", dialect)
    text = "What is 27 + 48?"
    ids = oracle.ids(text)
    told = complete(server.client, model="small", prompt=text, echo=True, logprobs=5, max_tokens=1)
    arrays = (told["prompt"][0] if dialect == "together" else told["choices"][0])["logprobs"]
    for n in each_of(range(1, len(ids))):
        row = oracle.row(ids[:n])
        noise = noise_of(row, ids[n])
        assert abs(arrays["token_logprobs"][n] - row.logprobs[ids[n]]) <= noise
        best = max(arrays["top_logprobs"][n].values())
        assert abs(best - np.max(row.logprobs)) <= tolerance().nats
    assert server.stderr == ""
