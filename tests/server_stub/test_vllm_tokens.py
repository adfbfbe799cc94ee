"""vLLM's token-in token-out route: its shapes as published, its values as the model's."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from asking import FLOAT16_NATS

# vllm-project/vllm: token_in_token_out/protocol.py, GenerateResponseBase and GenerateChoiceBase, less what only images,
# experts and transfers between servers fill.
ANSWER = {
    "request_id",
    "model",
    "created",
    "usage",
    "prompt_logprobs",
    "prompt_token_id_logprobs",
    "prompt_token_ids",
    "kv_transfer_params",
    "choices",
}
CHOICE = {"index", "logprobs", "finish_reason", "token_ids", "routed_experts"}
PROMPT = [1, 2, 0, 5, 3, 1]
PATH = "/inference/v1/generate"


def generate(client, *, token_ids=PROMPT, more=None, **params) -> dict:
    params = {"temperature": 0, "max_tokens": 1} | params
    reply = client.post(PATH, json={"token_ids": token_ids, "sampling_params": params} | (more or {}))
    assert reply.status_code == 200, reply.text
    return reply.json()


def matrix(told: dict) -> np.ndarray:
    """As docs/training/prompt_token_id_logprobs.md decodes it."""
    return np.load(io.BytesIO(base64.b64decode(told["prompt_token_id_logprobs"])))


@pytest.fixture
def client(spoken):
    return spoken("vllm")


def test_an_answer_has_the_published_keys(client):
    told = generate(client, logprobs=2)
    assert set(told) == ANSWER
    assert (told["prompt_logprobs"], told["prompt_token_id_logprobs"], told["prompt_token_ids"]) == (None, None, None)
    [choice] = told["choices"]
    assert set(choice) == CHOICE
    [entry] = choice["logprobs"]["content"]
    assert set(entry) == {"token_id", "logprob", "rank", "top_logprobs"}
    assert {frozenset(top) for top in entry["top_logprobs"]} == {frozenset(("token_id", "logprob", "rank"))}
    assert generate(client)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("start", [None, 0, 2, len(PROMPT) - 2])
def test_candidates_are_scored_along_exactly_the_rows_after_the_start(client, row_of, start):
    """Row i scores the token at start + i + 1; a row off by one is another position's, and looks as good."""
    first = (start or 0) + 1
    ids = [[n % 7, 6, 0] for n in range(first, len(PROMPT))]
    fields = {} if start is None else {"prompt_logprob_start": start}
    scores = matrix(generate(client, prompt_logprob_token_ids=ids, **fields))
    assert scores.dtype == np.float32
    assert scores.shape == (len(PROMPT) - first, 3)
    for i, candidates in enumerate(ids):
        assert scores[i] == pytest.approx(row_of(PROMPT[: first + i]).logprobs[candidates], abs=1e-6)


def test_short_rows_are_padded_and_no_token_scores_nothing(client):
    scores = matrix(generate(client, prompt_logprob_token_ids=[[1, 2, 3], [4], [-1, 5]], prompt_logprob_start=2))
    assert np.isneginf(scores).tolist() == [[False] * 3, [False, True, True], [True, False, True]]


def test_rows_of_the_prompt_may_be_asked_for_beside_candidates(client, row_of):
    told = generate(client, prompt_logprobs=2, prompt_logprob_token_ids=[[4], [4]], prompt_logprob_start=3)
    assert told["prompt_logprobs"][0] is None
    for n in range(1, len(PROMPT)):
        row = row_of(PROMPT[:n])
        shown = told["prompt_logprobs"][n]
        assert set(shown) == {str(i) for i in (*(i for i, _ in row.top(2)), PROMPT[n])}
        assert shown[str(PROMPT[n])]["logprob"] == row.logprobs[PROMPT[n]]
    assert matrix(told).ravel() == pytest.approx([row_of(PROMPT[:n]).logprobs[4] for n in (4, 5)], abs=1e-6)


