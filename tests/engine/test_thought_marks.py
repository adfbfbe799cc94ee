"""Marks of thoughts are the template's own: a pair that it spells or writes whole, or none."""

from __future__ import annotations

from cases import each

from hybrid.engine.chat import ChatRenderer
from hybrid.engine.port import PAIRS, ThoughtMarks, marks_of
from hybrid.engine.template import ChatTemplate
from hybrid.types import Message


@each("pair", PAIRS)
def test_a_pair_is_taken_where_both_stand_and_not_where_one_does(pair):
    begin, end = pair
    assert (marks_of(f"a{begin}b{end}c").open, marks_of(f"a{begin}b{end}c").close) == pair
    assert not marks_of(f"a{begin}b{end}c").opened
    assert marks_of(f"a{begin}b") is None
    assert marks_of("{{ messages }}") is None


def test_a_mark_that_is_put_together_from_parts_is_seen_in_what_is_written():
    template = (
        "{% macro tag(name) %}{{ '<' ~ name ~ '>' }}{% endmacro %}{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ tag('think') ~ tag('/think') }}{% endif %}{% endfor %}{{ tag('think') }}"
    )
    found = ChatRenderer(ChatTemplate(template), "x").thoughts([Message("user", "a")], {})
    assert (found.open, found.close, found.opened) == ("<think>", "</think>", True)


def test_an_answer_in_its_own_channel_ends_thoughts_that_were_none():
    marks = marks_of("'<|channel|>analysis<|message|>' '<|channel|>final<|message|>'")
    assert not marks.left_open("<|start|>assistant<|channel|>final<|message|>It is")
    assert marks.left_open("<|start|>assistant<|channel|>analysis<|message|>So")


@each(
    ("text", "is_open"),
    [("<a></a>1<a>", True), ("<a></a>1<a></a>", False), ("</a><a></a>", False), ("<a><a></a>", False)],
)
def test_the_last_mark_says_whether_thoughts_are_open(text, is_open):
    assert ThoughtMarks("<a>", "</a>").left_open(text) is is_open
