"""vLLM's token-in token-out route: its shapes as published, its values as the model's."""

from __future__ import annotations

import base64
import io
import json

import httpx
import numpy as np
import pytest
from asking import noise_of
from cases import each, each_of

# vllm-project/vllm: token_in_token_out/protocol.py, GenerateResponseBase and GenerateChoiceBase, as 0.32 answers them.
ANSWER = {
    "request_id",
    "model",
    "created",
    "usage",
    "prompt_logprobs",
    "prompt_token_id_logprobs",
    "prompt_token_ids",
    "mm_placeholders",
    "metrics",
    "kv_transfer_params",
    "ec_transfer_params",
    "output_mode",
    "choices",
}
CHOICE = {
    "index",
    "logprobs",
    "finish_reason",
    "stop_reason",
    "token_ids",
    "routed_experts",
    "sampling_mask",
    "weight_versions",
}
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
    return spoken("vllm", scale_out=True, v2_runner=True, prompt_tokens_details=True)


def cached(told: dict) -> int:
    return told["usage"]["prompt_tokens_details"]["cached_tokens"]


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


@each("start", [None, 0, 2, len(PROMPT) - 2])
def test_candidates_are_scored_along_exactly_the_rows_after_the_start(client, row_of, start):
    """Row i scores the token at start + i + 1; a row off by one is another position's, and looks as good."""
    first = (start or 0) + 1
    ids = [[n % 7, 6, 0] for n in range(first, len(PROMPT))]
    fields = {} if start is None else {"prompt_logprob_start": start}
    scores = matrix(generate(client, prompt_logprob_token_ids=ids, **fields))
    assert scores.dtype == np.float32
    assert scores.shape == (len(PROMPT) - first, 3)
    for i, candidates in each_of(enumerate(ids)):
        assert scores[i] == pytest.approx(row_of(PROMPT[: first + i]).logprobs[candidates], abs=1e-6)


def test_short_rows_are_padded_and_no_token_scores_nothing(client):
    scores = matrix(generate(client, prompt_logprob_token_ids=[[1, 2, 3], [4], [-1, 5]], prompt_logprob_start=2))
    assert np.isneginf(scores).tolist() == [[False] * 3, [False, True, True], [True, False, True]]


def test_rows_of_the_prompt_may_be_asked_for_beside_candidates(client, row_of):
    told = generate(client, prompt_logprobs=2, prompt_logprob_token_ids=[[4], [4]], prompt_logprob_start=3)
    assert told["prompt_logprobs"][0] is None
    for n in each_of(range(1, len(PROMPT))):
        row = row_of(PROMPT[:n])
        shown = told["prompt_logprobs"][n]
        assert set(shown) == {str(i) for i in (*(i for i, _ in row.top(2)), PROMPT[n])}
        assert shown[str(PROMPT[n])]["logprob"] == row.logprobs[PROMPT[n]]
    assert matrix(told).ravel() == pytest.approx([row_of(PROMPT[:n]).logprobs[4] for n in (4, 5)], abs=1e-6)


# Prompts as a server with blocks of 32 answered them (0.32, V2): drafted after which prefix, cached, rows, candidates.
SEEN = [(200, 16, 192, 24, True), (64, 4, 64, 4, False), (64, 1, 64, 1, False), (31, 3, 0, 34, True)]


@each(("prefix", "drafted", "held", "num_rows", "scores"), SEEN)
def test_a_check_that_reads_the_cache_tells_only_the_rows_that_were_computed(
    spoken, row_of, prefix, drafted, held, num_rows, scores
):
    """The reply's length says where its rows begin: who counts from the prompt's start reads another position's."""
    client = spoken("vllm", scale_out=True, v2_runner=True, prompt_tokens_details=True, block_size=32)
    ids = [(n * n) % 7 for n in range(prefix + drafted)]
    generate(client, token_ids=ids[:prefix])
    asked = {"prompt_logprobs": 2, "prompt_logprob_token_ids": [[4]] * drafted, "prompt_logprob_start": prefix - 1}
    told = generate(client, token_ids=ids, skip_reading_prefix_cache=False, **asked)
    assert cached(told) == held
    first, *rows = told["prompt_logprobs"]
    assert (first, len(rows)) == (None, num_rows - 1)
    for n, row in each_of(enumerate(rows, start=held + 1), least=0):
        assert row[str(ids[n])]["logprob"] == pytest.approx(row_of(ids[:n]).logprobs[ids[n]])
    assert (told["prompt_token_id_logprobs"] is not None) == scores
    whole = generate(client, token_ids=ids, **asked)
    assert (cached(whole), len(whole["prompt_logprobs"])) == (0, len(ids))
    expected = [row_of(ids[:n]).logprobs[4] for n in range(prefix, prefix + drafted)]
    for reply in (told, whole) if scores else (whole,):
        assert matrix(reply).ravel() == pytest.approx(expected, abs=1e-6)


