"""OpenAI's chat route as pure functions.

Bodies: ``CreateChatCompletionRequest`` (openai/openai-openapi, ``openapi.yaml``). Replies: events of
``CreateChatCompletionStreamResponse`` around the entries of ``tests/server_stub/golden/openai-chat.json``.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from normalising import HOW, TEXTS, num_tokens
from vocabularies import WORDS, A, B, C, Pieces
from wordlist import opened

from hybrid.cloud import ScoreQuestion, WriteQuestion
from hybrid.cloud.dialects.chat import Chat
from hybrid.cloud.dialects.dialect import DialectConfig
from hybrid.cloud.dialects.text_tokens import TextVocabulary
from hybrid.cloud.discover import DIALECTS
from hybrid.errors import BadReply, MissingCapability
from hybrid.types import CloudUsage, Message, Sampling
from server_stub.dialects.openai_chat import CreateChatCompletionRequest

GOLDEN = json.loads((Path(__file__).parents[1] / "server_stub" / "golden" / "openai-chat.json").read_text())
FOUR = DialectConfig("m", TextVocabulary(Pieces(["a ", "b ", "c ", "d "])))
SETUP = DialectConfig("m", TextVocabulary(WORDS))
USER = Message("user", "cab")
TURNS = (Message("system", "be brief"), Message("user", "é?"))
WRITE = WriteQuestion((A, B), 4, 40, Sampling(0.7, top_p=0.9, seed=11), turns=TURNS)


def event(text, content=(), *, finish=None, **more):
    choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": list(content)}, "finish_reason": finish}
    return {"choices": [choice | more], "usage": None}


def entry(token, logprob, *others):
    listed = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in others]
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": listed}


def read(told, dialect=None):
    return opened((dialect or Chat(SETUP)).write(WRITE))[1](told)


def test_the_conversation_is_sent_as_it_was_put():
    asked, _ = opened(Chat(SETUP).write(WRITE))
    assert asked.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "é?"}],
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 11,
        "logprobs": True,
        "top_logprobs": WORDS.num_tokens,  # which are fewer than the twenty that may be asked for
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_bodies_are_made_of_published_fields():
    body = opened(Chat(SETUP).write(WRITE))[0].body
    CreateChatCompletionRequest.model_validate_json(json.dumps(body))
    assert set(body) <= set(CreateChatCompletionRequest.model_fields)


def test_a_whole_answer_is_asked_for_once_and_never_gone_on_with():
    """It would be answered with another beginning, charged, and glued to ours."""
    assert Chat(SETUP).write(replace(WRITE, begun=1)) is None
    assert Chat(SETUP).write(replace(WRITE, turns=())) is None
    assert Chat(SETUP).can.abilities == {"open"}


def test_a_draft_cannot_be_put_to_it():
    with pytest.raises(MissingCapability, match="cannot score"):
        next(Chat(SETUP).score(ScoreQuestion((A,), (B,), True, 2)))


@each("change", [{"sampling": Sampling(1.0, top_k=3)}, {"sampling": Sampling(1.0, min_p=0.1)}, {"ban": frozenset({C})}])
def test_a_way_of_drawing_that_has_no_word_is_refused(change):
    with pytest.raises(MissingCapability):
        opened(Chat(SETUP).write(replace(WRITE, **change)))


@each(
    ("change", "why"),
    [
        ({"has_template_args": True}, "documents no arguments"),
        ({"turns": (USER, Message("assistant", "So"))}, "begins a new turn"),
    ],
)
def test_what_messages_cannot_say_is_refused(change, why):
    """The local model reads a prompt that was rendered so; the server would render another one."""
    with pytest.raises(MissingCapability, match=why):
        opened(Chat(SETUP).write(replace(WRITE, **change)))


def test_a_developer_is_a_system_there_as_here():
    asked, _ = opened(Chat(SETUP).write(replace(WRITE, turns=(Message("developer", "be brief"), USER))))
    assert [turn["role"] for turn in asked.body["messages"]] == ["system", "user"]


def test_the_golden_entry_is_read():
    choice = GOLDEN["answer"]["choices"][0]
    chunk = opened(Chat(FOUR).write(WRITE))[1](event(choice["message"]["content"], choice["logprobs"]["content"]))
    assert chunk.ids == (3,)
    assert chunk.rows[0].ids.tolist() == [3, 0]
    assert chunk.rows[0].tail_max == pytest.approx(1 / 4)


def test_minus_9999_is_not_in_the_list_and_no_probability():
    chunk = read(event("c", [entry("c", -9999.0, ("a", -0.1), ("b", -3.0))]))
    assert chunk.ids == (C,)
    assert chunk.rows[0].ids.tolist() == [A, B]
    chunk = read(event("c", [entry("c", -0.1, ("c", -0.1), ("b", -9999.0))]))
    assert chunk.rows[0].ids.tolist() == [C]
    assert chunk.rows[0].tail_max == pytest.approx(math.exp(-0.1))


def test_the_role_the_end_and_the_usage_come_in_events_of_their_own():
    opening = event("", delta={"role": "assistant", "content": "", "refusal": None}, logprobs=None)
    assert (read(opening).ids, read(opening).finish) == ((), None)
    assert read(event(None, delta={}, logprobs=None, finish="stop")).finish == "stop"
    assert read({"choices": [], "usage": GOLDEN["answer"]["usage"]}).usage == CloudUsage(3, 1)


def test_text_without_rows_is_refused_where_they_were_asked_for():
    """Reasoning models answer so; ``--dialect text-chat`` takes it."""
    with pytest.raises(MissingCapability, match="without log-probabilities"):
        read(event("c", logprobs=None))
    plain = DIALECTS["text-chat"].build(SETUP)
    assert not {"logprobs", "top_logprobs"} & set(opened(plain.write(WRITE))[0].body)
    chunk = read(event("cab", logprobs=None), plain)
    assert (len(chunk.ids), chunk.rows) == (2, (None, None))


@each(
    ("told", "error"),
    [
        ({"error": {"message": "overloaded"}}, BadReply),
        (event("c", [entry("c", -0.1)]), BadReply),
        (event("c", [entry("c", 0.5, ("c", 0.5))]), BadReply),
        (event("", finish="tool_calls"), BadReply),
        (event("", finish="content_filter"), BadReply),
        (event("?!?"), BadReply),
        ([], BadReply),
    ],
)
def test_an_event_that_cannot_be_believed_is_refused(told, error):
    with pytest.raises(error):
        read(told)


# The longest system message of a published template; the marks around a turn.
MESSAGE, MARKS = 1024, 16


def test_the_worst_case_is_a_token_per_byte_and_some_for_every_turn():
    """The letter with its accent has three bytes where it is decomposed."""
    assert Chat(SETUP).max_usage(WRITE) == CloudUsage(8 + 4 + 3 * MARKS + MESSAGE, 4)


@given(st.lists(st.tuples(TEXTS, HOW), min_size=1, max_size=4), HOW)
def test_a_server_that_normalises_turn_by_turn_or_the_whole_charges_no_more(turns, how):
    """One that composes as Qwen's tokeniser does charged 140 % of a reservation in bytes as sent."""
    write = replace(WRITE, turns=tuple(Message("user", text) for text, _ in turns))
    most = Chat(SETUP).max_usage(write).prompt_tokens - MESSAGE
    by_turn = sum(num_tokens(f"<|user|>{text}<|end|>", own) for text, own in turns)
    whole = num_tokens("".join(f"<|user|>{text}<|end|>" for text, _ in turns), how)
    assert most >= max(by_turn, whole)


