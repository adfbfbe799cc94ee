"""Bodies, read: each field is honoured, relayed, ignored by name, or refused by name; nothing is dropped in silence."""

from __future__ import annotations

import json
from contextlib import suppress
from unittest.mock import patch

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.serve import requests
from hybrid.serve.errors import ApiError
from hybrid.serve.requests import MOST_CHOICES, MOST_STOPS, RELAYED, num_values, object_of, read_chat, read_completion
from hybrid.settings.config import Settings, names_for
from hybrid.settings.setting_info import SettingScope
from hybrid.types import Message

TURN = {"role": "user", "content": "x"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
# Every field of OpenAI's chat route, and of others that clients send.
FIELDS = [
    "messages", "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "logprobs", "top_logprobs", "chat_template_kwargs", "reasoning_effort", "hybrid",
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "parallel_tool_calls", "verbosity", *RELAYED,
]  # fmt: skip


def chat(**fields):
    return read_chat({"model": "hybrid", "messages": [TURN], **fields})


def part(text, kind="text"):
    return {"type": kind, kind: text}


def refusal(read, **fields):
    with pytest.raises(ApiError) as found:
        read(**fields)
    return found.value


@each(
    ("fields", "choices"),
    [
        ({}, {}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_tokens": 6}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"top_p": 0.5, "top_k": 3, "min_p": 0.1}, {"top_p": 0.5, "top_k": 3, "min_p": 0.1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {}),
        ({"stop": "END"}, {"stop": ("END",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"reasoning_effort": "low"}, {"template_args": {"reasoning_effort": "low"}}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"template_args": {"enable_thinking": False}}),
        ({"model": "hybrid:kl:0.5"}, {"policy": "kl:0.5"}),
        ({"model": "hybrid:kl:adaptive"}, {"policy": "kl:adaptive"}),
        (
            {"hybrid": {"policy": "local", "conversation": "c", "offline": True}},
            {"policy": "local", "conversation": "c", "offline": True},
        ),
        ({"model": "hybrid:kl", "hybrid": {"policy": "kl"}}, {"policy": "kl"}),
        ({"temperature": None, "stop": None, "hybrid": None, "n": None}, {}),
    ],
)
def test_what_is_honoured_becomes_a_choice_of_the_answer(fields, choices):
    assert chat(**fields).choices == choices
    assert choices.keys() <= names_for(SettingScope.ANSWER) <= Settings.model_fields.keys()


@each(
    ("fields", "form"),
    [
        ({}, (1, False, False, None)),
        ({"n": 8, "stream": True}, (8, True, False, None)),
        ({"stream": True, "stream_options": {"include_usage": True}}, (1, True, True, None)),
        ({"logprobs": True}, (1, False, False, 0)),
        ({"logprobs": True, "top_logprobs": 20}, (1, False, False, 20)),
    ],
)
def test_how_it_is_answered(fields, form):
    found = chat(**fields)
    assert (found.n, found.streamed, found.include_usage, found.top_logprobs) == form
    assert not found.ignored


@each(
    ("messages", "turns"),
    [
        ([TURN], [("user", "x")]),
        ([{"role": "system", "content": "s"}, TURN], [("system", "s"), ("user", "x")]),
        ([{"role": "developer", "content": "s"}, TURN], [("developer", "s"), ("user", "x")]),
        ([{"role": "user", "content": [part("a"), part("b")]}], [("user", "ab")]),
        ([TURN, {"role": "assistant", "content": None}, TURN], [("user", "x"), ("assistant", ""), ("user", "x")]),
        ([TURN, {"role": "assistant", "content": [part("no", "refusal")]}], [("user", "x"), ("assistant", "no")]),
    ],
)  # fmt: skip
def test_a_conversation_is_read_with_all_its_texts(messages, turns):
    found = chat(messages=messages)
    assert found.question == tuple(Message(*turn) for turn in turns)
    assert not found.relay


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
ANSWERED = {"role": "tool", "tool_call_id": "1", "content": "4"}
IMAGE = {"role": "user", "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": "u"}}]}


@each(
    ("fields", "relay"),
    [
        ({"tools": [{"type": "function"}]}, ("tools",)),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, ("tools", "tool_choice")),
        ({"tools": [{"type": "function"}], "tool_choice": "auto"}, ("tools",)),
        ({"response_format": {"type": "json_schema"}}, ("response_format",)),
        ({"logit_bias": {"5": 1}}, ("logit_bias",)),
        ({"presence_penalty": 0.5}, ("presence_penalty",)),
        ({"frequency_penalty": -1}, ("frequency_penalty",)),
        ({"messages": [TURN, CALL, ANSWERED]}, ("messages[].tool_calls", "messages[].role=tool")),
        ({"messages": [IMAGE]}, ("messages[].content.type=image_url",)),
        ({"modalities": ["text", "audio"], "audio": {}}, ("modalities", "audio")),
    ],
)
def test_what_no_hybrid_can_honour_is_named_for_a_relay(fields, relay):
    assert chat(**fields).relay == relay
    assert chat(**fields, top_p=0).relay == relay, "a relay's server may know what that means"


@each(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"modalities": ["text"]},
        {"messages": [TURN, {"role": "assistant", "content": "y", "tool_calls": None, "function_call": None}, TURN]},
        {"messages": [TURN, {"role": "assistant", "content": "y", "tool_calls": []}, TURN]},
    ],
)
def test_a_neutral_value_forces_nothing(fields):
    found = chat(**fields)
    assert (found.relay, found.ignored) == ((), ())


