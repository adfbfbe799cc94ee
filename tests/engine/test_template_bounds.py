"""What a chat template makes and how long it works is bounded by a constant and by a multiple of what it is given."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import template_bombs
from cases import each

from hybrid.engine import template_meter
from hybrid.engine.chat import ChatRenderer
from hybrid.engine.template import ChatTemplate, TemplateFault, TemplateOverload
from hybrid.errors import UsageError
from hybrid.types import Message


def write(template: str, **given: object) -> str:
    return ChatTemplate(template).write([], given, prompt=True)


GROWN = "{% set n = namespace(s='x') %}{% for i in range(60) %}"


@each(
    "made",
    [
        "{% set x = 'x'.encode() %}",
        "{% set x = 'x' | attr('encode') %}{{ x() }}",
        "{% set x = (1).to_bytes(9, 'big') %}",
        "{% set x = 2 ** 64 %}",
        "{% set x = 9223372036854775807 * 9 %}",
        "{% set x = 99999999999999999999 %}",
        "{% set x = ('f' * 99) | int(base=16) %}",
        "{% set x = 1e308 * 10 %}",
        "{% set x = 'nan' | float %}",
        "{% set x = (-8) ** 0.5 %}",
        "{{ namespace(a=1) }}",
        "{{ [namespace(a=1)] }}",
        "{{ range }}",
        "{{ 'x'.upper }}",
        "{{ self }}",
        "{% for i in 'x' %}{{ loop }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{% macro m() %}{% endmacro %}{{ [m] | string }}",
        "{% set n = namespace(s=1) %}{% set n.s = n %}",
        "{{ [1] | map('upper') }}",
        "{% autoescape true %}{{ 'x' }}{% endautoescape %}",
    ],
)
def test_only_text_numbers_of_64_bits_and_lists_of_such_are_made_or_written(made):
    with pytest.raises(TemplateFault):
        write(made)


@each(
    "endless",
    [
        GROWN + "{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}{% endfor %}",
        GROWN + "{% set n.s = {'a': n.s, 'b': n.s}.values() %}{% endfor %}{{ n.s }}",
        GROWN + "{% set n.s = namespace(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
        "{{ '{0:{1}}'.format('x', '999999999') }}",
        "{{ ('{:9999}' * 9000).format(*range(9000)) }}",
        "{{ ('{0:9999}' * 40000).format(1) }}",
        "{{ '%99999999d' is odd }}",
        "{% set x = 'x' * 1000000 %}{{ x.format(*x) }}",
        "{{ strftime_now('%99999999Y') }}",
        "{{ strftime_now('%c' * 100000) }}",
        "{% for i in range(99999) %}{% set x = 1 | round(9999, 'ceil') %}{% endfor %}",
        "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{% set y = x[1:] %}{% endfor %}",
        "{% set x = ('a' * 99999) ~ 'b' %}{% for i in range(99999) %}{% set y = ('a' * 999999).rfind(x) %}{% endfor %}",
        "{% set x = 'x' * 1000000 %}{% for i in range(99999) %}{% if x in x %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if 1.5 in range(99999) %}{% endif %}{% endfor %}",
        "{{ ([[1]] * 99999) | sum(start=[]) }}",
        "{{ 'x' | map(attribute='0.' * 99999 ~ '0') | list }}",
        "{% set x = 'x' * 4000000 %}{{ x ~ x ~ x }}",
        "{% macro m() %}{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}{% endmacro %}{{ m() }}",
        "{% for i in range(9000) %}" + "{{ i }}" * 500 + "{% endfor %}",
        "{% for a in 'x' * 9000 if false recursive %}{% endfor %}" * 30,
    ],
)
def test_what_grows_or_repeats_without_bound_is_refused_before_it_is_there(monkeypatch, endless):
    monkeypatch.setattr(template_meter, "MOST_STEPS", 40_000)
    with pytest.raises(TemplateOverload):
        write(endless)


@each("unreadable", ["{{ 'x' | center(9) }}", "{{ 1 is no_such_test }}", "{{ " + "-" * 3000 + "1 }}"])
def test_what_cannot_be_read_is_a_fault_for_whoever_asks_which_names_it_reads(unreadable):
    """It was a traceback."""
    with pytest.raises(TemplateFault):
        _ = ChatTemplate(unreadable).reads


def test_a_templates_own_words_are_cut():
    with pytest.raises(TemplateFault) as caught:
        write("{{ raise_exception('x' * 4000000) }}")
    assert len(str(caught.value)) < 1000


def test_a_template_of_any_length_is_not_compiled():
    with pytest.raises(TemplateOverload, match="characters itself"):
        write("{{ 1 }}" * 100_000)


WORDY = (
    "{% set n = namespace(last='') %}{% for m in messages %}{% if m.role == 'user' and m.content is string %}"
    "{% set n.last = m.content | trim %}{% endif %}{% for part in m.content.split('.') %}{% if '</think>' in part %}-"
    "{% else %}{{ part | replace('a', 'b') }}{% endif %}{% endfor %}{{ m.role ~ ': ' + m.content[1:] }}{% endfor %}"
)


@each("num", [1, 30, 1000])
def test_the_work_allowed_grows_with_what_is_given(monkeypatch, num):
    """Of a fixed number of steps there is none that is enough for every conversation, and too few for a bomb."""
    monkeypatch.setattr(template_meter, "MOST_STEPS", 500)
    template = ChatTemplate(WORDY)
    turns = [{"role": "user", "content": f"This is turn {i}. It has three parts. They are short."} for i in range(num)]
    assert template.write(turns, {}, prompt=True).count("user: ") == num
    assert template.work_share < 0.5


def test_a_long_turn_is_no_more_work_than_many_short_ones(monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_STEPS", 500)
    template = ChatTemplate(WORDY)
    template.write([{"role": "user", "content": "word " * 50_000}], {}, prompt=True)
    assert template.work_share < 0.7


def test_forms_that_are_tried_share_the_work_of_one(monkeypatch):
    """A conversation has a dozen forms, and each may take all the work that one may, and fail at its end."""
    monkeypatch.setattr(template_meter, "MOST_STEPS", 50_000)
    template = ChatTemplate("{% for i in range(8000) %}{% set x = 'a'.upper() %}{% endfor %}{{ 1 / 0 }}")
    forms, written = [], template.write
    template.write = lambda *args, **named: forms.append(1) or written(*args, **named)
    turns = [Message(role, "x") for role in ("system", "user", "assistant", "tool", "user")]
    with pytest.raises(UsageError, match=r"^the chat template of tiny\.gguf refused"):
        ChatRenderer(template, "tiny.gguf").pieces(turns, {}, apart=False)
    assert template.work_share < 1
    assert 2 <= len(forms) <= 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_drawn_programs_take_little_memory_and_time():
    """All together 100 s of processor time and 400 MiB; a twentieth of the steps."""
    done = subprocess.run(
        [sys.executable, template_bombs.__file__, "200", "20000"], capture_output=True, text=True, check=False
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (template_bombs.draw(len(rows)), done.stderr[-500:])
    assert len(rows) == 200
    assert not [row for row in rows if "no memory" in row[1]]
