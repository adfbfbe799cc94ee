"""llama-cpp-python's server: golden bodies, replies recorded from 0.3.36 over the large model, every trap of its own.

Bodies and replies as in ``llama_cpp/server/types.py``; the files in ``recorded`` name the server. What its rows
ought to be, the large model says itself: a list that is read one off would look as good.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from arithmetic import LIKELY, tolerance
from cases import each, each_of
from wordlist import WordList, drive, opened, recorded

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.llama_cpp_python import AGAIN, LlamaCppPython
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import NO_USAGE, CloudUsage, Sampling

END = 2
# What is sent besides the text: what is not sent is penalised, cut by min-p, or drawn hot.
PLAIN = {
    "model": "m",
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
NO_END = {"0": -100.0, "2": -100.0}


@pytest.fixture(scope="module")
def pieces(large):
    return [large.engine.piece(i) for i in range(large.engine.num_tokens)]


@pytest.fixture(scope="module")
def speak(pieces, large):
    """The dialect over the large model's vocabulary, with or without an opening token."""
    return lambda *opening: LlamaCppPython(
        DialectConfig("m", TextVocabulary(WordList(pieces, large.engine.end_ids, opening)))
    )


def asked_about(name):
    said, replies = recorded(name)
    return ScoreQuestion(tuple(said["prefix"]), tuple(said["span"]), said["after"], said["top_k"]), replies


SHIFTED, ALIGNED, ENDING = (asked_about(f"llama_cpp_python_{name}") for name in ("shifted", "aligned", "end"))


def assert_right(large, question, rows):
    """Every row is the large model's own."""
    assert len(rows) == question.num_rows
    for i, row in enumerate(rows):
        expected = large.row(question.prefix + question.span[:i])
        likely = row.probs >= LIKELY
        assert np.abs(row.logprobs - expected.logprobs[row.ids])[likely].max() <= tolerance().nats
        assert np.delete(expected.probs, row.ids).max() <= row.tail_max * np.exp(tolerance().nats)


# ---- what is asked -------------------------------------------------------------------------------------------------


def test_a_check_echoes_its_text_and_forbids_the_end_so_that_one_token_is_always_written(speak):
    """Whether the list is one off, only the number of its entries tells: without a token both would be as long."""
    (asked,), _ = drive(speak().score(SHIFTED[0]))
    assert asked.path == "/v1/completions"
    assert asked.body == PLAIN | {
        "prompt": "abcb",
        "max_tokens": 1,
        "logprobs": 3,
        "echo": True,
        "logit_bias": NO_END,
    }


def test_the_opening_token_is_the_servers_to_add(speak):
    (asked,), _ = drive(speak(0).score(ALIGNED[0]))
    assert asked.body["prompt"] == "abcb"
    asked, _ = opened(speak(0).write(WriteQuestion((0, 67, 68), 4, 2, Sampling())))
    assert asked.body["prompt"] == "ab"


def test_a_write_sends_every_parameter_and_is_not_streamed(speak):
    """A streamed piece of a character is dropped, and its row with it."""
    sampling = Sampling(temperature=2.0, top_k=9, seed=11, min_p=0.25)
    asked, _ = opened(speak().write(WriteQuestion((67, 68), 4, 2, sampling, frozenset({9, 3}))))
    assert asked.stream is None
    assert asked.body == PLAIN | {
        "prompt": "ab",
        "max_tokens": 4,
        "logprobs": 2,
        "temperature": 2.0,
        "top_k": 9,
        "min_p": 0.0625,
        "seed": 11,
        "logit_bias": {"3": -100.0, "9": -100.0},
    }


@each(
    "sampling",
    [
        Sampling(temperature=0.7, top_p=0.9),
        Sampling(temperature=1.0, top_p=0.9, min_p=0.1),
        Sampling(temperature=1.3, top_k=4, top_p=0.9, min_p=0.1),
    ],
)
def test_a_law_that_it_cannot_draw_from_is_refused_with_what_to_leave_out(speak, sampling):
    with pytest.raises(MissingCapability, match="cuts by --top-p before --temperature and --min-p: leave it out"):
        opened(speak().write(WriteQuestion((67,), 4, 2, sampling)))


def test_no_request_asks_for_no_token(speak):
    """Of this server, ``max_tokens: 0`` asks for as many as fit."""
    for question in (SHIFTED[0], ScoreQuestion((67,), (), True, 3)):
        (asked,), _ = drive(speak().score(question))
        assert asked.body["max_tokens"] == 1


E_ACUTE = (130, 105)


@each(
    ("prefix", "span", "text"),
    [((67,), (*E_ACUTE, 68), "a\u00e9b"), ((67,), (68, 130), "ab"), ((67, 130), (105, 68), "a\u00e9b")],
)
def test_a_draft_is_asked_about_as_far_as_it_ends_with_a_whole_character(speak, prefix, span, text):
    (asked,), _ = drive(speak().score(ScoreQuestion(prefix, span, True, 3)))
    assert asked.body["prompt"] == text


