"""Lines of a batch: whatever they hold, a question or one sentence."""

from __future__ import annotations

import io
import json

import pytest
from cases import each, each_of
from hypothesis import given
from hypothesis import strategies as st

from hybrid.batch import questions
from hybrid.batch.questions import InputLine, id_of, lines, object_of, question_of
from hybrid.errors import UsageError
from hybrid.types import Message


def asked(value):
    """What a line asks; bytes stand for themselves."""
    fields = object_of(InputLine(1, value if isinstance(value, bytes) else json.dumps(value).encode()))
    return id_of(fields), *question_of(fields)


@each(
    ("value", "found"),
    [
        ("hello", (None, "hello", {})),
        ({"prompt": "hello"}, (None, "hello", {})),
        ({"id": "a", "prompt": "hello", "max_tokens": 3, "seed": None}, ("a", "hello", {"max_tokens": 3})),
        ({"id": 7, "messages": [{"role": "user", "content": "é"}]}, (7, (Message("user", "é"),), {})),
        ({"custom_id": "b", "prompt": "hello"}, ("b", "hello", {})),
        (
            {
                "custom_id": "c", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
            },
            ("c", (Message("user", "hello"),), {"max_tokens": 3}),
        ),
        (b'\xef\xbb\xbf"marked"', (None, "marked", {})),
        (b"plain: \xc3\xa9\\n", (None, "plain: é\\n", {})),
        (b"\xef\xbb\xbf marked and plain", (None, "marked and plain", {})),
        (b"[1, 2] sorted", (None, "[1, 2] sorted", {})),
        (b"42 + 5", (None, "42 + 5", {})),
    ],
    ids=[
        "text", "prompt", "choices", "messages", "custom_id", "OpenAI's", "byte order mark", "plain",
        "plain behind a byte order mark", "no list", "no number",
    ],
)  # fmt: skip
def test_a_line_says_what_it_asks(value, found):
    assert asked(value) == found


@each(
    ("value", "said"),
    [
        (b'"Heat" is a film?', "; a plain question that begins so is written as a JSON text"),
        (b"plain \xff", "not UTF-8"),
        (b'{"prompt": "torn', "cannot be read as JSON"),
        (b'"half a pair: \\ud800"', "cannot be read as JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        *((raw, "neither a text nor an object") for raw in (b"42", b"null", b"true", b"-1.5", b"[]", b'["a","b"]')),
        *(
            (raw, "cannot be read as JSON")
            for raw in (b'[{"prompt": "a"},', b'[ "a",', b"[", b"]", b"}", b"},", b"], [", b"\xef\xbb\xbf")
        ),
        ([1], "neither a text nor an object"),
        ({}, "either a prompt or messages"),
        ({"prompt": "a", "messages": []}, "either a prompt or messages"),
        ({"prompt": 3}, "the prompt is not a text"),
        ({"id": True, "prompt": "a"}, "an id is a text or a whole number"),
        ({"id": [1], "prompt": "a"}, "an id is a text or a whole number"),
        ({"prompt": "a", "cap": 1, "x\n": 2}, "no field called cap, x; it may have id, prompt, messages, bonus,"),
        ({"prompt": "a", "self": 1}, "no field called self"),
        ({"prompt": "a", "body": {}}, "a line that has a body"),
        ({"body": "hello"}, "a line that has a body"),
        ({"messages": []}, "a list of at least one object"),
        ({"messages": "hello"}, "a list of at least one object"),
        ({"messages": [{"role": "user"}]}, "an object of role and content"),
        ({"messages": [{"role": "ai", "content": "a"}]}, "one of system, developer, user, assistant, tool"),
        ({"messages": [{"role": [], "content": "a"}]}, "one of system, developer, user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "the content of a message is not a text"),
    ],
)
def test_what_a_line_cannot_ask_is_one_sentence(value, said):
    with pytest.raises(UsageError) as found:
        asked(value)
    assert said in str(found.value)
    assert "\n" not in str(found.value)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")), st.booleans())
def test_a_plain_line_is_its_own_prompt_whatever_it_holds(text, marked):
    (line,) = lines(io.BytesIO(b"\xef\xbb\xbf" * marked + f" Q{text}?\r\n".encode()))
    assert asked(line.content) == (None, f"Q{text}?", {})


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
FIELDS = st.sampled_from(["id", "custom_id", "prompt", "messages", "body", "role", "content", "model", "seed", "self"])
OBJECTS = st.recursive(
    LEAVES, lambda each: st.dictionaries(FIELDS, each, max_size=3) | st.lists(each, max_size=2), max_leaves=4
)


@given(st.binary() | OBJECTS.map(lambda value: json.dumps(value).encode()))
def test_nothing_but_a_question_or_a_sentence_comes_of_any_bytes(raw):
    found = list(lines(io.BytesIO(raw)))
    assert len(found) <= raw.count(b"\n") + 1
    for line in each_of(found, least=0):
        try:
            name, _, choices = asked(line.content)
        except UsageError:
            continue
        assert name is None or isinstance(name, str | int)
        assert choices.keys() <= questions.CHOICES


def test_lines_are_numbered_as_an_editor_numbers_them_and_blank_ones_are_passed_over():
    found = list(lines(io.BytesIO(b'"a"\r\n\n  \n "b" \n"c"')))
    assert [(line.number, line.content) for line in found] == [(1, b'"a"'), (4, b'"b"'), (5, b'"c"')]


def test_a_line_break_at_the_end_of_the_file_does_not_make_another_line_of_it():
    """Or a batch whose input has grown could not go on."""
    with_break, without = next(lines(io.BytesIO(b'"a"\n'))), next(lines(io.BytesIO(b'"a"')))
    assert with_break.digest == without.digest
    assert with_break.digest != next(lines(io.BytesIO(b'"A"'))).digest


def test_no_more_is_read_than_is_asked_for():
    """An input may be larger than memory, or a pipe that somebody still writes to."""
    file = io.BytesIO(b'"a"\n' * 1000)
    next(lines(file))
    assert file.tell() == 4


def test_a_line_without_an_end_is_passed_over_and_the_next_is_read(monkeypatch):
    monkeypatch.setattr(questions, "MOST_BYTES", 1 << 20)
    long = b'"' + b"a" * (5 << 20) + b'"'
    first, second = lines(io.BytesIO(long + b'\n"b"\n'))
    with pytest.raises(UsageError, match="longer than 1 MiB"):
        object_of(first)
    assert len(first.content) <= 1 << 20
    assert (second.number, object_of(second)) == (2, {"prompt": "b"})
