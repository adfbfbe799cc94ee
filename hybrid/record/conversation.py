"""What may be put as a question: a text, or a conversation of messages, as ``Message`` or as OpenAI's dictionaries.

The law: whatever is given is a question or a UsageError of one sentence, which names the message
(``tests/run/test_conversation.py``, and for lines of a batch ``tests/cli/test_questions.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, get_args

from hybrid.defer import word_buckets
from hybrid.errors import UsageError, to_one_line
from hybrid.types import Message, Role

Prompt: TypeAlias = str | Sequence[Message | Mapping[str, str]]
TextOrTurns: TypeAlias = str | tuple[Message, ...]

NO_MESSAGE = "a message is an object of role and content"


def question_from(prompt: object) -> TextOrTurns:
    """Return what is asked. An empty text or conversation is returned as it is. Raises UsageError."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping | Message):
        raise UsageError("a conversation is a list of messages, not one message alone")
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        msg = f"a prompt is a text or a list of messages, not {to_one_line(type(prompt).__name__)}"
        raise UsageError(msg)
    return tuple(_message(each, number) for number, each in enumerate(prompt, start=1))


def _message(found: object, number: int) -> Message:
    if isinstance(found, Message):
        return found
    if isinstance(found, Mapping) and (why := _fault(found)) is None:
        return Message(found["role"], found["content"])
    msg = f"message {number}: {why if isinstance(found, Mapping) else NO_MESSAGE}"
    raise UsageError(msg)


def _fault(found: Mapping[str, object]) -> str | None:
    """Say what is wrong with a dictionary; what it says besides would be lost, so it may say nothing besides."""
    if found.keys() != {"role", "content"}:
        return NO_MESSAGE
    if found["role"] not in get_args(Role):
        return f"the role of a message is one of {', '.join(get_args(Role))}"
    return None if isinstance(found["content"], str) else "the content of a message is not a text"


def turns_of(prompt: TextOrTurns, system: str | None) -> tuple[Message, ...]:
    """Return the conversation that is put: a system message, where there is one, and the question."""
    before = (Message("system", system),) if system else ()
    return before + ((Message("user", prompt),) if isinstance(prompt, str) else prompt)


def words_of(prompt: TextOrTurns) -> tuple[int, ...]:
    """Return the buckets of a question's words, by which questions are compared: of a conversation, its last question.

    >>> words_of((Message("user", "Hi."), Message("assistant", "Hi."), Message("user", "Add 2."))) == words_of("Add 3.")
    True
    """
    return word_buckets(last_question(prompt))


def last_question(prompt: TextOrTurns) -> str:
    """Return the text of a question: of a conversation, of its last one."""
    if isinstance(prompt, str):
        return prompt
    return next((turn.content for turn in reversed(prompt) if turn.role == "user"), "")
