"""SGLang's ``/generate`` as pure functions.

Bodies: the fields of ``GenerateReqInput`` (sgl-project/sglang 0.5.23, ``python/sglang/srt/managers/io_struct.py``) and
of ``sampling/sampling_params.py``. Replies: ``tests/server_stub/golden/sglang.json``, and events as
``managers/tokenizer_manager.py`` makes them, with ``incremental_streaming_output`` and without.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each
from wordlist import able, opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig, tells_rows
from hybrid.cloud.dialects.sglang import Sglang, read_scores, score_body, write_body
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Sampling
from server_stub.dialects.sglang import GenerateReqInput, SamplingParams

GOLDEN = json.loads((Path(__file__).parents[1] / "server_stub" / "golden" / "sglang.json").read_text())
# What the golden reply answers: the rows from the last token of the prefix on, the first of them null.
ASKED = ScoreQuestion((0, 1), (2,), True, 2, ((3,),))
SCORE = ScoreQuestion((5, 6, 7), (8, 9), True, 2)
WRITE = WriteQuestion((5, 6), 4, 2, Sampling(0.7, top_k=40, top_p=0.9, seed=11, min_p=0.1), ban=frozenset({9, 3}))
GREEDY = replace(WRITE, sampling=Sampling(), ban=frozenset())


def test_a_score_starts_one_token_before_the_draft_so_that_its_first_row_is_no_boundary():
    """The entry at ``logprob_start_len`` is null; from 0 on, the prefix cache would not be read."""
    assert score_body(SCORE, None) == {
        "input_ids": [5, 6, 7, 8, 9],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 2,
        "top_logprobs_num": 2,
    }


def test_an_empty_span_asks_for_no_row_of_the_prompt():
    body = score_body(ScoreQuestion((5, 6), (), True, 2), "salt")
    assert body["logprob_start_len"] == -1
    assert body["cache_salt"] == "salt"


def test_one_list_holds_the_candidates_of_all_rows():
    assert score_body(replace(SCORE, candidates=((4, 1), (1,), ())), None)["token_ids_logprob"] == [1, 4]
    assert "token_ids_logprob" not in score_body(replace(SCORE, candidates=((), (), ())), None)


def test_a_write_sends_every_sampling_parameter_and_its_limit():
    assert write_body(WRITE, None) == {
        "input_ids": [5, 6],
        "sampling_params": {
            "max_new_tokens": 4,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.1,
            "sampling_seed": 11,
            "logit_bias": {"3": -100.0, "9": -100.0},
        },
        "return_logprob": True,
        "top_logprobs_num": 2,
        "stream": True,
    }


def test_no_cut_is_minus_one_here():
    """``top_k`` 0 is refused by SamplingParams.verify."""
    assert write_body(GREEDY, None)["sampling_params"]["top_k"] == -1


@each(
    "body", [score_body(replace(SCORE, candidates=((4,), (1,))), "s"), write_body(WRITE, "s"), write_body(GREEDY, None)]
)
def test_bodies_are_made_of_published_fields(body):
    asked = GenerateReqInput.model_validate_json(json.dumps(body))
    assert set(body) <= set(GenerateReqInput.model_fields)
    assert set(body["sampling_params"]) <= set(SamplingParams.model_fields)
    assert asked.model_fields_set == set(body)


# ---- scores --------------------------------------------------------------------------------------------------------


def changed(change):
    reply = copy.deepcopy(GOLDEN["answer"])
    change(reply["meta_info"])
    return reply


def test_scores_are_the_rows_of_the_span_with_its_candidates_and_the_row_after():
    scores = read_scores(ASKED, GOLDEN["answer"])
    drafted, after = scores.rows
    assert drafted.ids.tolist() == [0, 1, 2, 3]
    assert drafted.tail_max == pytest.approx(1 / 4), "neither the actual token nor a candidate lowers the cap"
    assert after.ids.tolist() == [3, 0]
    assert scores.usage == CloudUsage(3, 1, 0)


def test_the_boundary_entry_is_left_out_and_rows_are_counted_from_the_end():
    """One more entry than was asked for, whatever stands in it, moves no row."""
    more = changed(
        lambda told: (
            [told[f"input_{what}"].insert(0, None) for what in ("token_logprobs", "top_logprobs")]
            and told["input_token_ids_logprobs"].insert(0, None)
        )
    )
    assert read_scores(ASKED, more).rows[0].ids.tolist() == [0, 1, 2, 3]


def test_the_row_after_comes_without_a_written_token_and_nothing_is_charged_for_one():
    """As the server answers ``max_new_tokens`` 0: no token of its own, and the list of what it would have written."""
    unwritten = changed(lambda told: told.update(output_token_logprobs=[], completion_tokens=0))
    scores = read_scores(ASKED, unwritten)
    assert [row.ids.tolist() for row in scores.rows] == [
        row.ids.tolist() for row in read_scores(ASKED, GOLDEN["answer"]).rows
    ]
    assert scores.usage == CloudUsage(3, 0, 0)
    dialect = Sglang(DialectConfig())
    assert dialect.check_usage(ASKED, unwritten) == CloudUsage(3, 0, 0)
    assert dialect.min_usage(ASKED) == CloudUsage(3, 0)
    assert dialect.max_usage(ASKED) == CloudUsage(3, 1), (
        "a token more is reserved: a server that writes one is paid for it"
    )


def test_without_the_row_after_what_was_generated_is_not_read():
    scores = read_scores(replace(ASKED, after=False), changed(lambda told: told.pop("output_top_logprobs")))
    assert len(scores.rows) == 1


@each(
    ("change", "error"),
    [
        (lambda t: t.update(input_top_logprobs=None), MissingCapability),
        (lambda t: t.update(output_top_logprobs=None), MissingCapability),
        (lambda t: t.update(output_top_logprobs=[]), MissingCapability),
        (lambda t: t.update(output_top_logprobs=[None]), BadReply),
        (lambda t: t.update(input_top_logprobs=[]), BadReply),
        (
            lambda t: t.update(input_token_ids_logprobs=[]),
            None,
        ),  # candidates are extra: nothing of the row is usage_after_failure
        (lambda t: t["input_top_logprobs"].__setitem__(-1, None), BadReply),
        (lambda t: t["input_token_logprobs"].__setitem__(-1, [None, 2, None]), BadReply),
        (lambda t: t["input_token_logprobs"].__setitem__(-1, [-2.1, 1, None]), BadReply),  # off by one
        (lambda t: t["input_top_logprobs"].__setitem__(-1, [[None, 0, None]]), BadReply),
        (lambda t: t["input_top_logprobs"].__setitem__(-1, [[0.5, 0, None]]), BadReply),
        (lambda t: t["input_top_logprobs"].__setitem__(-1, []), BadReply),
        (lambda t: t["input_top_logprobs"].__setitem__(-1, [["-1", 0, None]]), BadReply),
        (lambda t: t["input_top_logprobs"].__setitem__(-1, [[-1.0, -3, None]]), BadReply),
    ],
)
def test_a_row_that_cannot_be_believed_is_refused(change, error):
    if error is None:
        assert read_scores(ASKED, changed(change)).rows[0].ids.tolist() == [0, 1, 2]
        return
    with pytest.raises(error):
        read_scores(ASKED, changed(change))


@each("reply", [{}, [], {"meta_info": None}, {"error": {"message": "worker died"}}])
def test_a_reply_of_another_shape_is_refused(reply):
    with pytest.raises(BadReply):
        read_scores(ASKED, reply)


def test_what_stands_for_no_probability_is_not_listed():
    def lowest(told):
        told["input_top_logprobs"][-1][1][0] = -3.4e38

    row = read_scores(ASKED, changed(lowest)).rows[0]
    assert row.ids.tolist() == [0, 2, 3]
    assert row.tail_max == pytest.approx(1 / 2)


# ---- streams -------------------------------------------------------------------------------------------------------

TOKENS = [(4, "a"), (1, "b"), (7, "c")]


def event(ids, text, total, *, finish=None, rows=True):
    told = {"prompt_tokens": 2, "completion_tokens": total, "cached_tokens": 1, "finish_reason": finish}
    if rows:
        told["output_token_logprobs"] = [[-0.5, i, None] for i in ids]
        told["output_top_logprobs"] = [[[-0.5, i, None], [-1.5, i + 20, None]] for i in ids]
    return {"text": text, "output_ids": list(ids), "meta_info": told}


LAST = {"type": "length", "length": 3}


def cumulative(**more):
    ids, text = [i for i, _ in TOKENS], "".join(t for _, t in TOKENS)
    ends = [None, None, LAST]
    return [event(ids[: n + 1], text[: n + 1], n + 1, finish=ends[n], **more) for n in range(3)]


def incremental(**more):
    ends = [None, None, LAST]
    return [event([i], text, n + 1, finish=ends[n], **more) for n, (i, text) in enumerate(TOKENS)]


def read(events, question=GREEDY, **fields):
    _, reading = opened(able(Sglang(DialectConfig("m")), **fields).write(question))
    return [reading(one) for one in events]


@each("events", [cumulative(), incremental()], ids=["cumulative", "incremental"])
def test_a_stream_tells_every_token_once_whether_events_repeat_those_before_or_not(events):
    chunks = read(events)
    assert [chunk.ids for chunk in chunks] == [(4,), (1,), (7,)]
    assert [chunk.text for chunk in chunks] == ["a", "b", "c"]
    assert [[row.best for row in chunk.rows] for chunk in chunks] == [[4], [1], [7]]
    assert [chunk.finish for chunk in chunks] == [None, None, "length"]
    assert [chunk.usage for chunk in chunks] == [None, None, CloudUsage(2, 3, 1)]


def test_rows_that_were_read_are_not_read_again():
    """Each event repeats all rows before it: read anew, those of 400 tokens are 80,000."""
    first, second, last = cumulative()
    for repeated in (second["meta_info"]["output_top_logprobs"][:1], last["meta_info"]["output_top_logprobs"][:2]):
        for row in repeated:
            row[:] = ["read again"]
    assert [[row.best for row in chunk.rows] for chunk in read([first, second, last])] == [[4], [1], [7]]


@each("stream", [cumulative, incremental])
def test_an_event_of_several_tokens_is_read_whole(stream):
    """``stream_interval``: the first event may hold more than one, and so may a later one."""
    first, *rest = stream()
    if stream is cumulative:
        chunks = read(rest)
        assert [chunk.ids for chunk in chunks] == [(4, 1), (7,)]
    else:
        chunks = read([first, event([1, 7], "bc", 3, finish=LAST)])
        assert [chunk.ids for chunk in chunks] == [(4,), (1, 7)]
    assert "".join(chunk.text for chunk in chunks) == "abc"


@each("lie", [0, 1, 99, -1, None, "3"])
@each("stream", [cumulative, incremental])
def test_a_count_that_is_a_lie_changes_no_text(stream, lie):
    """It is what is charged, too: a server that tells too little must not make us read its tokens twice."""
    events = stream()
    for event in events:
        event["meta_info"]["completion_tokens"] = lie
    chunks = read(events)
    assert [chunk.ids for chunk in chunks] == [(4,), (1,), (7,)]
    assert "".join(chunk.text for chunk in chunks) == "abc"


def test_an_end_without_a_new_token_repeats_nothing():
    chunks = read([*cumulative()[:2], event([4, 1], "ab", 2, finish={"type": "stop", "matched": 2})])
    assert [chunk.ids for chunk in chunks] == [(4,), (1,), ()]
    assert (chunks[-1].text, chunks[-1].finish) == ("", "stop")


@each(
    ("change", "kept"),
    [
        ({"sampling": Sampling()}, True),
        ({"sampling": Sampling(1.0, top_k=3, seed=4)}, True),
        ({"sampling": Sampling(0.7)}, False),
        ({"sampling": Sampling(2.0)}, False),
        ({"ban": frozenset({9})}, False),
    ],
    ids=str,
)
def test_rows_after_the_temperature_or_a_ban_are_not_the_models(change, kept):
    assert tells_rows(Sglang(DialectConfig("m")).can, replace(GREEDY, **change)) is kept


def test_an_appended_token_does_not_lower_the_cap_of_a_written_row():
    drawn = event([4], "a", 1)
    drawn["meta_info"]["output_token_logprobs"] = [[-7.0, 4, None]]
    drawn["meta_info"]["output_top_logprobs"] = [[[-0.5, 1, None], [-2.5, 2, None]]]
    [row] = read([drawn])[0].rows
    assert row.ids.tolist() == [1, 2, 4]
    assert row.tail_max == pytest.approx(math.exp(-2.5))


@each(
    ("told", "error"),
    [
        ({"error": {"message": "worker died"}}, BadReply),
        (event([4], "a", 1, finish={"type": "abort", "message": "out of memory"}), BadReply),
        (event([4], "a", 1, rows=False), MissingCapability),
        (event([4], "a", 1) | {"output_ids": ["4"]}, BadReply),
        (event([4], "a", 1) | {"output_ids": [4, 5]}, BadReply),
        ({"text": "a", "output_ids": [4]}, BadReply),
    ],
)
def test_an_event_that_cannot_be_believed_is_refused(told, error):
    with pytest.raises(error):
        read([told])


def test_what_is_missing_and_what_broke_off_is_said_in_the_servers_words():
    with pytest.raises(BadReply, match="gave no row"):
        read_scores(ASKED, changed(lambda told: told["input_top_logprobs"].__setitem__(-1, None)))
    with pytest.raises(BadReply, match="broke off: out of memory"):
        read([event([4], "a", 1, finish={"type": "abort", "message": "out of memory"})])


def test_where_no_log_probabilities_are_given_none_are_asked_for_and_tokens_come_without_rows():
    """As a probe may have found: the text is as good, only nothing can weigh it."""
    asked, _ = opened(able(Sglang(DialectConfig("m")), rows=False).write(GREEDY))
    assert not {"return_logprob", "top_logprobs_num"} & set(asked.body)
    chunks = read(cumulative(rows=False), rows=False)
    assert [(chunk.ids, chunk.rows) for chunk in chunks] == [((4,), (None,)), ((1,), (None,)), ((7,), (None,))]
