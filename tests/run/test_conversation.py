"""A question is a text or a conversation; whatever else is given is one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.errors import UsageError
from hybrid.record.conversation import question_from
from hybrid.types import Message

TURNS = (Message("system", "Be brief."), Message("user", "What is 47 + 86?"), Message("assistant", "133"))


ROLES = "system, developer, user, assistant, tool"


def test_a_conversation_may_be_given_as_messages_as_dictionaries_or_mixed():
    as_dicts = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    for given_as in (list(TURNS), TURNS, as_dicts, tuple(as_dicts), [TURNS[0], *as_dicts[1:]]):
        assert question_from(given_as) == TURNS
    assert question_from("What?") == "What?"
    assert question_from("") == ""
    assert question_from([]) == ()


def test_what_is_no_question_is_one_sentence_that_names_the_message():
    good = {"role": "user", "content": "a"}
    for prompt, said in [
        (3, "a prompt is a text or a list of messages, not int"),
        (None, "a prompt is a text or a list of messages, not NoneType"),
        (b"What?", "a prompt is a text or a list of messages, not bytes"),
        (good, "a conversation is a list of messages, not one message alone"),
        (TURNS[0], "a conversation is a list of messages, not one message alone"),
        (["What?"], "message 1: a message is an object of role and content"),
        ([good, {"role": "user"}], "message 2: a message is an object of role and content"),
        ([{**good, "name": "me"}], "message 1: a message is an object of role and content"),
        ([{**good, "role": "function"}], f"message 1: the role of a message is one of {ROLES}"),
        ([{**good, "role": ["user"]}], f"message 1: the role of a message is one of {ROLES}"),
        ([good, good, {**good, "content": [{"type": "text"}]}], "message 3: the content of a message is not a text"),
        ([{**good, "content": None}], "message 1: the content of a message is not a text"),
    ]:
        with pytest.raises(UsageError) as refused:
            question_from(prompt)
        assert str(refused.value) == said, prompt


KEYS, VALUES = (
    st.sampled_from(["role", "content", "name"]),
    st.none() | st.integers() | st.sampled_from(["user", "tool"]),
)


@given(st.lists(st.dictionaries(KEYS, VALUES | st.lists(VALUES, max_size=2)), max_size=3))
def test_nothing_but_a_question_or_a_sentence_comes_of_any_dictionaries(found):
    try:
        turns = question_from(found)
    except UsageError as error:
        said = str(error)
        assert said.startswith("message "), said
        assert "\n" not in said
    else:
        assert [(turn.role, turn.content) for turn in turns] == [(each["role"], each["content"]) for each in found]
