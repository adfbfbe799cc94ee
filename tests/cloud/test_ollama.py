"""Ollama's ``/api/generate`` as pure functions.

Bodies, and replies that no server here gave: ``recorded/ollama_published.json``, facts from Ollama's own documents,
tests and source with their addresses. Replies of the server here: ``tests/server_stub/golden/ollama.json``.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each, each_of
from vocabularies import AB, HALF, WORDS, A, B, C, D, Pieces
from wordlist import able, opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.ollama import Ollama
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.discover import read_models
from hybrid.cloud.statuses import status_error
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import NO_USAGE, CloudUsage, Sampling
from server_stub.dialects.ollama import GenerateRequest

GOLDEN = json.loads((Path(__file__).parents[1] / "server_stub" / "golden" / "ollama.json").read_text())
PUBLISHED = json.loads((Path(__file__).parent / "recorded" / "ollama_published.json").read_text(encoding="utf-8"))
FOUR = DialectConfig("m", TextVocabulary(Pieces(["a ", "b ", "c ", "d "])))
SETUP = DialectConfig("m", TextVocabulary(WORDS))
SCORE = ScoreQuestion((A, B), (C, D), True, 3)
WRITE = WriteQuestion((A, B), 4, 40, Sampling(0.7, top_k=40, top_p=0.9, seed=11, min_p=0.1))


def entry(token, prob, *others):
    def one(text, p):
        return {"token": text, "logprob": math.log(p), "bytes": list(text.encode())}

    return one(token, prob) | {"top_logprobs": [one(token, prob), *(one(*other) for other in others)]}


def line(text, *entries, **more):
    return {"response": text, "done": False, "logprobs": list(entries)} | more


def read(reply, dialect=None, question=WRITE):
    return opened((dialect or Ollama(SETUP)).write(question))[1](reply)


DONE = {"response": "", "done": True, "done_reason": "stop", "prompt_eval_count": 2, "eval_count": 3}


def test_every_option_is_sent_since_the_models_file_has_its_own():
    asked, _ = opened(Ollama(SETUP).write(WRITE))
    assert asked.stream == "lines"
    assert asked.body == {
        "model": "m",
        "prompt": "ab",
        "raw": True,
        "truncate": False,
        "stream": True,
        "logprobs": True,
        "top_logprobs": WORDS.num_tokens,  # which are fewer than the twenty that may be asked for
        "options": {
            "num_predict": 4,
            "temperature": 0.7,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.1,
            "seed": 11,
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        },
    }


def test_a_score_lets_it_write_greedily_in_one_piece():
    body = next(Ollama(SETUP).score(SCORE)).body
    assert (body["stream"], body["options"]["num_predict"], body["options"]["temperature"]) == (False, 3, 0.0)


def test_bodies_are_made_of_published_fields():
    """And of every option that changes the law: a model's file may set it otherwise."""
    for body in (opened(Ollama(SETUP).write(WRITE))[0].body, next(Ollama(SETUP).score(SCORE)).body):
        GenerateRequest.model_validate_json(json.dumps(body))
        assert set(body) <= set(PUBLISHED["request_fields"]["names"])
        assert set(PUBLISHED["option_fields"]["change_the_law"]) <= set(body["options"])
        assert set(body["options"]) <= set(PUBLISHED["option_fields"]["names"])


def test_a_prompt_beyond_the_context_is_refused_and_not_cut():
    """Ollama cuts its middle out, and its reply does not say so: the rows would be those of another prompt."""
    for body in (opened(Ollama(SETUP).write(WRITE))[0].body, next(Ollama(SETUP).score(SCORE)).body):
        assert body["truncate"] is False
    for refusal in each_of(PUBLISHED["refusals"]):
        status, detail = refusal["status"], refusal["body"]["error"]
        error = status_error(status, f"there answered {status}: {detail}", detail, "no key")
        assert detail in str(error)
        assert type(error).__name__ == refusal["read_as"]


def lines_of(name):
    return PUBLISHED["lines"][name]["lines"]


def test_documented_lines_are_read_and_an_error_among_them_ends_the_answer():
    *lines, last = lines_of("documented")
    plain = able(Ollama(DialectConfig("m", TextVocabulary(Pieces([" Yes", ".", "I", "can"])))), rows=False)
    chunks = [read(each_line, plain) for each_line in lines]
    assert [chunk.ids for chunk in chunks] == [(0,), (1,), (2,), (3,)]
    assert all(chunk.finish is None and chunk.usage is None for chunk in chunks)
    with pytest.raises(BadReply, match="an error was encountered while running the model"):
        read(last, plain)


GREETING = Ollama(DialectConfig("m", TextVocabulary(Pieces(["Hi", "Hello"]))))


def test_published_rows_are_read_and_the_whole_prompt_is_charged():
    line, last = lines_of("rows")
    chunk = read(line, GREETING)
    assert chunk.ids == (0,)
    assert dict(zip(chunk.rows[0].ids.tolist(), chunk.rows[0].logprobs.tolist(), strict=True)) == {0: -0.5, 1: -1.2}
    assert read(last, GREETING).usage == CloudUsage(17, 2), "cached or not"


def test_a_character_of_several_tokens_has_one_entry_whose_row_is_taken_for_that_of_no_other():
    """The row is that of the last token, in a line of the whole character."""
    [line] = lines_of("character_of_several_tokens")
    chunk = read(line, Ollama(DialectConfig("m", TextVocabulary(Pieces(["Hi", "Hello", b"\xe4", b"\xb8", b"\xad"])))))
    assert (chunk.ids, chunk.rows) == ((2, 3, 4), (None, None, None))


