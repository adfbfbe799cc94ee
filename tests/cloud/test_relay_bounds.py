"""A relayed body's worst case: no template, however it prints tools and calls, makes more tokens of it."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from contextlib import suppress

import published_templates
import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from normalising import HOW as NORMALISED
from normalising import LONGER, num_tokens

from hybrid.cloud.prompt_bounds import PromptCounts
from hybrid.cloud.relay_bounds import UnboundedField, bounded_prompt, printed_bytes, worst_case
from hybrid.errors import UsageError

TEXT = st.text(max_size=30) | st.sampled_from(["<>&'\"\\\n\t", "é中😀", "x" * 50, "", LONGER])
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
    | st.builds(lambda text: {"role": "user", "content": [{"type": "text", "text": text}] * 3}, TEXT)
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
            content = "\n".join(part["text"] for part in content)
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


@given(BODY, HOW, NORMALISED)
def test_no_template_makes_more_bytes_of_a_body_and_a_token_is_a_byte_at_the_least(body, how, forms):
    marks = 40 * len(body["messages"]) + 20
    told = num_tokens(rendered(body, how), forms) - marks
    assert bounded_prompt(body).published(0) >= told


@given(JSON)
def test_a_value_is_printed_in_the_longest_way(value):
    for indent in (None, 2, 4):
        for text in (json.dumps(value, indent=indent), json.dumps(value, indent=indent, ensure_ascii=False)):
            assert printed_bytes(value) >= max(num_tokens(text, how) for how in ([], ["NFD"], ["NFKD"], ["fold"]))
    exact = json.dumps(value, indent=4)
    assert printed_bytes(value) >= len(exact) + 5 * sum(map(exact.count, "<>&'"))
    if json.dumps(value, ensure_ascii=False).isascii():
        assert printed_bytes(value) == len(exact) + 5 * sum(map(exact.count, "<>&'"))
    assert printed_bytes("<") == len('"\\u003c"')


def test_how_long_a_print_is_is_counted_without_making_it():
    value = [1] * 50_000
    for _ in range(400):
        value = [value]
    tracemalloc.start()
    try:
        assert printed_bytes(value) > 80_000_000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_parts_of_a_turn_that_a_server_joins_with_lines_ends_stay_below():
    parts = ["a"] * 5_000
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}]}
    assert bounded_prompt(body).published(0) >= len("\n".join(parts))


@each(("url", "counted"), [("data:image/png;base64,AA", True), ("https://cam.example/latest.jpg", False)])
def test_an_image_that_stands_elsewhere_may_be_another_one_every_time(url, counted):
    """What it was counted as once bounds the next picture behind the same address in nothing."""
    image = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [image]}]}
    counts = PromptCounts().learn(bounded_prompt(body, 1600), 120)
    assert (counts.most(bounded_prompt(body, 1600)).tokens < 1600) == counted


def test_the_same_tools_in_another_order_are_others():
    """They are printed in the order in which they come, and may be split into other tokens."""
    turns = [{"role": "user", "content": "a"}]
    one, other = ({"type": "function", "x": 1, "y": 2}, {"y": 2, "x": 1, "type": "function"})
    counts = PromptCounts().learn(bounded_prompt({"messages": turns, "tools": [one]}), 60)
    assert counts.most(bounded_prompt({"messages": turns, "tools": [one]})).counted
    assert not counts.most(bounded_prompt({"messages": turns, "tools": [other]})).counted


@each("part, more", [({"type": "text", "text": ""}, "refusal"), ({"type": "image_url", "image_url": {}}, "text")])
def test_every_text_of_a_part_counts_whatever_its_type_means(part, more):
    """A template prints what it finds: 100,000 letters beside a picture were reserved as none."""

    def most(part):
        return worst_case({"messages": [{"role": "user", "content": [part]}]}, 1, image_tokens=9).prompt_tokens

    assert most({**part, more: "x" * 1000}) >= most(part) + 1000
    with pytest.raises(UnboundedField):
        most({**part, more: ["x"]})


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
        ("messages", [{"role": "user", "content": "a", "videos": ["https://example.com"]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": ["text"], "text": "a"}]}]),
        ("response_format", {"type": ["text"]}),
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


# ---- published templates ---------------------------------------------------------------------------------------------

NASTY = "line <one> & 'two' \"three\"\nnext é中😀\\ end"


NONE = {"type": "object"}


def function(name, said, parameters):
    return {"type": "function", "function": {"name": name, "description": said, "parameters": parameters}}


GIVEN = {
    "type": "object",
    "properties": {f"p{i}": {"type": "string", "description": NASTY, "enum": ["a", NASTY]} for i in range(4)},
}
GET = {"name": "get", "arguments": json.dumps({"a": NASTY, "b": [1, {"c": NASTY}]})}
CALL_OF_GET = {"id": "c12345678", "type": "function", "function": GET}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL_OF_GET]}
LEAST = {"messages": [{"role": "user", "content": ""}], "tools": [function("f", "", NONE)]}
ASKED = {
    "tools": {
        "messages": [{"role": "system", "content": NASTY * 3}, {"role": "user", "content": NASTY * 5}],
        "tools": [function("get", NASTY * 3, GIVEN), function("put", NASTY, GIVEN)],
    },
    "calls": {
        "messages": [
            {"role": "user", "content": NASTY},
            CALLING,
            {"role": "tool", "tool_call_id": "c12345678", "name": "get", "content": NASTY * 4},
            {"role": "user", "content": NASTY},
        ],
        "tools": [function("get", NASTY, GIVEN)],
    },
}


def as_transformers(source, body, *, parsed, web):
    """A prompt as transformers and the servers over it render it, with calls as text or parsed."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    if not web:
        made.filters["tojson"] = lambda value, indent=None, **_: json.dumps(value, ensure_ascii=False, indent=indent)

    def refuse(why):
        raise ValueError(why)

    made.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "26 Nov 2026"}
    turns = json.loads(json.dumps(body["messages"]))
    for called in [call["function"] for turn in turns for call in turn.get("tool_calls", [])] if parsed else []:
        called["arguments"] = json.loads(called["arguments"])
    given = {"messages": turns, "tools": body["tools"], "bos_token": "<s>", "eos_token": "</s>"}
    return len(made.from_string(source).render(**given, add_generation_prompt=True).encode())


@pytest.mark.slow
def test_no_published_template_makes_more_of_tools_and_calls_than_is_reserved():
    """All of llama.cpp's tree. What a template says itself is counted at three bytes a token (``dialects.chat``)."""
    try:
        found = published_templates.templates()
    except published_templates.Unavailable as error:
        pytest.skip(str(error))
    seen, largest = 0, 0.0
    for source in each_of(found.values()):
        for parsed, web in itertools.product((False, True), repeat=2):
            with suppress(TemplateError, ValueError, TypeError):  # a template without a place for it says so
                least, reserved = as_transformers(source, LEAST, parsed=parsed, web=web), worst_case(LEAST, 1)
                assert least / 3 <= reserved.prompt_tokens
                for body in ASKED.values():
                    more = as_transformers(source, body, parsed=parsed, web=web) - least
                    share = more / (worst_case(body, 1).prompt_tokens - reserved.prompt_tokens)
                    seen, largest = seen + 1, max(largest, share)
    print(f"{seen} prompts of {len(found)} templates; the longest takes {largest:.2f} of what is reserved for it")
    assert seen > 100
    assert largest <= 1.0