def test_where_not_even_the_prefix_can_be_said_nothing_is_asked_and_nothing_is_charged(speak):
    asked, scores = drive(speak().score(ScoreQuestion((67, 130), (68,), True, 3)))
    assert (asked, scores.rows, scores.usage) == ([], (), NO_USAGE)
    assert speak().write(WriteQuestion((67, 130), 4, 2, Sampling())) is None


def test_the_worst_case_is_a_token_for_every_byte_and_every_time_it_may_be_asked_again(speak):
    question = ScoreQuestion((67, *E_ACUTE), (68,), True, 3)
    assert speak().max_usage(question) == CloudUsage((1 + AGAIN) * (5 + 1), 1 + AGAIN, requests=1 + AGAIN)
    assert speak().max_usage(WriteQuestion((67, *E_ACUTE), 9, 3, Sampling())) == CloudUsage(5, 9)


# ---- rows ----------------------------------------------------------------------------------------------------------


def test_without_an_opening_token_the_rows_come_one_off_and_are_put_right(speak, large):
    """Issue 1983: what is listed beside a token is the row after it."""
    question, replies = SHIFTED
    assert len(replies[0]["choices"][0]["logprobs"]["tokens"]) == 4, "the prompt's tokens, and not the written one"
    _, scores = drive(speak().score(question), *replies)
    assert_right(large, question, scores.rows)
    assert scores.usage == CloudUsage(4, 1)


def test_with_an_opening_token_the_rows_come_in_their_place(speak, large):
    question, replies = ALIGNED
    assert len(replies[0]["choices"][0]["logprobs"]["tokens"]) == 5, "the written one too, and not the opening"
    _, scores = drive(speak(0).score(question), *replies)
    assert_right(large, question, scores.rows)


def test_a_server_that_puts_its_list_right_without_an_opening_token_is_read_in_place(speak):
    """The day issue 1983 is mended the list holds the written token too; no version is asked for."""
    reply = copy.deepcopy(ALIGNED[1][0])
    reply["usage"]["prompt_tokens"] = 4
    _, scores = drive(speak().score(SHIFTED[0]), reply)
    _, expected = drive(speak(0).score(ALIGNED[0]), *ALIGNED[1])
    assert [row.ids.tolist() for row in scores.rows] == [row.ids.tolist() for row in expected.rows]


def test_the_token_listed_beyond_k_does_not_lower_the_cap(speak):
    """The token that the list stands beside is appended to it: in a shifted list not even the drafted one."""
    _, scores = drive(speak().score(SHIFTED[0]), *SHIFTED[1])
    for row in each_of(scores.rows):
        assert row.num_listed == 3
        assert row.tail_max == pytest.approx(math.exp(row.logprobs[2]))


def test_a_row_that_hides_its_most_likely_token_is_asked_about_and_the_end_is_found(speak, large):
    """Control tokens have no text: the end of a text is an empty name beside others, or in place of them."""
    question, replies = ENDING
    (first, again), scores = drive(speak().score(question), *replies)
    assert "echo" in first.body
    assert again.body == PLAIN | {"prompt": "<|im_start|>assistant\ncic.", "max_tokens": 1, "logprobs": 3}
    assert_right(large, question, scores.rows)
    assert scores.rows[1].best == END
    assert scores.usage == CloudUsage(15, 2, requests=2), "the end was computed, which this server does not count"


def collapsed(reply, i, **tops):
    reply = copy.deepcopy(reply)
    reply["choices"][0]["logprobs"]["top_logprobs"][i] = tops
    return reply


def test_a_token_listed_for_itself_does_not_lower_the_cap_of_a_row_that_ends_the_text(speak):
    (first, again), question = ENDING[1], ENDING[0]
    tops = {"": -0.1, "e": -3.0, " Answer": -4.0, ".": -18.2}
    _, scores = drive(speak().score(question), collapsed(first, 6, **tops), again)
    row = scores.rows[1]
    assert row.ids.tolist() == [END, 71, 290, 16]
    assert row.tail_max == pytest.approx(math.exp(-4.0))


def test_of_several_hidden_tokens_the_end_is_given_the_mass_and_none_is_ruled_out(speak):
    (first, again), question = ENDING[1], ENDING[0]
    _, scores = drive(speak().score(question), collapsed(first, 6, **{"": -3.0, "e": -1.0, ".": -18.2}), again)
    row = scores.rows[1]
    hidden = 1 - math.exp(-1.0) - math.exp(-18.2)
    assert row.best == END
    assert row.probs[0] == pytest.approx(hidden)
    assert row.tail_max == pytest.approx(hidden / 2), "the end is the likeliest of them"


def test_what_is_hidden_and_no_end_cuts_the_rows(speak):
    """A part of a character: the row may not be believed, nor those after it."""
    (first, again), question = ENDING[1], ENDING[0]
    goes_on = copy.deepcopy(again)
    goes_on["choices"][0]["finish_reason"] = "length"
    goes_on["usage"]["completion_tokens"] = 1
    _, scores = drive(speak().score(question), first, goes_on)
    assert len(scores.rows) == 1
    assert scores.usage == CloudUsage(15, 2, requests=2)