def test_what_the_server_counted_of_a_conversation_is_reserved_as_counted():
    """And its answer as it was written, twice at the most."""
    chat = Chat(SETUP).learn_from_answer(WRITE, CloudUsage(40, 3), "cabcabcab")
    longer = replace(WRITE, turns=(*TURNS, Message("assistant", "cabcabcab"), Message("user", "a")))
    assert chat.max_usage(WRITE).prompt_tokens == 40 + MARKS
    assert chat.max_usage(longer).prompt_tokens == 40 + 2 * 3 + MARKS + 1 + MARKS + MARKS


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), min_size=1, max_size=6))
def test_what_a_conversation_without_a_system_message_teaches_says_nothing_of_one_with_it(seen):
    """A template adds its default system message only where a conversation brings none."""
    plain, turned = (replace(WRITE, turns=turns) for turns in ((USER,), (Message("system", "cab"), USER)))
    chat = Chat(SETUP)
    for with_system, told in each_of(seen):
        asked, other = (turned, plain) if with_system else (plain, turned)
        before = chat.max_usage(other).prompt_tokens
        chat = chat.learn_from_answer(asked, CloudUsage(told, 2), "ab")
        assert chat.max_usage(other).prompt_tokens >= before


def test_nobody_but_the_server_knows_how_many_tokens_a_text_has():
    """Its vocabulary may be any: a count of ours would make the bill of a coarser one too high."""
    plain = replace(WRITE, turns=(Message("user", "cab"),))
    assert Chat(SETUP).min_usage(plain) == CloudUsage(0, 0)


def test_a_prompt_that_was_not_told_teaches_nothing():
    plain = replace(WRITE, turns=(Message("user", "cab"),))
    assert Chat(SETUP).learn_from_answer(plain, CloudUsage(0, 1), "a").counts == Chat(SETUP).counts
