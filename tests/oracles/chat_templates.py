"""Chat templates, one for each way in which published ones treat a conversation; and conversations to put to them."""

from __future__ import annotations

from hybrid.types import Message

_LOOP = "{% for m in messages %}"
_PROMPT = "{% endfor %}{% if add_generation_prompt %}"

PLAIN = _LOOP + "<|{{ m.role }}|>{{ m.content }}<|end|>" + _PROMPT + "<|assistant|>{% endif %}"
# Roles that it does not know leave no trace; a system text is looked for at the head only.
DROPS = (
    "{% if messages[0].role == 'system' %}<sys>{{ messages[0].content | trim }}</sys>{% endif %}" + _LOOP + ""
    "{% if m.role == 'user' %}<u>{{ m.content | trim }}</u>{% elif m.role == 'assistant' %}<a>{{ m.content }}</a>"
    "{% endif %}" + _PROMPT + "<a>{% endif %}"
)
# Users and assistants take turns, and nobody else speaks.
ALTERNATES = (
    "{{ bos_token }}" + _LOOP + "{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}" + _PROMPT + "[model]{% endif %}"
)
# The system text stands before the last user's; an assistant may not speak last.
LATE_SYSTEM = (
    "{% set first = messages[0] %}{% set rest = messages[1:] if first.role == 'system' else messages %}"
    "{% if rest[-1].role == 'assistant' %}{{ raise_exception('the last turn is no question') }}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}[INST]{% if loop.last and first.role == 'system' %}"
    "{{ first.content }}\n\n{% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}"
    "{{ eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
# Thoughts of earlier answers are taken out; the prompt begins one, unless it is told not to.
THINKS = (
    _LOOP + "<|{{ m.role }}|>{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}{{ text }}<|end|>" + _PROMPT + ""
    "<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)
# What tools say is written as JSON, and what a content says decides what is written.
TOOLS = (
    "{% if tools | length > 0 %}{{ tools | tojson }}{% endif %}" + _LOOP + "{% if m.role == 'tool' %}"
    "<tool>{{ {'out': m.content} | tojson }}</tool>"
    "{% elif not m.content.startswith('/hidden') %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endif %}"
    "{% endfor %}<assistant>"
)
OWN = {
    "plain": PLAIN,
    "drops": DROPS,
    "alternates": ALTERNATES,
    "late system": LATE_SYSTEM,
    "thinks": THINKS,
    "tools": TOOLS,
}

_ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
CONVERSATIONS = {
    "one question": "u",
    "with a system text": "su",
    "several turns": "suauau",
    "with a developer's text": "duau",
    "an open answer": "suaua",
    "with a tool": "suatau",
}


def conversation(roles: str, text: str = "Text {} of {}.") -> list[Message]:
    """Return turns of the roles that these letters stand for, each with a text of its own."""
    return [Message(_ROLES[role], text.format(i, _ROLES[role])) for i, role in enumerate(roles)]
