"""vLLM's completions: the reading of requests and writing of replies, without a socket or a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.prob import Dense
from server_stub import wire
from server_stub.ask import Row
from server_stub.dialects.vllm_completions import CompletionRequest, read_request
from server_stub.wire import WireError

LOGITS = st.lists(st.floats(-30, 30), min_size=2, max_size=12).map(np.array)
WITH_TOKEN = LOGITS.flatmap(lambda logits: st.tuples(st.just(logits), st.integers(0, logits.size - 1)))


def read(**fields) -> CompletionRequest:
    return read_request(json.dumps({"prompt": [1, 2]} | fields).encode(), 20)


def refused(raw: bytes) -> dict:
    with pytest.raises(WireError) as caught:
        read_request(raw, 20)
    assert caught.value.status == 400
    return caught.value.body()["error"]


@each(
    "fields",
    [
        {"prompt": None},
        {"prompt": ""},
        {"prompt": 5},
        {"prompt": [-1]},
        {"prompt": ["a"]},
        {"prompt": [[1, 2]]},
        {"max_tokens": -1},
        {"max_tokens": 0},
        {"max_tokens": "many"},
        {"max_tokens": 1.5},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -2},
        {"seed": "x"},
        {"stop": 5},
        {"stop": [1]},
        {"stream": "perhaps"},
        {"stream_options": 5},
        {"logprobs": -1},
        {"logprobs": 21},
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"1": "x"}},
        {"logit_bias": {"1": float("inf")}},
        {"logit_bias": {"1": float("nan")}},
        {"echo": "x"},
        {"return_token_ids": 7},
        {"return_tokens_as_token_ids": 7},
        {"add_special_tokens": 7},
        {"cache_salt": ""},
        {"cache_salt": 5},
        {"model": 5},
    ],
    ids=str,
)
def test_a_bad_field_is_named(fields):
    error = refused(json.dumps({"prompt": [1, 2]} | fields).encode())
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == next(iter(fields))
    assert error["type"] == "BadRequestError"
    assert error["code"] == 400
    assert "\n" not in error["message"]


@each("raw", [b"", b"{", b"null", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800"}'])
def test_a_body_that_is_no_object_is_refused(raw):
    assert set(refused(raw)) == {"message", "type", "param", "code"}


def test_prompt_rows_cannot_be_streamed():
    error = refused(json.dumps({"prompt": [1], "stream": True, "prompt_logprobs": 1}).encode())
    assert error["param"] == "prompt_logprobs"


def test_a_prompt_is_needed():
    assert refused(b"{}")["param"] == "prompt"


def test_the_limit_on_log_probabilities_is_the_servers():
    assert read_request(b'{"prompt": [1], "logprobs": 3}', 3).logprobs == 3
    with pytest.raises(WireError, match="greater than max allowed: 2"):
        read_request(b'{"prompt": [1], "logprobs": 3}', 2)


def test_unknown_fields_are_ignored_and_defaults_are_vllms():
    request = read(n=1, user="me", best_of=1)
    assert (request.max_tokens, request.temperature, request.top_p, request.top_k) == (16, 1.0, 1.0, 0)
    assert (request.logprobs, request.prompt_logprobs, request.echo, request.add_special_tokens) == (
        None,
        None,
        False,
        True,
    )


def test_no_tokens_may_be_asked_for_with_echo():
    assert read(max_tokens=0, echo=True).max_tokens == 0


def test_one_stop_string_is_a_list_of_one():
    assert read(stop="x").stops == ("x",)
    assert read(stop=["x", "y"]).stops == ("x", "y")
    assert read().stops == ()


@each(
    ("fields", "k"),
    [
        ({}, None),
        ({"logprobs": 3}, None),
        ({"logprobs": 3, "echo": True}, 3),
        ({"prompt_logprobs": 2}, 2),
        ({"prompt_logprobs": 2, "logprobs": 3, "echo": True}, 2),
        ({"prompt_logprobs": 0}, 0),
    ],
)
def test_the_prompt_is_scored_when_its_rows_were_asked_for(fields, k):
    """What is scored is charged in full, so asking by accident costs money."""
    assert read(**fields).scores == k


@given(case=WITH_TOKEN, k=st.integers(0, 6))
def test_a_prompt_row_holds_the_best_k_and_the_actual_token_with_true_ranks(case, k):
    logits, actual = case
    dense = Dense.from_logits(logits)
    row = wire.prompt_row(Row.of(dense, 6, actual), k, actual, {i: f"<{i}>" for i in range(logits.size)})
    best = [i for i, _ in dense.top(k)]
    assert set(row) == {str(i) for i in {*best, actual}}
    for token, shown in each_of(row.items()):
        assert set(shown) == {"logprob", "rank", "decoded_token"}
        assert shown["logprob"] == dense.logprobs[int(token)]
        assert shown["decoded_token"] == f"<{token}>"
    assert [row[str(i)]["rank"] for i in best] == list(range(1, len(best) + 1))
    above = int((dense.logprobs > dense.logprobs[actual]).sum())
    equal = int((dense.logprobs == dense.logprobs[actual]).sum())
    assert above < row[str(actual)]["rank"] <= above + equal


@given(case=WITH_TOKEN, k=st.integers(0, 6))
def test_legacy_arrays_hold_up_to_k_and_one_entries(case, k):
    logits, actual = case
    dense = Dense.from_logits(logits)
    text = {i: "ab"[: i % 3] for i in range(logits.size)}
    shown = wire.logprobs([None, Row.of(dense, 6, actual)], [1, actual], k, text, as_ids=True, offset=10)
    assert shown["tokens"] == ["token_id:1", f"token_id:{actual}"]
    assert shown["token_logprobs"] == [None, dense.logprobs[actual]]
    assert shown["top_logprobs"][0] is None
    expected = {i for i, _ in dense.top(k)} | {actual}
    assert shown["top_logprobs"][1] == {f"token_id:{i}": dense.logprobs[i] for i in expected}
    assert shown["text_offset"] == [10, 10 + len("token_id:1")]


def test_tokens_of_one_text_collapse_unless_ids_are_asked_for():
    """The reason why a client always asks for ids."""
    row = Row.of(Dense.from_probs(np.array([0.5, 0.3, 0.2])), 3, 2)
    text = {0: "a", 1: "a", 2: "b"}
    assert len(wire.logprobs([row], [2], 3, text, as_ids=False, offset=0)["top_logprobs"][0]) == 2
    assert len(wire.logprobs([row], [2], 3, text, as_ids=True, offset=0)["top_logprobs"][0]) == 3


def test_a_probability_of_zero_is_the_number_that_vllm_sends():
    assert wire.number(-np.inf) == -9999.0
    assert wire.number(-0.5) == -0.5
    row = Row.of(Dense.from_probs(np.array([1.0, 0.0])), 2, 1)
    assert wire.prompt_row(row, 0, 1, {0: "", 1: ""})["1"]["logprob"] == -9999.0


@given(case=WITH_TOKEN, other=st.integers(0, 11), size=st.integers(0, 4))
def test_a_kept_row_says_what_it_does_not_know(case, other, size):
    """Rows are kept for the next request, whose next token may be another one."""
    logits, actual = case
    dense = Dense.from_logits(logits)
    row = Row.of(dense, size, actual)
    assert row.knows(actual)
    if row.knows(other):
        assert row.actual(other)[0] == dense.logprobs[other]
    else:
        with pytest.raises(KeyError):
            row.actual(other)


# vllm-project/vllm: openai/completion/protocol.py, CompletionResponse and CompletionResponseChoice, all of whose keys
# are told; of a stream's events those that were set. So does vLLM 0.32's own server.
CHOICE = {"index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"}
BODY = {"id", "object", "created", "model", "choices"}
MORE = {"service_tier", "system_fingerprint", "usage", "kv_transfer_params", "ec_transfer_params", "metrics"}


def test_a_whole_answer_has_every_key_and_nulls_for_what_was_not_asked_for(spoken):
    body = spoken("vllm").post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 2}).json()
    assert set(body) == BODY | MORE
    [choice] = body["choices"]
    assert set(choice) == CHOICE | {"prompt_logprobs", "routed_experts"}
    assert {choice[name] for name in ("logprobs", "token_ids", "prompt_token_ids", "prompt_logprobs")} == {None}


@each("usage", [False, True])
def test_an_event_has_the_keys_that_were_set_and_the_last_word_the_servers_mark(spoken, usage):
    fields = {"prompt": [1, 2], "max_tokens": 3, "stream": True, "return_token_ids": True}
    more = {"stream_options": {"include_usage": True}} if usage else {}
    *events, _, _ = spoken("vllm").post("/v1/completions", json=fields | more).text.split("\n\n")
    told = [json.loads(event.removeprefix("data: ")) for event in events]
    *early, last = told
    assert {frozenset(event) for event in early} == {frozenset(BODY)}
    assert set(last) == BODY | {"system_fingerprint"} | ({"usage"} if usage else set())
    choices = [choice for event in told for choice in event["choices"]]
    assert [set(choice) for choice in choices] == [CHOICE] * 3
    assert [choice["prompt_token_ids"] for choice in choices] == [[1, 2], None, None]
