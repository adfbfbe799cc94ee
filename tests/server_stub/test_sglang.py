"""SGLang's native route: its shapes as published, its values as the model's, its habits as a client meets them."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest
from asking import noise_of
from cases import each, each_of

# The keys of an answer, from sgl-project/sglang: tokenizer_manager.py, _handle_batch_output, convert_logprob_style and
# add_logprob_to_meta_info, and of the replies of its own server. What a clock says is left out.
META = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "weight_version",
    "num_retractions",
    "reasoning_tokens",
    "completion_tokens",
    "cached_tokens",
    "cached_tokens_details",
    "dp_rank",
    "weight_versions",
}
LENGTH = "output_token_logprobs_length"
LISTS = {f"{side}_{what}_logprobs" for side in ("input", "output") for what in ("token", "top", "token_ids")}
PROMPT = [1, 2, 0, 5, 3, 1]


def generate(client, *, params=None, **fields) -> dict:
    body = {"sampling_params": {"temperature": 0, "max_new_tokens": 3} | (params or {})} | fields
    reply = client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def entries(row, ids) -> list[list]:
    """As SGLang lists tokens: log-probability, id, text."""
    return [[float(row.logprobs[i]), i, None] for i in ids]


@pytest.fixture
def client(spoken):
    return spoken("sglang")


def test_an_answer_has_the_published_keys(client):
    plain = generate(client, input_ids=PROMPT)
    assert set(plain) == {"text", "output_ids", "meta_info"}
    assert set(plain["meta_info"]) == META
    full = generate(
        client, input_ids=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[4]
    )
    assert set(full["meta_info"]) == META | LISTS | {LENGTH}
    bare = generate(client, input_ids=PROMPT, return_logprob=True)
    assert set(bare["meta_info"]) == META | {"input_token_logprobs", "output_token_logprobs", LENGTH}
    assert bare["meta_info"][LENGTH] == 3
    assert bare["meta_info"]["input_token_logprobs"] == []


@each("start", [0, 2, len(PROMPT) - 1])
def test_rows_of_the_prompt_are_the_models_and_the_first_is_null(client, row_of, start):
    """``logprob_start_len = N - 1`` gives a value for the token at N: the boundary that loses one token if missed."""
    meta = generate(
        client,
        input_ids=PROMPT,
        return_logprob=True,
        logprob_start_len=start,
        top_logprobs_num=3,
        token_ids_logprob=[6, 0],
    )["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, PROMPT[start], None]
    assert meta["input_top_logprobs"][0] is None
    assert meta["input_token_ids_logprobs"][0] is None
    lengths = {len(meta[f"input_{what}_logprobs"]) for what in ("token", "top", "token_ids")}
    assert lengths == {len(PROMPT) - start}
    for n in each_of(range(start + 1, len(PROMPT)), least=0):
        row, at = row_of(PROMPT[:n]), n - start
        assert meta["input_token_logprobs"][at] == entries(row, [PROMPT[n]])[0]
        assert meta["input_top_logprobs"][at] == entries(row, [i for i, _ in row.top(3)])
        assert meta["input_token_ids_logprobs"][at] == entries(row, [6, 0])


@each("prompt", [PROMPT, PROMPT[:1]])
def test_where_nothing_is_written_the_row_after_the_prompt_is_told_all_the_same(client, row_of, prompt):
    """As the real server's (0.5.23); nothing is charged for it."""
    asked = {"input_ids": prompt, "return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [6]}
    told = generate(client, params={"max_new_tokens": 0}, **asked)
    meta, row = told["meta_info"], row_of(prompt)
    assert (told["text"], told["output_ids"], meta["output_token_logprobs"]) == ("", [], [])
    assert meta["output_top_logprobs"] == [entries(row, [i for i, _ in row.top(3)])]
    assert meta["output_token_ids_logprobs"] == [entries(row, [6])]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(prompt), 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert "output_top_logprobs" not in generate(client, params={"max_new_tokens": 0}, input_ids=prompt)["meta_info"]


def test_rows_of_what_is_written_are_the_models(client, row_of):
    told = generate(client, input_ids=PROMPT, return_logprob=True, top_logprobs_num=2, token_ids_logprob=[6])
    prefix, meta = list(PROMPT), told["meta_info"]
    assert len(told["output_ids"]) == 3
    for n, token in each_of(enumerate(told["output_ids"])):
        row = row_of(prefix)
        assert token == row.best
        assert meta["output_token_logprobs"][n] == entries(row, [token])[0]
        assert meta["output_top_logprobs"][n] == entries(row, [i for i, _ in row.top(2)])
        assert meta["output_token_ids_logprobs"][n] == entries(row, [6])
        prefix.append(token)


def test_a_top_list_never_grows_by_the_token_itself(client, row_of):
    """Unlike vLLM's: a client that takes the last entry for the actual token reads another one."""
    worst = int(np.argmin(row_of(PROMPT).logprobs))
    meta = generate(
        client, input_ids=[*PROMPT, worst], return_logprob=True, logprob_start_len=len(PROMPT) - 1, top_logprobs_num=2
    )["meta_info"]
    assert len(meta["input_top_logprobs"][1]) == 2
    assert worst not in [token for _, token, _ in meta["input_top_logprobs"][1]]


def test_more_may_be_asked_for_than_other_families_give(spoken):
    """There is no limit in the server; the vocabulary is one, which it does not survive to be asked past."""
    client = spoken("sglang", max_logprobs=2)
    meta = generate(client, input_ids=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=7)["meta_info"]
    assert {len(row) for row in [*meta["input_top_logprobs"][1:], *meta["output_top_logprobs"]]} == {7}


def test_written_rows_are_told_after_the_temperature_and_prompt_rows_before_it(client, row_of):
    """A probe with temperature 2 finds out; a client that takes these for raw computes another divergence."""
    told = generate(
        client,
        input_ids=PROMPT,
        params={"temperature": 2, "sampling_seed": 1, "max_new_tokens": 1},
        return_logprob=True,
        logprob_start_len=len(PROMPT) - 2,
    )
    [[logprob, token, _]] = told["meta_info"]["output_token_logprobs"]
    halved = row_of(PROMPT).logprobs / 2
    assert logprob == pytest.approx(halved[token] - np.log(np.exp(halved).sum()), abs=1e-6)
    raw = row_of(PROMPT[:-1]).logprobs[PROMPT[-1]]
    assert told["meta_info"]["input_token_logprobs"][1][0] == pytest.approx(raw)


def test_the_prefix_is_cached_up_to_where_rows_start(client):
    """Why a check from N - 1 is cheap and one from 0 is not."""
    fields = {"input_ids": PROMPT, "return_logprob": True}
    generate(client, input_ids=PROMPT, params={"max_new_tokens": 1})
    cached = [
        generate(client, params={"max_new_tokens": 1}, **fields, logprob_start_len=n)["meta_info"]["cached_tokens"]
        for n in (0, 3, 5)
    ]
    assert cached == [0, 3, 5]
    assert generate(client, input_ids=PROMPT)["meta_info"]["cached_tokens"] == 5


def test_salts_do_not_share_a_cache(client):
    told = [generate(client, input_ids=PROMPT, cache_salt=salt)["meta_info"]["cached_tokens"] for salt in "aab"]
    assert told == [0, 5, 0]


def test_texts_stand_in_rows_only_where_they_were_asked_for(client):
    fields = {"text": "w1 w2 w3", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    assert [text for _, _, text in generate(client, **fields)["meta_info"]["input_token_logprobs"]] == [None] * 3
    meta = generate(client, return_text_in_logprobs=True, **fields)["meta_info"]
    assert [text for _, _, text in meta["input_token_logprobs"]] == ["w1 ", "w2 ", "w3 "]


def test_a_stream_repeats_everything_so_far(client):
    """``incremental_streaming_output`` is off by default: who adds the pieces up writes the text many times over."""
    body = {
        "input_ids": PROMPT,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        "return_logprob": True,
        "top_logprobs_num": 1,
        "stream": True,
    }
    *events, done = client.post("/generate", json=body).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    whole = client.post("/generate", json=body | {"stream": False}).json()
    assert [len(event["output_ids"]) for event in told] == [1, 2, 3, 4]
    for n, event in each_of(enumerate(told, start=1)):
        assert event["output_ids"] == whole["output_ids"][:n]
        assert whole["text"].startswith(event["text"])
        for name in ("output_token_logprobs", "output_top_logprobs"):
            assert event["meta_info"][name] == whole["meta_info"][name][:n]
    assert [event["meta_info"]["finish_reason"] for event in told[:-1]] == [None] * 3
    assert told[-1]["text"] == whole["text"]
    assert told[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


def test_why_an_answer_ended_is_told_with_what_ended_it(client):
    """schedule_batch.py: FINISH_LENGTH and FINISH_MATCHED_STR."""
    text = generate(client, input_ids=PROMPT)["text"]
    stop = text.split()[1]
    told = generate(client, input_ids=PROMPT, params={"stop": stop})
    assert told["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert told["text"] == text[: text.index(stop)]


def test_no_new_tokens_may_be_asked_for(client):
    told = generate(client, input_ids=PROMPT, params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0)
    assert (told["text"], told["output_ids"], told["meta_info"]["output_token_logprobs"]) == ("", [], [])
    assert len(told["meta_info"]["input_token_logprobs"]) == len(PROMPT)


def test_without_a_limit_as_much_is_written_as_there_is_room_for(client):
    reply = client.post("/generate", json={"input_ids": [1] * 3990}).json()
    assert len(reply["output_ids"]) == 10


@each(
    "body",
    [
        {},
        {"input_ids": []},
        {"input_ids": [1], "logprob_start_len": 2, "return_logprob": True},
        {"input_ids": [1], "token_ids_logprob": [7], "return_logprob": True},
        {"input_ids": [1] * 4000},
        {"input_ids": [1] * 3999, "sampling_params": {"max_new_tokens": 2}},
        {"input_ids": [1], "sampling_params": {"temperature": -1}},
    ],
    ids=lambda body: str(body)[:60],
)
def test_what_is_refused_is_told_in_sglangs_shape(client, body):
    reply = client.post("/generate", json=body)
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    assert set(reply.json()["error"]) == {"message"}


OVERFLOW = (
    "Requested token count exceeds the model's maximum context length of 4000 tokens. You requested a total of 4001 "
    "tokens: 3999 tokens from the input messages and 2 tokens for the completion. Please reduce the number of tokens "
    "in the input messages or the completion to fit within the limit."
)
LONG = "The input (4000 tokens) is longer than the model's context length (4000 tokens)."


@each(
    ("body", "message"),
    [
        ({"input_ids": [1] * 3999, "sampling_params": {"max_new_tokens": 2}}, OVERFLOW),
        ({"input_ids": [1] * 4000}, LONG),
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({}, "Either text, input_ids or input_embeds should be provided."),
        (
            {"input_ids": [1], "token_ids_logprob": [7], "return_logprob": True},
            "token_ids_logprob contains out-of-vocabulary token id 7; valid range is [0, 7).",
        ),
    ],
    ids=["overflow", "too long", "empty", "nothing", "candidate"],
)
def test_a_stream_is_refused_inside_with_more_words(client, body, message):
    """As 0.5.23's own server does: status 200, one event whose object has more keys than the whole refusal's."""
    assert client.post("/generate", json=body).json() == {"error": {"message": message}}
    reply = client.post("/generate", json=body | {"stream": True})
    assert reply.status_code == 200
    event, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    more = {"type": "invalid_request_error", "code": 400, "retryable": False}
    assert json.loads(event.removeprefix("data: ")) == {"error": {"message": message} | more}


FATAL = [
    {"input_ids": [1, 7]},
    {"input_ids": [-1]},
    {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 8},
    {"input_ids": [1, 2], "return_logprob": True, "logprob_start_len": -2},
]


@pytest.mark.parametrize("body", FATAL, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_what_sglangs_front_lets_through_ends_the_server(client, body, stream):
    assert generate(client, input_ids=[1, 6])
    assert client.post("/generate", json=body | {"stream": stream}).status_code == 500
    assert client.post("/generate", json={"input_ids": [1]}).status_code == 500
    assert client.get("/health").status_code == 503


@pytest.mark.slow
def test_a_server_that_died_answers_nothing_any_more(start_server):
    server = start_server("--dialect", "sglang")
    assert server.client.post("/generate", json={"input_ids": [1]}).status_code == 200
    for _ in range(2):
        with pytest.raises(httpx.TransportError):
            server.client.post("/generate", json={"input_ids": [10**6]})
    assert server.process.wait(10) == 1


def test_rows_of_what_is_written_are_told_after_the_bias(client, row_of):
    """A raw row read as this one, or the other way round, is another distribution."""
    worst, row = int(np.argmin(row_of(PROMPT).logprobs)), row_of(PROMPT)
    biased = row.logprobs + np.where(np.arange(7) == worst, 3.0, 0.0)
    biased -= np.log(np.exp(biased).sum())
    params = {"max_new_tokens": 1, "logit_bias": {str(worst): 3.0}}
    asked = {"return_logprob": True, "logprob_start_len": len(PROMPT) - 2, "top_logprobs_num": 7}
    meta = generate(client, input_ids=PROMPT, params=params, **asked)["meta_info"]
    [told] = meta["output_top_logprobs"]
    assert {token: logprob for logprob, token, _ in told} == pytest.approx(dict(enumerate(biased)), abs=1e-6)
    raw = row_of(PROMPT[:-1])
    assert meta["input_top_logprobs"][1] == entries(raw, [i for i, _ in raw.top(7)])


def test_the_cache_keeps_every_sequence_and_not_one_a_slot(client):
    """Seen on the real one: of several conversations in turn, each is cached but for its last token."""
    talks = [[n] * 3 + PROMPT for n in (1, 2, 3)]
    told = [generate(client, input_ids=ids, params={"max_new_tokens": 1})["meta_info"] for ids in (*talks, *talks)]
    assert [meta["cached_tokens"] for meta in told] == [0, 0, 0, 8, 8, 8]
    assert [meta["cached_tokens_details"] for meta in told][2:4] == [None, {"device": 8, "host": 0}]


def test_the_words_of_a_text_are_told(client):
    """Its own /tokenize; a client compares vocabularies with it."""
    for path in ("/tokenize", "/v1/tokenize"):
        told = client.post(path, json={"model": "m", "prompt": "w3 w1 ", "add_special_tokens": False})
        assert told.json() == {"tokens": [3, 1], "count": 2, "max_model_len": 4000}
    several = client.post("/tokenize", json={"prompt": ["w3 ", "w1 w2 "]}).json()
    assert several == {"tokens": [[3], [1, 2]], "count": [1, 2], "max_model_len": 4000}
    assert client.post("/tokenize", json={"prompt": None}).status_code == 400


def test_the_server_tells_of_itself(client):
    """http_server.py: get_model_info and get_server_info."""
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("m", "sglang", 4000)
    for path in ("/get_model_info", "/model_info"):
        told = client.get(path).json()
        assert (told["model_path"], told["is_generation"]) == ("m", True)
    for path in ("/get_server_info", "/server_info"):
        assert client.get(path).json()["incremental_streaming_output"] is False
    missing = client.post("/v1/completions", json={"prompt": [1]})
    assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})


def test_the_request_is_named_by_its_rid_and_charged(client):
    told = generate(client, input_ids=PROMPT, rid="mine")
    assert told["meta_info"]["id"] == "mine"
    [charge] = client.get("/v1/charges").json()["data"]
    assert charge == {"id": "mine", "prompt_tokens": 6, "cached_tokens": 0, "completion_tokens": 3}


def test_without_log_probabilities_there_are_none(spoken):
    client = spoken("sglang", logprobs=False)
    told = generate(client, input_ids=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    assert set(told["meta_info"]) == META


@pytest.mark.slow
def test_the_served_models_rows_are_its_own(start_server, oracle, prompt):
    server = start_server("--dialect", "sglang")
    told = generate(server.client, input_ids=prompt, return_logprob=True, logprob_start_len=4, top_logprobs_num=40)
    meta = told["meta_info"]
    assert len(meta["input_token_logprobs"]) == len(prompt) - 4
    for n in each_of(range(5, len(prompt))):
        row = oracle.row(prompt[:n])
        for logprob, token, _ in [meta["input_token_logprobs"][n - 4], *meta["input_top_logprobs"][n - 4]]:
            noise = noise_of(row, token)
            assert abs(logprob - row.logprobs[token]) <= noise
        assert len(meta["input_top_logprobs"][n - 4]) == 40
    assert server.stderr == ""
