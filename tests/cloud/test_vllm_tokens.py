"""vLLM's ``/inference/v1/generate`` as pure functions.

Bodies: ``GenerateRequest`` (vLLM 0.33, ``vllm/entrypoints/scale_out/token_in_token_out/protocol.py``) and
``SamplingParams`` (``vllm/sampling_params.py``); candidates as ``docs/training/prompt_token_id_logprobs.md`` has them.
Replies: ``tests/server_stub/golden/vllm-generate.json``.
"""

from __future__ import annotations

import base64
import copy
import io
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import each
from wordlist import able, opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.reading import read_event
from hybrid.cloud.dialects.vllm_tokens import VllmTokens, read_choice, read_scores, score_body, write_body
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Sampling
from server_stub.dialects.vllm_completions import CompletionRequest
from server_stub.dialects.vllm_tokens import GenerateRequest, SamplingParams

GOLDEN = json.loads((Path(__file__).parents[1] / "server_stub" / "golden" / "vllm-generate.json").read_text())
SCORE = ScoreQuestion((5, 6), (7, 8), True, 2, ((1, 3), (2,), (9,)))
WRITE = WriteQuestion((5, 6), 4, 2, Sampling(0.7, top_k=40, top_p=0.9, seed=11), ban=frozenset({9, 3}))


def read_chunk(reply, top_k):
    return read_event(partial(read_choice, top_k=top_k), reply)


def packed(table):
    raw = io.BytesIO()
    np.save(raw, np.array(table, dtype=np.float32))
    return base64.b64encode(raw.getvalue()).decode()


def entry(logprob, rank):
    return {"logprob": logprob, "rank": rank, "decoded_token": "x"}


REPLY = GOLDEN["answer"] | {
    "prompt_logprobs": [
        None,
        {"6": entry(-0.1, 1)},
        {"7": entry(-0.5, 1), "1": entry(-1.5, 2)},
        {"2": entry(-0.3, 1), "3": entry(-2.0, 2), "8": entry(-6.0, 40)},
    ],
    "prompt_token_id_logprobs": packed([[-1.5, -3.0], [-0.3, -np.inf]]),
}


def changed(**fields):
    return copy.deepcopy(REPLY) | fields


def test_a_score_asks_for_one_list_of_candidates_a_drafted_token_padded_to_one_length():
    """``len(rows) == prompt_len - 1 - start``: one list more or less is refused by the server."""
    body = score_body(SCORE, "m", "salt")
    assert body == {
        "model": "m",
        "token_ids": [5, 6, 7, 8],
        "sampling_params": {
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": 2,
            "prompt_logprobs": 2,
            "prompt_logprob_start": 1,
            "prompt_logprob_token_ids": [[1, 3], [2, -1]],
        },
        "cache_salt": "salt",
    }
    drawn = body["sampling_params"]
    rows = len(body["token_ids"]) - 1 - drawn["prompt_logprob_start"]
    assert len(drawn["prompt_logprob_token_ids"]) == rows == len(SCORE.span)


@each("candidates", [(), ((), (), ()), ((), (), (9,))])
def test_without_a_candidate_no_table_is_asked_for_and_none_is_missed(candidates):
    """An empty table is refused by the server, and would cost the whole check."""
    question = replace(SCORE, candidates=candidates)
    assert not {"prompt_logprob_start", "prompt_logprob_token_ids"} & set(
        score_body(question, "m", None)["sampling_params"]
    )
    assert len(read_scores(question, changed(prompt_token_id_logprobs=None)).rows) == 3


def test_an_empty_span_asks_for_no_rows_of_the_prompt_so_that_the_prefix_cache_serves():
    question = ScoreQuestion((5,), (), True, 2, ((1,),))
    drawn = score_body(question, "m", None)["sampling_params"]
    assert drawn == {"max_tokens": 1, "temperature": 0.0, "logprobs": 2}
    assert len(read_scores(question, changed(prompt_logprobs=None, prompt_token_id_logprobs=None)).rows) == 1


