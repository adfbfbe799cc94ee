"""A relayed body's worst case: no template, however it prints tools and calls, makes more tokens of it."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from hybrid.cloud.relay_bounds import UnboundedField, printed_bytes, worst_case
from hybrid.errors import UsageError

TEXT = st.text(max_size=30) | st.sampled_from(["<>&'\"\\\n\t", "é中😀", "x" * 50, ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TOOL = st.builds(
    lambda name, said, given: {
        "type": "function",
        "function": {"name": name, "description": said, "parameters": given},
    },
    TEXT,
    TEXT,
    st.dictionaries(TEXT, JSON, max_size=3),
)
CALL = st.builds(
    lambda name, given: {"id": "c", "type": "function", "function": {"name": name, "arguments": given}}, TEXT, TEXT
)
TURN = (
    st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user", "developer"]), TEXT
    )
    | st.builds(lambda calls: {"role": "assistant", "content": None, "tool_calls": calls}, st.lists(CALL, max_size=2))
    | st.builds(lambda text: {"role": "tool", "tool_call_id": "c", "content": text}, TEXT)
    | st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}, TEXT)
)
BODY = st.builds(
    lambda turns, tools, schema: {
        "model": "m",
        "messages": turns,
        **({"tools": tools} if tools else {}),
        **({"response_format": {"type": "json_schema", "json_schema": schema}} if schema is not None else {}),
    },
    st.lists(TURN, min_size=1, max_size=4),
    st.lists(TOOL, max_size=2),
    st.none() | st.dictionaries(TEXT, JSON, max_size=2),
)


def printed(value, how):
    """A value as templates print it: as Python's JSON, as Jinja's own for the web, and with either's indentation."""
    text = json.dumps(value, ensure_ascii=how["ascii"], indent=how["indent"])
    for mark in "<>&'" if how["web"] else "":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def rendered(body, how):
    """A prompt as Llama's, Qwen's and other templates write one: tools twice at the most, each turn between marks."""
    parts = ["<|begin|>"]
    for _ in range(how["times"]):
        parts += [printed(tool, how) + "\n\n" for tool in body.get("tools", [])]
        parts += [printed(body["response_format"], how)] if "response_format" in body else []
    for turn in body["messages"]:
        parts.append(f"<|start|>{turn['role']}<|end|>\n")
        content = turn["content"]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        if turn["role"] == "tool":
            content = printed(content, how)
        parts.append(content or "")
        for call in turn.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            with suppress(ValueError):
                arguments = json.loads(arguments)
            parts.append(printed({"name": call["function"]["name"], "parameters": arguments}, how))
        parts.append("<|eot|>")
    return "".join(parts)


HOW = st.fixed_dictionaries(
    {"ascii": st.booleans(), "web": st.booleans(), "indent": st.sampled_from([None, 2, 4]), "times": st.integers(1, 2)}
)


@given(BODY, HOW)
def test_no_template_makes_more_bytes_of_a_body_and_a_token_is_a_byte_at_the_least(body, how):
    marks = 40 * len(body["messages"]) + 20
    told = len(rendered(body, how).encode("utf-8", "surrogatepass")) - marks
    assert worst_case(body, 1, preamble=0).prompt_tokens >= told


@given(JSON)
def test_a_value_is_printed_in_the_longest_way(value):
    for indent in (None, 2, 4):
        for text in (json.dumps(value, indent=indent), json.dumps(value, indent=indent, ensure_ascii=False)):
            assert printed_bytes(value) >= len(text.encode("utf-8", "surrogatepass"))
    assert printed_bytes("<") == len('"\\u003c"')


def test_answers_are_counted_with_a_prompt_and_a_limit_each():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    one, three = worst_case(body, 10), worst_case({**body, "n": 3}, 10)
    assert (three.prompt_tokens, three.completion_tokens) == (3 * one.prompt_tokens, 30)


@each(
    "field, value",
    [
        ("messages", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]),
        ("messages", [{"role": "assistant", "content": None, "audio": {"id": "a"}}]),
        ("tools", [{"type": "function"}, {"type": "custom"}]),
        ("service_tier", "priority"),
        ("a_field_of_tomorrow", {}),
    ],
)
def test_what_hides_tokens_or_prices_is_refused_by_its_name(field, value):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], field: value}
    with pytest.raises(UnboundedField) as refused:
        worst_case(body, 10, image_tokens=100)
    assert refused.value.name.startswith(field)


def test_what_is_null_was_not_given_and_what_costs_nothing_is_let_through():
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    free = {"audio": None, "logit_bias": {"1": 5}, "presence_penalty": 1.0, "user": "u", "service_tier": "default"}
    assert worst_case({**body, **free}, 10) == worst_case(body, 10)


@each("tools", [{"type": "function"}, [1], [{}]])
def test_tools_of_another_shape_are_a_sentence(tools):
    with pytest.raises(UsageError):
        worst_case({"model": "m", "messages": [], "tools": tools}, 10)
