"""The legacy route with echo, Together's variant of it, and plain text, as pure functions.

Bodies: ``CreateCompletionRequest`` (openai/openai-openapi, ``openapi.yaml``) and ``CompletionRequest``
(togethercomputer/openapi, ``openapi.yaml``). Replies: ``tests/server_stub/golden/openai-legacy.json`` and
``together.json``.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each
from vocabularies import AB, END, HALF, WORDS, A, B, C, D, Pieces
from wordlist import able, opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.completions import Completions, Together
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.discover import DIALECTS
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import NO_USAGE, CloudUsage, Sampling
from server_stub.dialects.openai_legacy import CreateCompletionRequest
from server_stub.dialects.together import CompletionRequest

GOLDEN = Path(__file__).parents[1] / "server_stub" / "golden"
LEGACY, TOGETHER = (json.loads((GOLDEN / f"{name}.json").read_text()) for name in ("openai-legacy", "together"))
# The golden replies' vocabulary; they answer "a b c", of which the last word is the draft.
FOUR = DialectConfig("m", TextVocabulary(Pieces(["a ", "b ", "c ", "d "])))
GOLDEN_SCORE = ScoreQuestion((0, 1), (2,), True, 2)
SETUP = DialectConfig("m", TextVocabulary(WORDS))
SCORE = ScoreQuestion((A, B), (C, D), True, 3)
WRITE = WriteQuestion((A, B), 4, 20, Sampling(0.7, top_p=0.9, seed=11))


def asked(dialect, question):
    return next(dialect.score(question))


def scored(dialect, question, reply):
    asking = dialect.score(question)
    next(asking)
    with pytest.raises(StopIteration) as done:
        asking.send(reply)
    return done.value.value


def refused(dialect, question, reply):
    asking = dialect.score(question)
    next(asking)
    return asking.send(reply)


def tops(*rows):
    return [row if row is None else {text: math.log(prob) for text, prob in row.items()} for row in rows]


ROWS = [None, {"b": 0.9, "a": 0.05, "c": 0.01}, {"c": 0.6, "d": 0.2, "a": 0.1}, {"a": 0.5, "b": 0.3, "d": 0.1}]
AFTER = {"a": 0.8, "b": 0.1, "c": 0.05}


def echo(tokens=("a", "b", "c", "d", "a"), rows=(*ROWS, AFTER), text=None, offsets=None, **more):
    """An echo as OpenAI writes it: offsets count in the whole text."""
    starts = [len("".join(tokens[:i])) for i in range(len(tokens))] if offsets is None else offsets
    logprobs = {"tokens": list(tokens), "top_logprobs": tops(*rows), "text_offset": starts, "token_logprobs": []}
    choice = {"text": "".join(tokens) if text is None else text, "logprobs": logprobs, "finish_reason": "length"}
    return {"choices": [choice], "usage": {"prompt_tokens": 4, "completion_tokens": 1}} | more


# ---- bodies --------------------------------------------------------------------------------------------------------


def test_a_score_echoes_the_text_and_asks_for_one_token_after_it():
    assert asked(Completions(SETUP), SCORE).body == {
        "model": "m",
        "prompt": "abcd",
        "max_tokens": 1,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
        "logprobs": 3,
        "echo": True,
    }


def test_a_write_asks_for_no_more_log_probabilities_than_the_route_gives():
    question, _ = opened(Completions(SETUP).write(WRITE))
    assert question.stream == "to done"
    assert question.body == {
        "model": "m",
        "prompt": "ab",
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 11,
        "logprobs": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_together_echoes_alike_and_is_not_streamed():
    """A stream of theirs has no lists."""
    assert asked(Together(SETUP), SCORE).body == asked(Completions(SETUP), SCORE).body
    question, _ = opened(Together(SETUP).write(WRITE))
    assert question.stream is None
    assert question.body == {
        "model": "m",
        "prompt": "ab",
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 11,
        "logprobs": WORDS.num_tokens,  # which are fewer than the twenty that may be asked for
    }


@each("name", ["text-completions", "together"])
def test_plain_text_asks_for_no_log_probabilities(name):
    dialect = able(DIALECTS[name].build(SETUP), rows=False)
    assert "logprobs" not in opened(dialect.write(WRITE))[0].body


def test_plain_text_can_be_continued_and_not_scored():
    assert DIALECTS["text-completions"].build(SETUP).can.abilities == {"write", "open"}
    assert Completions(SETUP).can.abilities == {"write", "open", "score"}
    assert able(Completions(SETUP), scoring_method=None).can.abilities == {"write", "open"}


def test_bodies_are_made_of_published_fields():
    for dialect, model in ((Completions(SETUP), CreateCompletionRequest), (Together(SETUP), CompletionRequest)):
        for body in (asked(dialect, SCORE).body, opened(dialect.write(WRITE))[0].body):
            model.model_validate_json(json.dumps(body))
            assert set(body) <= set(model.model_fields)


@each("dialect", [Completions(SETUP), Together(SETUP)], ids=lambda d: d.name)
def test_what_ends_inside_a_character_is_not_asked_about_and_costs_nothing(dialect):
    with pytest.raises(StopIteration) as done:
        asked(dialect, replace(SCORE, span=(HALF,)))
    assert (done.value.value.rows, done.value.value.usage) == ((), NO_USAGE)
    assert dialect.write(replace(WRITE, prefix=(A, HALF))) is None


@each("dialect", [Completions(SETUP), Together(SETUP)], ids=lambda d: d.name)
@each("change", [{"sampling": Sampling(1.0, top_k=3)}, {"sampling": Sampling(1.0, min_p=0.1)}, {"ban": frozenset({C})}])
def test_a_way_of_drawing_that_has_no_word_is_refused(dialect, change):
    with pytest.raises(MissingCapability):
        opened(dialect.write(replace(WRITE, **change)))


# ---- scores --------------------------------------------------------------------------------------------------------


@each(("build", "golden"), [(Completions, LEGACY), (Together, TOGETHER)])
def test_a_golden_reply_is_read(build, golden):
    scores = scored(build(FOUR), GOLDEN_SCORE, golden["answer"])
    drafted, after = scores.rows
    assert drafted.ids.tolist() == [0, 1, 2]
    assert drafted.tail_max == pytest.approx(1 / 4), "the appended token does not lower the cap"
    assert after.ids.tolist() == [3, 0]
    assert scores.usage == CloudUsage(3, 1)


def test_the_draft_begins_where_the_offsets_say():
    scores = scored(Completions(SETUP), SCORE, echo())
    assert [row.best for row in scores.rows] == [C, A, A]
    assert [row.best for row in scored(Completions(SETUP), replace(SCORE, after=False), echo()).rows] == [C, A]


def test_rows_end_where_the_server_splits_the_text_otherwise():
    """The row at which the two part is still of the same text before it; those after are not of ours."""
    shorter = echo(("a", "b", "cd", "a"), [None, ROWS[1], ROWS[2], AFTER])
    assert [row.best for row in scored(Completions(SETUP), SCORE, shorter).rows] == [C]


def test_a_server_that_splits_across_the_drafts_beginning_has_no_row_for_it():
    across = echo(("a", "bc", "d", "a"), [None, ROWS[1], ROWS[3], AFTER])
    assert scored(Completions(SETUP), SCORE, across).rows == ()


def test_the_servers_own_split_of_the_prefix_moves_no_row():
    scores = scored(Completions(SETUP), SCORE, echo(("ab", "c", "d", "a"), [None, ROWS[2], ROWS[3], AFTER]))
    assert [row.best for row in scores.rows] == [C, A, A]


@each(
    "reply",
    [
        echo(("a",), [AFTER], text="a", offsets=[0]),
        echo(("a",), [AFTER], text="a", offsets=[4]),
        echo((), [], text=""),
        # An opening token that is shown shifts every offset: the row there would be that of another token.
        echo(("<s>", "a", "b", "c", "d", "a"), [None, *ROWS, AFTER]),
    ],
    ids=["offsets from the answer", "offsets from the prompt", "nothing", "a shown opening"],
)
def test_what_is_not_an_echo_of_what_was_sent_scores_nothing(reply):
    with pytest.raises(MissingCapability, match="does not echo"):
        refused(Completions(SETUP), SCORE, reply)


def test_a_row_that_hides_more_than_it_shows_ends_the_rows():
    hiding = [*ROWS[:3], {"x": 0.6, "a": 0.3, "b": 0.05}, AFTER]
    assert [row.best for row in scored(Completions(SETUP), SCORE, echo(rows=hiding)).rows] == [C]


def test_collapsed_texts_become_the_cap():
    hiding = [*ROWS[:3], {"a": 0.6, "x": 0.3, "b": 0.05}, AFTER]
    row = scored(Completions(SETUP), SCORE, echo(rows=hiding)).rows[1]
    assert row.tail_max == pytest.approx(0.35)


@each(
    ("reply", "error"),
    [
        (echo(rows=[*ROWS[:3], None, AFTER]), BadReply),
        (echo(rows=[*ROWS[:3], {}, AFTER]), BadReply),
        (echo(offsets=[0, 1, 2]), MissingCapability),
        (echo(choices=[]), BadReply),
        (echo(choices=[{"text": "abcda", "logprobs": None}]), MissingCapability),
        (echo(choices=[{"text": "abcda", "logprobs": {"tokens": ["a"]}}]), BadReply),
        ([], BadReply),
    ],
)
def test_a_reply_that_cannot_be_believed_is_refused(reply, error):
    with pytest.raises(error):
        refused(Completions(SETUP), SCORE, reply)


# ---- Together ------------------------------------------------------------------------------------------------------


def together(change):
    reply = copy.deepcopy(TOGETHER["answer"])
    change(reply, reply["prompt"][0]["logprobs"] if reply["prompt"] else None, reply["choices"][0])
    return reply


@each(
    ("change", "error"),
    [
        (lambda reply, _told, _choice: reply.update(prompt=[]), MissingCapability),
        (lambda reply, _told, _choice: reply.pop("prompt"), MissingCapability),
        (lambda reply, _told, _choice: reply["prompt"][0].update(logprobs=None), MissingCapability),
        (lambda _reply, _told, choice: choice.update(logprobs=None), MissingCapability),
        (lambda _reply, told, _choice: told["top_logprobs"].__setitem__(-1, None), BadReply),
        (lambda _reply, told, _choice: told.update(token_ids=None), BadReply),
        (lambda reply, _told, _choice: reply.update(choices=[]), BadReply),
    ],
)
def test_a_reply_of_together_that_cannot_be_believed_is_refused(change, error):
    with pytest.raises(error):
        refused(Together(FOUR), GOLDEN_SCORE, together(change))


def test_together_has_no_row_for_a_draft_that_it_splits_otherwise():
    other = together(lambda _reply, told, _choice: told.update(token_ids=[0, 1, 3]))
    assert scored(Together(FOUR), GOLDEN_SCORE, other).rows == ()


def test_a_continuation_of_together_is_read_whole_with_its_own_word_for_the_end():
    _, read = opened(Together(FOUR).write(replace(WRITE, prefix=(0, 1))))
    chunk = read(together(lambda _reply, _told, choice: choice.update(finish_reason="eos")) | {"prompt": []})
    assert (chunk.ids, chunk.text, chunk.finish, chunk.usage) == ((3,), "d ", "stop", CloudUsage(3, 1))
    assert chunk.rows[0].best == 3


# ---- streams -------------------------------------------------------------------------------------------------------


def event(text, tokens=(), rows=(), *, finish=None, **more):
    logprobs = {"tokens": list(tokens), "top_logprobs": tops(*rows)}
    return {"choices": [{"text": text, "logprobs": logprobs, "finish_reason": finish} | more], "usage": None}


def test_an_event_is_read_as_local_tokens_with_the_rows_of_those_it_names():
    _, read = opened(Completions(SETUP).write(replace(WRITE, top_k=3)))
    chunk = read(event("cxab", ("c", "x", "ab"), [ROWS[2], {"x": 0.9}, {"ab": 0.9}]))
    assert (chunk.ids[0], chunk.ids[2:]) == (C, (AB,))
    assert chunk.rows[0].best == C
    assert chunk.rows[1:] == (None, None), (
        "from the first text that is two tokens', the local tokeniser splits the rest"
    )


def test_the_end_and_the_usage_may_come_in_events_of_their_own():
    _, read = opened(Completions(SETUP).write(WRITE))
    assert read(event("", finish="stop")).finish == "stop"
    assert read({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}).usage == CloudUsage(2, 1)


def test_text_without_rows_is_refused_where_they_were_asked_for_and_no_policy_is_deceived():
    _, read = opened(Completions(SETUP).write(WRITE))
    with pytest.raises(MissingCapability, match="without log-probabilities"):
        read(event("c", logprobs=None))
    _, read = opened(DIALECTS["text-completions"].build(SETUP).write(WRITE))
    chunk = read(event("cab", logprobs=None))
    assert (chunk.ids, chunk.rows) == ((C, AB), (None, None))


def test_a_text_that_is_a_control_tokens_name_is_that_token_where_the_list_says_so():
    _, read = opened(Completions(SETUP).write(replace(WRITE, top_k=1)))
    assert read(event("<end>", ("<end>",), [{"<end>": 0.9}])).ids == (END,)


@each(
    ("told", "error"),
    [
        ({"error": {"message": "worker died"}}, BadReply),
        (event("c", ("c",), []), BadReply),
        (event("c", ("c",), [{}]), BadReply),
        (event("é?"), BadReply),
        (event("\ud800"), BadReply),
        (event("", finish="content_filter"), BadReply),
    ],
)
def test_an_event_that_cannot_be_believed_is_refused(told, error):
    _, read = opened(Completions(SETUP).write(WRITE))
    with pytest.raises(error):
        read(told)


# ---- what it may cost ----------------------------------------------------------------------------------------------


@each("dialect", [Completions(SETUP), Together(SETUP)], ids=lambda d: d.name)
def test_the_worst_case_is_a_token_per_byte(dialect):
    assert dialect.max_usage(SCORE) == CloudUsage(5, 1)
    assert dialect.max_usage(WRITE) == CloudUsage(3, 4)


def test_every_prefix_is_paid_for_where_prefixes_are_asked():
    assert able(Completions(SETUP), scoring_method="prefixes").max_usage(SCORE) == CloudUsage(3 + 4 + 5, 3)
    assert able(Completions(SETUP), scoring_method="generate").max_usage(SCORE) == CloudUsage(3, 3)


def test_of_prefixes_none_is_asked_about_that_ends_inside_a_character():
    """Its text would be the empty one, whose row is that of another position."""
    by_prefixes, by_generating = (able(Completions(SETUP), scoring_method=way) for way in ("prefixes", "generate"))
    broken = ScoreQuestion((A,), (B, HALF, C), True, 3)
    assert asked(by_prefixes, broken).body["prompt"] == ["a", "ab"]
    assert by_prefixes.min_usage(broken) == CloudUsage(1 + 2, 2), "what is sent, and no more"
    for dialect in (by_prefixes, by_generating):
        with pytest.raises(StopIteration) as done:
            asked(dialect, ScoreQuestion((A, HALF), (C,), True, 3))
        assert (done.value.value.rows, done.value.value.usage) == ((), NO_USAGE)