def test_a_write_sends_every_sampling_parameter_and_its_limit():
    assert opened(VllmTokens(DialectConfig("m")).write(WRITE))[0].body == {
        "model": "m",
        "token_ids": [5, 6],
        "sampling_params": {
            "max_tokens": 4,
            "logprobs": 2,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.0,
            "seed": 11,
            "logit_bias": {"3": -100.0, "9": -100.0},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@each("body", [score_body(SCORE, "m", "s"), write_body(WRITE, "m", None)])
def test_bodies_are_made_of_published_fields(body):
    GenerateRequest.model_validate_json(json.dumps(body))
    assert set(body) <= set(GenerateRequest.model_fields)
    assert set(body["sampling_params"]) <= set(SamplingParams.model_fields)


def test_the_bodies_of_the_completions_route_are_made_of_published_fields():
    from hybrid.cloud.dialects import vllm

    for body in (vllm.score_body(SCORE, "m", "s"), vllm.write_body(WRITE, "m", None)):
        CompletionRequest.model_validate_json(json.dumps(body))
        assert set(body) <= set(CompletionRequest.model_fields)


# ---- scores --------------------------------------------------------------------------------------------------------


def test_scores_are_the_rows_of_the_span_with_the_candidates_own_values_and_the_row_after():
    scores = read_scores(SCORE, REPLY)
    first, second, after = scores.rows
    assert dict(zip(first.ids.tolist(), first.logprobs.tolist(), strict=True)) == {7: -0.5, 1: -1.5, 3: -3.0}
    assert second.ids.tolist() == [2, 3, 8], "the padding is nobody's"
    assert second.tail_max == pytest.approx(math.exp(-2.0))
    assert after.ids.tolist() == [3, 0]
    assert scores.usage == CloudUsage(3, 1, 0)


def test_scores_that_were_dropped_in_silence_are_missed():
    """Where the prefix cache was read past ``start`` they are null, and the reply is as good as any."""
    with pytest.raises(MissingCapability, match="candidates"):
        read_scores(SCORE, changed(prompt_token_id_logprobs=None))


@each(
    ("fields", "error"),
    [
        ({"prompt_logprobs": None}, MissingCapability),
        ({"prompt_logprobs": REPLY["prompt_logprobs"][1:]}, BadReply),
        ({"prompt_logprobs": [*REPLY["prompt_logprobs"][:3], None]}, BadReply),
        ({"prompt_token_id_logprobs": packed([[-1.5, -3.0]])}, BadReply),
        ({"prompt_token_id_logprobs": packed([-1.5, -3.0])}, BadReply),
        ({"prompt_token_id_logprobs": packed([[np.nan, -3.0], [-0.3, -1.0]])}, None),  # 1 is listed: its value stands
        ({"prompt_token_id_logprobs": packed([[-1.5, np.nan], [-0.3, -1.0]])}, BadReply),
        ({"prompt_token_id_logprobs": packed([[-1.5, 0.5], [-0.3, -1.0]])}, BadReply),
        ({"prompt_token_id_logprobs": "no base64"}, BadReply),
        ({"prompt_token_id_logprobs": base64.b64encode(b"no array").decode()}, BadReply),
        ({"choices": []}, BadReply),
        ({"choices": [GOLDEN["answer"]["choices"][0] | {"token_ids": [3, 3]}]}, BadReply),
        ({"choices": [GOLDEN["answer"]["choices"][0] | {"logprobs": None}]}, MissingCapability),
        ({"choices": [GOLDEN["answer"]["choices"][0] | {"logprobs": {"content": []}}]}, BadReply),
    ],
)
def test_a_row_that_cannot_be_believed_is_refused(fields, error):
    if error is None:
        assert read_scores(SCORE, changed(**fields)).rows[0].logprobs.tolist() == [-0.5, -1.5, -3.0]
        return
    with pytest.raises(error):
        read_scores(SCORE, changed(**fields))


def test_an_array_that_would_run_code_is_refused():
    raw = io.BytesIO()
    np.save(raw, np.array([[{}, {}], [{}, {}]], dtype=object), allow_pickle=True)
    with pytest.raises(BadReply):
        read_scores(SCORE, changed(prompt_token_id_logprobs=base64.b64encode(raw.getvalue()).decode()))


# ---- streams -------------------------------------------------------------------------------------------------------


def written(*top, **fields):
    content = {"token_id": top[0][0], "logprob": top[0][1], "rank": top[0][2]}
    content["top_logprobs"] = [{"token_id": i, "logprob": lp, "rank": rank} for i, lp, rank in top]
    choice = {"index": 0, "token_ids": [top[0][0]], "logprobs": {"content": [content]}, "finish_reason": None}
    return {"choices": [choice | fields], "usage": None}


def test_ranks_decide_which_entries_of_a_written_row_are_the_likeliest():
    """The list begins with the token that was drawn and holds k in all: the k-th likeliest is missing, not next."""
    [row] = read_chunk(written((4, -7.0, 30), (1, -0.4, 1)), 2).rows
    assert row.ids.tolist() == [1, 4]
    assert row.num_listed == 1
    assert row.tail_max == pytest.approx(math.exp(-0.4)), "nothing is known of the second likeliest"


def test_a_probability_of_zero_is_not_listed_rather_than_minus_9999():
    [row] = read_chunk(written((4, -0.1, 1), (1, -9999.0, 2)), 2).rows
    assert row.ids.tolist() == [4]


def test_a_token_without_an_entry_of_its_own_is_refused():
    """The sentinel of serving.py: rank null, -9999, an empty list."""
    told = written((4, -9999.0, None))
    told["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = []
    with pytest.raises(BadReply):
        read_chunk(told, 2)


def test_the_end_and_the_usage_come_in_events_of_their_own():
    last = {"choices": [{"index": 0, "token_ids": [], "logprobs": None, "finish_reason": "stop"}], "usage": None}
    assert (read_chunk(last, 2).ids, read_chunk(last, 2).finish) == ((), "stop")
    usage = {"choices": [], "usage": GOLDEN["answer"]["usage"]}
    assert read_chunk(usage, 2).usage == CloudUsage(3, 1, 0)


def test_where_no_log_probabilities_are_given_none_are_asked_for_and_tokens_come_without_rows():
    asked, read = opened(able(VllmTokens(DialectConfig("m")), rows=False).write(WRITE))
    assert "logprobs" not in asked.body["sampling_params"]
    chunk = read(written((4, -0.1, 1), logprobs=None))
    assert (chunk.ids, chunk.rows) == ((4,), (None,))
    with pytest.raises(MissingCapability):
        opened(VllmTokens(DialectConfig("m")).write(WRITE))[1](written((4, -0.1, 1), logprobs=None))


def test_the_completions_route_asks_for_none_either():
    from hybrid.cloud.dialects.vllm import Vllm

    asked, read = opened(able(Vllm(DialectConfig("m")), rows=False).write(WRITE))
    assert "logprobs" not in asked.body
    chunk = read({"choices": [{"text": "d", "token_ids": [4], "logprobs": None, "finish_reason": None}]})
    assert (chunk.ids, chunk.rows) == ((4,), (None,))