def test_what_changes_nothing_here_is_named():
    messages = [{**TURN, "name": "me", "cache_control": {}}]
    found = chat(messages=messages, user="u", metadata={}, stream_options={"include_obfuscation": False}, odd=1)
    named = (
        "messages[].name",
        "messages[].cache_control",
        "user",
        "metadata",
        "odd",
        "stream_options.include_obfuscation",
    )
    assert sorted(found.ignored) == sorted(named)


@each(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"n": MOST_CHOICES + 1}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"hybrid": "kl"}, "hybrid"),
        ({"hybrid": {"police": "kl"}}, "hybrid.police"),
        ({"hybrid": {"policy": "klingon"}}, "hybrid.policy"),
        ({"stop": ["x"] * (MOST_STOPS + 1)}, "stop"),
        ({"model": "hybrid:kl", "hybrid": {"policy": "local"}}, "hybrid.policy"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"stream_options": []}, "stream_options"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(fields, param):
    found = refusal(chat, **fields)
    assert (found.status, found.param) == (400, param)
    assert param in found.message


@each("name", ["gpt-4o", "hybrid:", "hybrid:klingon", "hybrid:kl:x", "hybrid:kl:0.5:1", "Hybrid", "hybrid:local:1"])
def test_another_model_is_not_found_and_near_ones_are_named(name):
    found = refusal(chat, model=name)
    assert (found.status, found.code, found.param) == (404, "model_not_found", "model")
    assert "hybrid" in found.message


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_whatever_a_body_holds_it_is_read_or_refused(fields):
    try:
        found = read_chat({"model": "hybrid", "messages": [TURN], **fields})
    except ApiError as error:
        assert error.status in {400, 404}  # noqa: PT017
        assert set(error.body["error"]) == {"message", "type", "param", "code"}  # noqa: PT017
    else:
        told = {name.partition(".")[0].partition("[")[0] for name in (*found.ignored, *found.relay)}
        known = {"seed", "stream", "n", "logprobs", "top_logprobs", "hybrid", "stream_options", "model", "messages"}
        renamed = {"max_completion_tokens": "max_tokens", "reasoning_effort": "template_args"}
        renamed["chat_template_kwargs"] = "template_args"
        for name, value in each_of(fields.items(), least=0):
            honoured = renamed.get(name, name) in found.choices or name in known
            neutral = value is None or (name in RELAYED and not RELAYED[name](value)) or value in ({}, [])
            assert honoured or neutral or name in told, name
            assert not (honoured and name in found.ignored), name


@given(st.binary(max_size=20) | st.text(max_size=20).map(str.encode) | st.just(b"[" * 100_000))
def test_a_body_is_an_object_or_refused(raw):
    try:
        assert isinstance(object_of(raw), dict)
    except ApiError as error:
        assert error.code == "invalid_json"  # noqa: PT017


def counted(value):
    """Count the lists and objects of a parsed document, and what stands behind another in one."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values() if isinstance(value, dict) else value)
    return 1 + max(0, len(inner) - 1) + sum(map(counted, inner))


HARD = st.text(st.sampled_from('"\\\\,[{a\u00e9'), max_size=12)


@given(
    st.recursive(
        st.none() | st.floats() | HARD,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HARD, inner, max_size=4),
        max_leaves=20,
    ),
    st.booleans(),
    st.integers(1, 9),
)
def test_the_values_of_a_body_are_counted_without_reading_it(value, escaped, at_once):
    """Wherever the parts that are looked at end: a quote may stand in one, and what escapes it in the one before."""
    raw = json.dumps(value, ensure_ascii=escaped).encode()
    with patch.object(requests, "COUNTED_AT_ONCE", at_once):
        assert num_values(raw) == counted(value)


@given(
    st.lists(st.sampled_from([b'"', b"\\", b",", b"[", b"1", b"\xff"]), max_size=30).map(b"".join), st.integers(1, 9)
)
def test_no_fewer_values_are_counted_of_what_is_no_json_than_are_read_of_it(raw, at_once):
    """Nothing is read beyond the first fault."""
    read = 0
    for end in range(len(raw) + 1):
        with suppress(ValueError):
            read = max(read, counted(json.loads(b"[" + raw[:end] + b"]")))
    with patch.object(requests, "COUNTED_AT_ONCE", at_once):
        assert num_values(b"[" + raw) >= read


@each("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_body_is_utf_8(encoding):
    """As JSON between systems is (RFC 8259, 8.1); in another encoding its values could not be counted."""
    assert object_of('{"a": "\u2200"}'.encode()) == {"a": "\u2200"}
    with pytest.raises(ApiError) as found:
        object_of('{"a": "\u2200"}'.encode(encoding))
    assert found.value.code == "invalid_json"


@each(
    ("fields", "prompt"),
    [({"prompt": "a b"}, "a b"), ({"prompt": ["a b"]}, "a b"), ({"prompt": "a", "echo": False, "best_of": 1}, "a")],
)
def test_a_text_is_continued_as_it_stands(fields, prompt):
    found = read_completion({"model": "hybrid", **fields})
    assert found.question == prompt
    assert found.choices == {"raw": True}


@each(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logit_bias": {"1": 1}}, "logit_bias"),
    ],
)
def test_what_a_continued_text_cannot_have_is_refused(fields, param):
    with pytest.raises(ApiError) as found:
        read_completion({"model": "hybrid", **fields})
    assert (found.value.status, found.value.param) == (400, param)