def test_a_check_asks_again_no_oftener_than_its_worst_case_reserves(speak):
    question, (first, again) = ENDING
    span = (16, END, 16, END, 16)
    reply = copy.deepcopy(first)
    arrays, prompt = reply["choices"][0]["logprobs"], len(question.prefix) + len(span)
    arrays["tokens"] = ["", "assistant", "\n", "c", "i", "c", ".", "", ".", "", "."]
    arrays["top_logprobs"] = [*arrays["top_logprobs"][:5], *[{"": -0.01, "e": -6.0, ".": -7.0}] * 6]
    reply["usage"]["prompt_tokens"] = prompt
    asking = ScoreQuestion(question.prefix, span, True, 3)
    asked, scores = drive(speak().score(asking), reply, *[again] * 6)
    assert len(asked) == 1 + AGAIN
    assert len(scores.rows) == AGAIN
    worst = speak().max_usage(asking)
    assert scores.usage.prompt_tokens <= worst.prompt_tokens


def change_arrays(**values):
    return lambda reply: reply["choices"][0]["logprobs"].update(values)


def rows_of(speak, change):
    reply = copy.deepcopy(SHIFTED[1][0])
    change(reply)
    return drive(speak().score(SHIFTED[0]), reply)[1].rows


def test_a_server_started_without_all_scores_is_told_how_to_start(speak):
    with pytest.raises(MissingCapability, match="--logits_all true"):
        rows_of(speak, lambda reply: reply["choices"][0].update(logprobs=None))


@each(
    "change",
    [
        lambda reply: reply["usage"].update(prompt_tokens=5),
        change_arrays(tokens=["a", "b", "cb", ""]),
        change_arrays(tokens=["a", "b", "b", "c"]),
        lambda reply: [array.pop(0) for array in reply["choices"][0]["logprobs"].values()],
        lambda reply: reply.pop("usage"),
    ],
)
def test_where_the_server_splits_the_text_in_another_way_there_are_no_rows(speak, change):
    """The text of two drafts may be one: rows of other tokens than were drafted are no answer.

    How many tokens it reads is told by its usage; without one nobody can say.
    """
    assert rows_of(speak, change) == ()


@each(
    "change",
    [
        change_arrays(tokens=["a", "b", "c"]),
        change_arrays(top_logprobs=None),
        change_arrays(top_logprobs=[None, None, None, None]),
        change_arrays(top_logprobs=[None, *[{" Eva": 0.5}] * 3]),
        change_arrays(top_logprobs=[None, *[{" Eva": float("nan")}] * 3]),
        change_arrays(top_logprobs=[None, *[{" Eva": "-0.5"}] * 3]),
        lambda reply: reply.update(choices=[]),
    ],
)
def test_a_reply_that_cannot_be_believed_is_refused(speak, change):
    with pytest.raises(BadReply):
        rows_of(speak, change)


# ---- what is written -----------------------------------------------------------------------------------------------


def test_a_character_of_several_tokens_is_read_from_the_text(speak):
    """Its tokens come with empty names; what they are, the text says, and their rows are not told."""
    said, (reply,) = recorded("llama_cpp_python_split")
    _, read = opened(speak().write(WriteQuestion(tuple(said["prefix"]), said["limit"], said["top_k"], Sampling())))
    assert reply["choices"][0]["logprobs"]["tokens"] == ["c", "a", "f", "", "", " "]
    chunk = read(reply)
    assert chunk.ids == (69, 67, 72, *E_ACUTE, 223)
    assert [row is not None for row in chunk.rows] == [True, True, True, False, False, False]
    assert (chunk.text, chunk.finish, chunk.usage) == ("caf\u00e9 ", "length", CloudUsage(2, 6))


def written(speak, change):
    said, (reply,) = recorded("llama_cpp_python_split")
    reply = copy.deepcopy(reply)
    change(reply)
    return opened(speak().write(WriteQuestion(tuple(said["prefix"]), 6, 2, Sampling())))[1](reply)


def test_a_written_token_without_a_list_is_missing_and_not_certain(speak):
    with pytest.raises(BadReply, match="missing, not certain"):
        written(speak, change_arrays(top_logprobs=[{}] * 6))
    with pytest.raises(MissingCapability, match="without log-probabilities"):
        written(speak, lambda reply: reply["choices"][0].update(logprobs=None))


def test_names_that_are_not_those_of_the_text_name_no_tokens(speak):
    chunk = written(speak, change_arrays(tokens=["c", "b", "f", "", "", " "]))
    assert speak().setup.text_tokens.text_of(chunk.ids) == chunk.text
    assert [row is not None for row in chunk.rows] == [True] + [False] * (len(chunk.ids) - 1)


def test_an_answer_of_no_text_ends_and_is_charged(speak):
    chunk = written(speak, lambda reply: reply["choices"][0].update(text="", finish_reason="stop"))
    assert (chunk.ids, chunk.finish, chunk.usage) == ((), "stop", CloudUsage(2, 6))
