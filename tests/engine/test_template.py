"""A chat template is somebody else's program: it may write text, refuse, or fail, and nothing else."""

from __future__ import annotations

import os

import pytest
from cases import each

from hybrid.engine.llama import Weights
from hybrid.engine.template import render_chat
from hybrid.errors import UsageError
from hybrid.types import Message

TURNS = [Message("system", "Be brief."), Message("user", "Hi\n")]


def render(template: str, turns: list[Message] = TURNS) -> str:
    return render_chat(template, "<bos>", "<eos>", turns)


def test_a_template_sees_the_turns_the_marks_and_that_the_assistant_is_next():
    template = (
        "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message['content'] }}{{ eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert render(template) == "<bos>[system] Be brief.<eos>[user] Hi\n<eos>[assistant]"


@each(
    "reach",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ messages[0].content) }}",
        "{{ lipsum.__globals__['os'].system('touch ' ~ messages[0].content) }}",
        "{{ raise_exception.__globals__['__builtins__'].open(messages[0].content, 'w') }}",
        "{{ self.__init__.__globals__.__builtins__.open(messages[0].content, 'w') }}",
        "{{ strftime_now.__func__.__globals__.os.system('touch ' ~ messages[0].content) }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}{{ raise_exception.__code__.co_consts }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ messages.append(messages[0]) }}",
        "{{ messages[0].update({'content': 'other'}) }}",
        "{% set _ = messages.clear() %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.system('touch ' ~ messages[0].content) }}",
    ],
)
def test_a_template_that_reaches_out_is_refused_and_does_nothing(tmp_path, monkeypatch, reach):
    """CVE-2024-34359 was code execution through exactly this."""
    monkeypatch.setattr(os, "system", lambda command: pytest.fail(f"ran {command}"))
    mark = tmp_path / "mark"
    turns = [Message("user", str(mark))]
    with pytest.raises(UsageError, match="--raw"):
        render(reach, turns)
    assert not mark.exists()
    assert turns == [Message("user", str(mark))]


@each(
    "broken",
    [
        "{% if",
        "{{ messages | no_such_filter }}",
        "{{ no_such_function() }}",
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ range(1000000000) | list }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'x'.encode('no such encoding') }}",
    ],
)
def test_a_template_that_fails_in_any_way_is_a_usage_error(broken):
    """The file is at fault and the person can go around it: one sentence, no traceback."""
    with pytest.raises(UsageError, match=r"^the model's chat template refused .*--raw"):
        render(broken)


def test_a_template_may_refuse_a_conversation_in_its_own_words():
    with pytest.raises(UsageError, match=r"roles must alternate.*--raw"):
        render("{{ raise_exception('roles must alternate') }}")


@each("kind", ["attention"])
def test_a_file_without_a_template_names_raw(weights, kind):
    with pytest.raises(UsageError, match=rf"^{kind}\.gguf has no chat template: use --raw"):
        weights[kind].render(TURNS)


def test_a_files_template_may_refuse_too(tiny_file):
    weights = Weights(tiny_file(template="{{ raise_exception('no systems') }}"))
    with pytest.raises(UsageError, match="no systems"):
        weights.render(TURNS)
    weights.close()
