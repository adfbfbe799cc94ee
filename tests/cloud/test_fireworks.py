"""Fireworks' completions as pure functions.

Bodies: ``CompletionCreateParams`` (fw-ai-external/python-sdk, ``src/fireworks/types/completion_create_params.py``).
Replies: ``tests/server_stub/golden/fireworks.json``.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cases import each
from wordlist import able, opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.fireworks import Fireworks, read_choice, read_scores
from hybrid.cloud.dialects.reading import read_event
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Sampling
from server_stub.dialects.fireworks import CompletionCreateParams

GOLDEN = json.loads((Path(__file__).parents[1] / "server_stub" / "golden" / "fireworks.json").read_text())
SCORE = ScoreQuestion((0, 1), (2,), True, 2)  # what the golden reply answers
WRITE = WriteQuestion((5, 6), 4, 20, Sampling(0.7, top_k=40, top_p=0.9, seed=11), ban=frozenset({9, 3}))
DIALECT = Fireworks(DialectConfig("m"))


def read_chunk(reply, top_k):
    return read_event(partial(read_choice, top_k=top_k), reply)


def scored(question=SCORE):
    return next(DIALECT.score(question)).body


def changed(change):
    reply = copy.deepcopy(GOLDEN["answer"])
    change(reply["choices"][0]["logprobs"]["content"], reply)
    return reply


def test_a_score_echoes_the_draft_alone():
    assert scored() == {
        "model": "m",
        "prompt": [0, 1, 2],
        "max_tokens": 1,
        "echo_last": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 0,
    }
    assert "echo_last" not in scored(replace(SCORE, span=()))


def test_a_write_asks_for_no_more_than_five_alternatives():
    asked, _ = opened(DIALECT.write(WRITE))
    assert asked.body == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 4,
        "logprobs": True,
        "top_logprobs": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.0,
        "seed": 11,
        "logit_bias": {"3": -100.0, "9": -100.0},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_bodies_are_made_of_published_fields():
    for body in (
        scored(),
        opened(DIALECT.write(WRITE))[0].body,
        opened(able(Fireworks(DialectConfig("m")), rows=False).write(WRITE))[0].body,
    ):
        CompletionCreateParams.model_validate_json(json.dumps(body))
        assert set(body) <= set(CompletionCreateParams.model_fields)


def test_scores_are_the_echo_counted_from_its_end():
    scores = read_scores(SCORE, GOLDEN["answer"])
    drafted, after = scores.rows
    assert drafted.ids.tolist() == [0, 1, 2]
    assert drafted.tail_max == pytest.approx(1 / 4), "the actual token does not lower the cap"
    assert after.ids.tolist() == [3, 0]
    assert scores.usage == CloudUsage(3, 1, 0)
    assert len(read_scores(replace(SCORE, after=False), GOLDEN["answer"]).rows) == 1


@each(
    ("change", "error"),
    [
        (lambda told, _: told.insert(0, told[0]), BadReply),  # echo_last one too many: the last ones are not trusted
        (lambda told, _: told.pop(0), BadReply),
        (lambda told, _: told[0].update(token_id=1), BadReply),
        (lambda told, _: told[0].pop("token_id"), BadReply),
        (lambda told, _: told[0]["top_logprobs"][0].pop("token_id"), BadReply),
        (lambda told, _: told[0].update(top_logprobs=[]), BadReply),
        (lambda told, _: told[0].update(logprob=None), BadReply),
        (lambda told, _: told[0]["top_logprobs"][0].update(logprob=0.5), BadReply),
        (lambda _, reply: reply["choices"][0].update(logprobs=None), MissingCapability),
        (lambda _, reply: reply["choices"][0].update(logprobs={"tokens": ["c "]}), MissingCapability),  # legacy arrays
    ],
)
def test_a_row_that_cannot_be_believed_is_refused(change, error):
    with pytest.raises(error):
        read_scores(SCORE, changed(change))


def test_what_stands_for_no_probability_is_not_listed():
    row = read_scores(SCORE, changed(lambda told, _: told[0]["top_logprobs"][1].update(logprob=-9999.0))).rows[0]
    assert row.ids.tolist() == [0, 2]


def test_an_appended_token_does_not_lower_the_cap_of_a_written_row():
    entry = copy.deepcopy(GOLDEN["answer"]["choices"][0]["logprobs"]["content"][0])
    entry["top_logprobs"].append({"token_id": 2, "logprob": -7.0})
    entry["logprob"] = -7.0
    told = {"choices": [{"text": "c ", "logprobs": {"content": [entry]}, "finish_reason": None}]}
    [row] = read_chunk(told, 2).rows
    assert row.ids.tolist() == [0, 1, 2]
    assert row.tail_max == pytest.approx(math.exp(-1.386294))


def test_text_without_its_rows_is_refused_where_they_were_asked_for():
    told = {"choices": [{"text": "c ", "token_ids": [2], "logprobs": None, "finish_reason": "stop"}]}
    with pytest.raises(MissingCapability):
        read_chunk(told, 2)


def test_where_no_log_probabilities_are_given_ids_are_asked_for_by_name():
    """They come with the log-probabilities otherwise."""
    asked, read = opened(able(Fireworks(DialectConfig("m")), rows=False).write(WRITE))
    assert asked.body["return_token_ids"] is True
    assert not {"logprobs", "top_logprobs"} & set(asked.body)
    chunk = read({"choices": [{"text": "c ", "token_ids": [2], "logprobs": None, "finish_reason": "stop"}]})
    assert (chunk.ids, chunk.rows, chunk.text, chunk.finish) == ((2,), (None,), "c ", "stop")
