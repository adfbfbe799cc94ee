"""vLLM's dialect as pure functions: golden bodies, and every row checked before it is believed.

The shapes are those of vLLM 0.33: ``vllm/entrypoints/openai/completion/protocol.py`` for the request,
``.../completion/serving.py`` and ``vllm/logprobs.py`` for the reply.
"""

from __future__ import annotations

import copy
import json
import math
from functools import partial

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from wordlist import opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.bounds import parse
from hybrid.cloud.dialects import vllm
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.reading import read_event
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import Dense
from hybrid.types import CloudUsage, Sampling

SCORE = ScoreQuestion(prefix=(5, 6), span=(7, 8), after=True, top_k=2)
WRITE = WriteQuestion((5, 6), 4, 2, Sampling(temperature=0.7, top_k=40, top_p=0.9, seed=11), ban=frozenset({9, 3}))


def read_chunk(reply, top_k):
    return read_event(partial(vllm.read_choice, top_k=top_k), reply)


def entry(logprob, rank, text="x"):
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


REPLY = {
    "choices": [
        {
            "index": 0,
            "text": "d",
            "finish_reason": "length",
            "prompt_logprobs": [
                None,
                {"6": entry(-0.1, 1)},
                {"7": entry(-0.5, 1, "a"), "1": entry(-1.5, 2, "b")},
                {"2": entry(-0.3, 1), "3": entry(-2.0, 2), "8": entry(-6.0, 40, "c")},
            ],
            "token_ids": [4],
            "logprobs": {
                "tokens": ["token_id:4"],
                "token_logprobs": [-0.2],
                "top_logprobs": [{"token_id:4": -0.2, "token_id:0": -2.5}],
                "text_offset": [0],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 4,
        "completion_tokens": 1,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 3},
    },
}


def changed(change):
    reply = copy.deepcopy(REPLY)
    change(reply, reply["choices"][0])
    return reply


def test_a_score_asks_for_the_rows_of_the_prompt_and_one_token():
    assert vllm.score_body(SCORE, "m", None) == {
        "model": "m",
        "prompt": [5, 6, 7, 8],
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 2,
        "prompt_logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_an_empty_span_asks_for_no_rows_of_the_prompt_so_that_the_prefix_cache_serves():
    """vLLM sets skip_reading_prefix_cache for every request with prompt_logprobs."""
    body = vllm.score_body(ScoreQuestion((5,), (), True, 2), "m", "salt")
    assert "prompt_logprobs" not in body
    assert body["cache_salt"] == "salt"


def test_a_write_sends_every_sampling_parameter_and_its_limit():
    """What is not sent comes from the server's generation config, not from the user."""
    asked, _ = opened(vllm.Vllm(DialectConfig("m")).write(WRITE))
    assert asked.stream == "to done"
    assert asked.body == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 4,
        "logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.0,
        "top_k": 40,
        "seed": 11,
        "logit_bias": {"3": -100.0, "9": -100.0},
    }


def over_the_wire(reply):
    """The reply as the wire hands it on: rows that may not be due are left as they came."""
    return parse(json.dumps(reply).encode(), "http://here", vllm.CompletionsScoreReply)


@each("reply", [REPLY, over_the_wire(REPLY)], ids=["parsed", "over the wire"])
def test_scores_are_the_rows_of_the_span_and_the_row_after(reply):
    scores = vllm.read_scores(SCORE, reply)
    first, second, after = scores.rows
    assert first.ids.tolist() == [7, 1]
    assert second.ids.tolist() == [2, 3, 8]
    assert second.tail_max == pytest.approx(math.exp(-2.0)), "the appended actual token does not lower the cap"
    assert after.ids.tolist() == [4, 0]
    assert scores.usage == CloudUsage(4, 1, 3)
    assert scores.pieces[7] == "a"
    assert scores.pieces[8] == "c"


def test_the_appended_token_of_a_generated_row_does_not_lower_the_cap():
    def append(_, choice):
        choice["logprobs"]["top_logprobs"] = [{"token_id:1": -0.4, "token_id:0": -2.5, "token_id:4": -7.0}]
        choice["logprobs"]["token_logprobs"] = [-7.0]

    row = vllm.read_scores(SCORE, changed(append)).rows[2]
    assert row.ids.tolist() == [1, 0, 4]
    assert row.tail_max == pytest.approx(math.exp(-2.5))


@each("field", ["usage", "something_else"])
def test_a_reply_that_nests_without_end_is_refused_like_any_other(field):
    """Parsers give up by running out of stack, each with an exception of its own."""
    deep = b'{"choices": [], "%s": %s1%s}' % (field.encode(), b"[" * 100_000, b"]" * 100_000)
    with pytest.raises(BadReply):
        vllm.read_scores(SCORE, parse(deep, "http://here", vllm.CompletionsScoreReply))


def test_the_rows_of_the_prefix_are_not_parsed():
    """After 8,000 tokens they are 12 MB, and parsing them costs a third of a second."""
    assert all(isinstance(row, Raw) for row in over_the_wire(REPLY)["choices"][0]["prompt_logprobs"])


def set_rows(value):
    return lambda _, choice: choice.update(prompt_logprobs=value)


def set_entry(token, **values):
    return lambda _, choice: choice["prompt_logprobs"][3][token].update(values)


@each(
    ("change", "error"),
    [
        (set_rows(None), MissingCapability),
        (set_rows([]), BadReply),
        (set_rows(REPLY["choices"][0]["prompt_logprobs"][:3]), BadReply),
        (set_rows([*REPLY["choices"][0]["prompt_logprobs"][:3], None]), BadReply),
        (set_rows([*REPLY["choices"][0]["prompt_logprobs"][:3], {}]), BadReply),
        (set_rows([*REPLY["choices"][0]["prompt_logprobs"][:3], {"2": entry(-0.3, 1)}]), BadReply),
        (set_rows([*REPLY["choices"][0]["prompt_logprobs"][:3], {"8": entry(0.0, 40)}]), BadReply),
        (set_entry("2", logprob=float("nan")), BadReply),
        (set_entry("2", logprob=float("inf")), BadReply),
        (set_entry("2", logprob="-0.3"), BadReply),
        (set_entry("2", logprob=None), BadReply),
        (set_entry("2", logprob=True), BadReply),
        (set_entry("2", logprob=0.5), BadReply),
        (set_entry("3", logprob=-0.1), BadReply),
        (set_entry("2", rank=None), BadReply),
        (lambda _, c: c.update(token_ids=[4, 5]), BadReply),
        (lambda _, c: c.update(token_ids=["4"]), BadReply),
        (lambda _, c: c.update(token_ids=None), MissingCapability),
        (lambda _, c: c.update(logprobs=None), MissingCapability),
        (lambda _, c: c["logprobs"].update(top_logprobs=[]), BadReply),
        (lambda _, c: c["logprobs"].update(top_logprobs=[{}]), BadReply),
        (lambda _, c: c["logprobs"].update(top_logprobs=[None]), BadReply),
        (lambda _, c: c["logprobs"].update(top_logprobs=[{" the": -0.1}]), MissingCapability),
        (lambda r, _: r.update(choices=[]), BadReply),
        (lambda r, _: r.update(choices=None), BadReply),
        (lambda _, c: c["logprobs"].update(token_logprobs=[None]), BadReply),
        (lambda _, c: c["logprobs"].update(top_logprobs=5), MissingCapability),
        (lambda _, c: c["logprobs"].update(top_logprobs=[{"token_id:1": None}]), BadReply),
        (lambda _, c: c["logprobs"].update(top_logprobs=[{"token_id:x": -1.0}]), BadReply),
        (set_entry("2", rank=float("inf")), BadReply),
        (set_entry("2", logprob=-(10**400)), BadReply),
        (set_rows([*REPLY["choices"][0]["prompt_logprobs"][:3], {"8": 5}]), BadReply),
    ],
)
def test_a_row_that_cannot_be_believed_is_refused(change, error):
    """Missing is missing, never certain; each of these was seen from a real server or is one bit away from it."""
    with pytest.raises(error):
        vllm.read_scores(SCORE, changed(change))
    with pytest.raises(error):
        vllm.read_scores(SCORE, over_the_wire(changed(change)))


def test_a_probability_of_zero_is_not_listed_rather_than_minus_9999():
    row = vllm.read_scores(SCORE, changed(set_entry("3", logprob=-9999.0))).rows[1]
    assert row.ids.tolist() == [2, 8]


def chunk(**choice):
    return {"choices": [{"index": 0, "text": "", "finish_reason": None} | choice]}


def test_a_chunk_holds_tokens_with_their_rows():
    logprobs = {"token_logprobs": [-0.2], "top_logprobs": [{"token_id:4": -0.2, "token_id:0": -2.5}]}
    read = read_chunk(chunk(text="d", token_ids=[4], logprobs=logprobs, finish_reason="stop"), 2)
    assert (read.ids, read.text, read.finish, read.usage) == ((4,), "d", "stop", None)
    assert read.rows[0].best == 4


def test_the_closing_chunk_holds_the_usage():
    read = read_chunk({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}, 2)
    assert (read.ids, read.usage) == ((), CloudUsage(3, 2, 0))


@each(
    ("reply", "error"),
    [
        ({"error": {"message": "worker died", "code": 500}}, BadReply),
        (chunk(text="d"), MissingCapability),
        (chunk(text="d", token_ids=[4]), MissingCapability),
        (chunk(text="d", token_ids=[4], logprobs={"token_logprobs": [], "top_logprobs": []}), BadReply),
        (chunk(token_ids=[], finish_reason="content_filter"), BadReply),
    ],
)
def test_a_chunk_that_cannot_be_believed_is_refused(reply, error):
    with pytest.raises(error):
        read_chunk(reply, 2)


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(0, 11))
def test_reading_a_row_gives_back_what_the_server_knew(seed, k, actual):
    """Server and client write and read the wire apart from each other; here one row goes all the way round."""
    from server_stub import wire
    from server_stub.ask import Row

    dense = Dense.from_logits(np.random.default_rng(seed).standard_normal(12) * 3)
    served = wire.prompt_row(Row.of(dense, k, actual), k, actual, {i: str(i) for i in range(12)})
    reply = changed(set_rows([None, None, served, served]))
    question = ScoreQuestion((5, 6), (actual, actual), False, k)
    row = vllm.read_scores(question, reply).rows[0]
    assert dict(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True)) == pytest.approx(
        {int(i): float(dense.logprobs[i]) for i in {actual, *(t for t, _ in dense.top(k))}}
    )
    assert row.tail_max == pytest.approx(math.exp(dense.top(k)[-1][1]))