def test_an_answer_that_is_broken_off_for_saying_the_same_has_no_end_and_no_charge_of_its_own():
    [line] = lines_of("broken_off_after_31_alike")
    chunk = read(line, GREETING)
    assert (chunk.ids, chunk.finish, chunk.usage) == ((0, 0), None, None)
    asking = GREETING.score(ScoreQuestion((1,), (0, 0), False, 2))
    next(asking)
    with pytest.raises(StopIteration) as done:
        asking.send(line)
    assert [row.best for row in done.value.value.rows] == [0, 0]
    assert done.value.value.usage.completion_tokens == 2, "what was written is charged at least"


def test_published_models_are_listed_by_their_names():
    """The context that is told is the most that the file allows, not what is loaded: it is not believed."""
    assert read_models(PUBLISHED["models"]["body"]) == {"m:latest": None}


def test_a_ban_has_no_word_and_is_refused():
    """Dropped in silence, the token that was rejected would be drawn again."""
    with pytest.raises(MissingCapability, match="kept from a token"):
        opened(Ollama(SETUP).write(replace(WRITE, ban=frozenset({C}))))


def test_what_ends_inside_a_character_is_not_asked_about():
    assert Ollama(SETUP).write(replace(WRITE, prefix=(A, HALF))) is None
    with pytest.raises(StopIteration) as done:
        next(Ollama(SETUP).score(replace(SCORE, prefix=(A, HALF))))
    assert done.value.value.usage == NO_USAGE


def test_the_golden_reply_is_read():
    asking = Ollama(FOUR).score(ScoreQuestion((0, 1, 2), (3,), False, 2))
    next(asking)
    with pytest.raises(StopIteration) as done:
        asking.send(GOLDEN["answer"])
    [row] = done.value.value.rows
    assert row.ids.tolist() == [3, 0]
    assert done.value.value.usage == CloudUsage(3, 1)


def test_a_draft_is_compared_up_to_the_first_token_that_is_another():
    told = line("cab", entry("c", 0.9), entry("ab", 0.8)) | DONE | {"response": "cab"}
    asking = Ollama(SETUP).score(SCORE)
    next(asking)
    with pytest.raises(StopIteration) as done:
        asking.send(told)
    assert [row.best for row in done.value.value.rows] == [C, AB], "the row that says otherwise is the last"


def test_tokens_are_matched_by_their_bytes():
    chunk = read(line("cab", entry("c", 0.7, ("x", 0.2)), entry("ab", 0.9)))
    assert chunk.ids == (C, AB)
    assert chunk.rows[0].tail_max == pytest.approx(0.7)
    hidden = read(line("c", entry("c", 0.3, ("x", 0.6)))).rows[0]
    assert hidden.tail_max == pytest.approx(0.6), "what has two tokens' text may be either's"


def test_a_list_that_names_none_of_our_tokens_is_no_row():
    told = entry("c", 0.1)
    told["top_logprobs"] = entry("x", 0.9)["top_logprobs"]
    assert read(line("c", told)).rows == (None,)


def test_bytes_that_are_a_number_are_refused_rather_than_made():
    """bytes(10**12) would be a terabyte of zeros."""
    with pytest.raises(BadReply):
        read(line("c", entry("c", 0.9) | {"bytes": 10**12}))


def test_half_a_character_is_shown_as_another_and_names_no_token():
    chunk = read(line("é!", {"token": "\ufffd", "logprob": -0.1, "bytes": list("\ufffd".encode())}))
    assert [row for row in chunk.rows if row is not None] == []


def test_the_last_line_tells_why_it_ended_and_what_it_counted():
    chunk = read(DONE)
    assert (chunk.ids, chunk.finish, chunk.usage) == ((), "stop", CloudUsage(2, 3))


@each("told", [{}, {"prompt_eval_count": 0}, {"prompt_eval_count": None}])
def test_a_prompt_that_was_not_counted_was_not_told(told):
    """All of it may have been cached; nothing is not what it costs, and the meter takes 0 for not told."""
    chunk = read({key: value for key, value in DONE.items() if key != "prompt_eval_count"} | told)
    assert chunk.usage == CloudUsage(0, 3)


@each(
    ("told", "error"),
    [
        ({"error": "model not loaded"}, BadReply),
        ({"response": "c", "done": False}, MissingCapability),
        (line("c", entry("c", 0.9) | {"top_logprobs": []}), BadReply),
        (line("c", entry("c", 0.9) | {"top_logprobs": None}), BadReply),
        (line("c", entry("c", 0.9) | {"bytes": [300]}), BadReply),
        ({"response": ""}, BadReply),
        (DONE | {"done_reason": "load"}, BadReply),
        ([], BadReply),
    ],
)
def test_a_line_that_cannot_be_believed_is_refused(told, error):
    with pytest.raises(error):
        read(told)


def test_where_no_log_probabilities_are_given_none_are_asked_for():
    dialect = able(Ollama(SETUP), rows=False)
    assert "logprobs" not in opened(dialect.write(WRITE))[0].body
    assert dialect.can.abilities == {"write", "open"}
    chunk = read({"response": "cab", "done": False}, dialect)
    assert (chunk.ids, chunk.rows) == ((C, AB), (None, None))


def test_the_worst_case_is_a_token_per_byte():
    assert Ollama(SETUP).max_usage(SCORE) == CloudUsage(3, 3)
    assert Ollama(SETUP).max_usage(WRITE) == CloudUsage(3, 4)