def test_scoring_skips_the_cache_and_where_it_may_not_there_is_nothing(client):
    """A cached prefix has no scores. A shorter matrix would be read as the rows after the start."""
    ids = {"prompt_logprob_token_ids": [[1]] * 4, "prompt_logprob_start": 1}
    generate(client)
    told = generate(client, **ids)
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    told = generate(client, skip_reading_prefix_cache=False, **ids)
    assert told["prompt_token_id_logprobs"] is None
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT) - 1
    cold = {"cache_salt": "another"}
    assert matrix(generate(client, skip_reading_prefix_cache=False, more=cold, **ids)).shape == (4, 1)


def test_the_top_list_of_a_written_token_begins_with_it_and_has_k_entries(client, row_of):
    """serving.py: ``rank_index < max(k, 1)`` of a list that begins with the drawn token."""
    row = row_of(PROMPT)
    order = [i for i, _ in row.top(7)]
    for k in (0, 1, 3):
        for drawn, expected in [(order[0], order[: max(k, 1)]), (order[5], [order[5], *order[: max(k, 1) - 1]])]:
            told = generate(client, logprobs=k, logit_bias={str(drawn): 100})["choices"][0]
            assert told["token_ids"] == [drawn]
            [entry] = told["logprobs"]["content"]
            assert [top["token_id"] for top in entry["top_logprobs"]] == expected
            assert [top["rank"] for top in entry["top_logprobs"]] == [order.index(i) + 1 for i in expected]
            assert entry["logprob"] == pytest.approx(row.logprobs[drawn])


def test_without_a_limit_as_much_is_written_as_there_is_room_for(client):
    body = {"token_ids": [1] * 3990, "sampling_params": {"temperature": 0}}
    assert len(client.post(PATH, json=body).json()["choices"][0]["token_ids"]) == 10


def test_a_stream_is_the_whole_answer_in_pieces(client):
    body = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    params = {"max_tokens": 4, "temperature": 1, "seed": 3, "logprobs": 2}
    *events, done = (
        client.post(PATH, json={"token_ids": PROMPT, "sampling_params": params} | body).text.strip().split("\n\n")
    )
    assert done == "data: [DONE]"
    *pieces, closing = [json.loads(event.removeprefix("data: ")) for event in events]
    whole = generate(client, more={"cache_salt": "x"}, **params)
    [choice] = whole["choices"]
    assert [token for piece in pieces for token in piece["choices"][0]["token_ids"]] == choice["token_ids"]
    content = [entry for piece in pieces for entry in piece["choices"][0]["logprobs"]["content"]]
    assert content == choice["logprobs"]["content"]
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 3 + ["length"]
    assert [piece.get("prompt_token_ids") for piece in pieces] == [PROMPT] + [None] * 3
    assert (closing["choices"], closing["usage"]) == ([], whole["usage"])


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"prompt_logprob_token_ids": [[1]] * 4}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[1]] * 6}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[]] * 5}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[7]] * 5}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[-2]] * 5}, "sampling_params"),
        ({"prompt_logprob_token_ids": [[1] * 21] * 5}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_start": 1}, "prompt_logprob_start"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "sampling_params"),
    ],
    ids=str,
)
def test_a_bad_field_is_named(client, params, param):
    reply = client.post(PATH, json={"token_ids": PROMPT, "sampling_params": params})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert param in reply.json()["error"]["message"]


def test_scores_cannot_be_streamed(client):
    body = {"token_ids": PROMPT, "stream": True, "sampling_params": {"prompt_logprob_token_ids": [[1]] * 5}}
    assert client.post(PATH, json=body).status_code == 400


def test_the_release_is_told(client):
    assert client.get("/version").json() == {"version": "0.33.0"}


@pytest.mark.slow
def test_the_served_models_scores_are_its_own(server, oracle, prompt):
    ids = [[(7 * n) % oracle.weights.num_tokens, prompt[n]] for n in range(5, len(prompt))]
    told = generate(server.client, token_ids=prompt, prompt_logprob_token_ids=ids, prompt_logprob_start=4)
    for n, scores in enumerate(matrix(told), start=5):
        row = oracle.row(prompt[:n])
        for token, score in zip(ids[n - 5], scores, strict=True):
            assert abs(score - row.logprobs[token]) <= (FLOAT16_NATS if row.probs[token] >= 1e-3 else 0.5)