def test_without_scale_out_the_route_is_closed_whatever_is_asked(spoken):
    client = spoken("vllm", v2_runner=True)
    for content in (b'{"token_ids": [1], "sampling_params": {}}', b"{"):
        reply = client.post(PATH, content=content)
        assert (reply.status_code, reply.json()["error"]) == (403, {
            "message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
            "type": "PermissionDeniedError", "param": None, "code": 403,
        })  # fmt: skip


def test_the_first_runner_refuses_candidates_by_name(spoken):
    client = spoken("vllm", scale_out=True)
    params = {"prompt_logprob_token_ids": [[1], [2]]}
    reply = client.post(PATH, json={"token_ids": [1, 2, 3], "sampling_params": params})
    assert (reply.status_code, reply.json()["error"]) == (400, {
        "message": "prompt_logprob_token_ids requires the V2 model runner (VLLM_USE_V2_MODEL_RUNNER=1). "
        "(parameter=prompt_logprob_token_ids)",
        "type": "BadRequestError", "param": "prompt_logprob_token_ids", "code": 400,
    })  # fmt: skip
    assert generate(client, prompt_logprobs=1)["prompt_logprobs"][1] is not None


def test_the_first_runner_dies_of_a_check_that_reads_the_cache(spoken):
    """It tells rows that nobody computed. What follows finds no server; in this process, one that only says so."""
    client, asked = spoken("vllm", scale_out=True, block_size=2), {"prompt_logprobs": 1, "max_tokens": 1}
    body = {"token_ids": PROMPT, "sampling_params": asked | {"skip_reading_prefix_cache": False}}
    assert client.post(PATH, json=body).status_code == 200  # nothing was cached yet, so every row is a computed one
    reply = client.post(PATH, json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "InternalServerError")
    assert reply.json()["error"]["message"].startswith("EngineCore encountered an issue.")
    assert client.get("/health").status_code == 503
    for path in ("/version", "/v1/models"):
        assert client.get(path).status_code == 500
    assert client.post("/v1/completions", json={"prompt": [1]}).status_code == 500


@pytest.mark.slow
def test_a_server_that_died_is_gone(start_server):
    server = start_server("--enable-scale-out", "--block-size", "2")
    body = {"token_ids": PROMPT, "sampling_params": {"prompt_logprobs": 1, "skip_reading_prefix_cache": False}}
    assert server.client.post(PATH, json=body).status_code == 200
    assert server.client.post(PATH, json=body).status_code == 500
    assert server.process.wait(10) == 1
    with pytest.raises(httpx.TransportError):
        server.client.get("/version")
    assert "died" in server.stderr


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
    assert closing["choices"] == []
    assert closing["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@each(
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
def test_the_served_models_scores_are_its_own(start_server, oracle, prompt):
    ids = [[(7 * n) % oracle.weights.num_tokens, prompt[n]] for n in range(5, len(prompt))]
    server = start_server("--enable-scale-out", "--v2-runner")
    told = generate(server.client, token_ids=prompt, prompt_logprob_token_ids=ids, prompt_logprob_start=4)
    for n, scores in each_of(enumerate(matrix(told), start=5)):
        row = oracle.row(prompt[:n])
        for token, score in each_of(zip(ids[n - 5], scores, strict=True)):
            assert abs(score - row.logprobs[token]) <= noise_of(row, token)
