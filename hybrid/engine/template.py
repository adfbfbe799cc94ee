"""Render a conversation with the chat template a model file carries.

The template is somebody else's program (CVE-2024-34359 was code execution through one), so it runs in
llama-cpp-python's immutable Jinja sandbox and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from hybrid.errors import UsageError
from hybrid.types import Message


def render_chat(template: str, bos: str, eos: str, messages: Sequence[Message]) -> str:
    """Return the text that the model should continue as the assistant.

    Raises UsageError where the template cannot be read, reaches for what the sandbox forbids, or refuses the turns.
    """
    try:
        formatter = Jinja2ChatFormatter(template=template, eos_token=eos, bos_token=bos)
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return str(formatter(messages=turns).prompt)
    except Exception as error:  # a template is a program: it may fail in any way, 1/0 and endless recursion included
        msg = f"the model's chat template refused the conversation ({error}); --raw sends the text as it stands"
        raise UsageError(msg) from error
