"""A chat template is somebody else's program: it may write text, refuse, or fail, and nothing else."""

from __future__ import annotations

import os

import pytest
from cases import each

from hybrid.engine import template_meter
from hybrid.engine.chat import ChatRenderer
from hybrid.engine.llama import Weights
from hybrid.engine.template import ChatTemplate, TemplateFault
from hybrid.errors import UsageError
from hybrid.types import Message

TURNS = [Message("system", "Be brief."), Message("user", "Hi\n")]


def render(template: str, turns: list[Message] = TURNS) -> str:
    pieces = ChatRenderer(ChatTemplate(template, "<bos>", "<eos>"), "tiny.gguf").pieces(turns, {}, apart=False)
    return "".join(piece.text for piece in pieces)


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
    with pytest.raises(UsageError, match=r"^the chat template of tiny\.gguf refused .*--raw"):
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


def write(template: str, **given: object) -> str:
    return ChatTemplate(template).write([], given, prompt=True)


# A list of two lists of two lists: short here, 2 ** 99 numbers to write.
NESTED = "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
# The same of tuples, which can be hashed: each use of the last one takes 2 ** 26 steps that nobody counts.
PAIRS = "{% set n = namespace(s=(1,)) %}{% for i in range(26) %}{% set n.s = (n.s, n.s) %}{% endfor %}"
HASHED_OR_COMPARED = ("{'a': 1}.get(n.s)", "{'a': 1}[n.s]", "{n.s: 1}", "[n.s].count((n.s, 1))", "n.s is in [(n.s, 1)]")
LONG = "{% set x = 'a ' * 1000000 %}"
MAPPINGS = (
    "{% set n = namespace(s=dict(a=1), t=dict(a=1)) %}{% for i in range(26) %}"
    "{% set n.s = dict(a=n.s, b=n.s) %}{% set n.t = dict(a=n.t, b=n.t) %}{% endfor %}"
)


@each(
    "endless",
    [
        "{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for a in 'xx' recursive %}{{ loop('xx') }}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        f"{NESTED}{{{{ n.s }}}}",
        f"{NESTED}{{{{ n.s | tojson }}}}",
        f"{NESTED}{{{{ 'a' ~ n.s }}}}",
        *(f"{PAIRS}{{{{ {use} }}}}" for use in HASHED_OR_COMPARED),
        f"{MAPPINGS}{{{{ n.s is eq n.t }}}}",
        f"{NESTED}{{{{ '%s' % n.s }}}}",
        f"{NESTED}{{{{ '{{}}'.format(n.s) }}}}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 9000 * 9000 }}",
        "{{ '{:>10000000000}'.format(1) }}",
        "{{ '%010000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ 2 ** 9999 ** 9999 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ '%999999999d' | format(1) }}",
        f"{LONG}{{{{ x.replace('a', 'b' * 9000) }}}}",
        f"{LONG}{{{{ x | replace('a', 'b' * 9000) }}}}",
        f"{LONG}{{{{ x.join(x) }}}}",
        f"{LONG}{{{{ x | join(x) }}}}",
        f"{LONG}{{{{ x.translate({{97: x}}) }}}}",
        f"{LONG}{{{{ x.expandtabs(9999) }}}}",
        f"{LONG}{{{{ ('{{0}}' * 2000).format(x) }}}}",
        f"{LONG}{{{{ [1, 2, 3] | tojson(indent=x) }}}}",
        f"{LONG}{{{{ [1, 2, 3] | tojson(separators=(x, x)) }}}}",
        "{{ ('a\\n' * 2000000) | indent(9999) }}",
        f"{LONG}{{% for i in range(2000) %}}{{% set y = x.split() %}}{{% endfor %}}",
        "{{ ([0] * 4000000) | map('string') | list }}",
        "{{ ('x' * 9000) | replace('x', 'y' * 9000) }}",
        "{{ (['x' * 9000] * 9000) | join }}",
        "{% for i in range(9000) %}{{ 'x' * 9000 }}{% endfor %}",
        "{{ range(100000) | list }}",
    ],
)
def test_a_template_that_works_for_ever_or_makes_gigabytes_is_refused(monkeypatch, endless):
    """The client renders it in its own process. Fewer steps than it has, so that the test is quick."""
    monkeypatch.setattr(template_meter, "MOST_STEPS", 20_000)
    with pytest.raises(TemplateFault):
        write(endless)


@each("body", ["{% for j in 'x' * 200 %}{% endfor %}", "{% set x = 1 %}" * 50])
def test_the_steps_are_bounded(monkeypatch, body):
    """Values that a loop draws are paid for, and so is all that stands in its body, which may be of constants."""
    monkeypatch.setattr(template_meter, "MOST_STEPS", 10_000)
    with pytest.raises(TemplateFault, match="not done after"):
        write(f"{{% for i in range(1000) %}}{body}{{% endfor %}}")


def test_the_steps_are_those_of_one_conversation(monkeypatch):
    monkeypatch.setattr(template_meter, "MOST_STEPS", 40_000)
    template = ChatTemplate("{% for i in range(9000) %}{{ raise_exception('') if i < 0 }}{% endfor %}done")
    assert [template.write([], {}, prompt=True) for _ in range(12)] == ["done"] * 12
    assert template.work_share > 1 / 12


def test_the_names_that_published_templates_are_written_for_are_there():
    """Hugging Face's: what they do is in its documentation; see also ``test_published_templates.py``."""
    loop = "{% if i == 2 %}{% break %}{% endif %}{% if not i %}{% continue %}{% endif %}{{ i }}"
    assert write(f"{{% for i in range(9) %}}{loop}{{% endfor %}}") == "1"
    assert write("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert write("{{ x | tojson }}", x={"é": "<'&\n"}) == '{"é": "<\'&\\n"}'
    assert write("{{ x | tojson(indent=2) }}", x=[1]) == "[\n  1\n]"
    assert write("  {% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"
    assert write("{{ tools is none }}{{ tools is defined }}", tools=None) == "TrueTrue"


def test_the_clock_of_a_template_is_read_once(monkeypatch):
    """Otherwise a question's bits would change at midnight, between two requests of an answer."""
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}")
    assert template.write([], {}, prompt=True) == template.write([], {}, prompt=True)
    assert template.write([], {}, prompt=True) == f"{template.loaded_at:%Y-%m-%d %H:%M:%S.%f}"


def test_an_argument_is_one_that_the_template_reads_and_that_is_not_ours():
    template = ChatTemplate(
        "{% set effort = reasoning_effort | default('low') %}"
        "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}"
        "{% for m in messages %}{{ m.content }}{% set deep = deep or 1 %}{% endfor %}{{ effort }}"
    )
    assert template.reads == {"reasoning_effort", "enable_thinking", "deep"}
    template.check_args({"enable_thinking": False, "reasoning_effort": "high"})
    assert template.write([], {"enable_thinking": False, "reasoning_effort": "high"}, prompt=True) == "nohigh"
    for name, said in [
        ("enable_thinkin", "never reads it; it reads deep, enable_thinking, reasoning_effort"),
        ("messages", "from the conversation and the model"),
        ("add_generation_prompt", "from the conversation and the model"),
        ("strftime_now", "from the conversation and the model"),
        ("range", "from the conversation and the model"),
    ]:
        with pytest.raises(UsageError, match=rf"^template argument {name}: .*{said}$"):
            template.check_args({name: "x"})
    with pytest.raises(UsageError, match="never reads it; it reads none"):
        ChatTemplate("{{ messages }}").check_args({"x": 1})
