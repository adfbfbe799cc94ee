"""The messages of a chat as turns of a conversation, and what in them is not text.

Read on day one: ``content: null`` beside tool calls, parts of type text, roles that only a cloud model knows
(https://github.com/openai/openai-openapi, ChatCompletionRequestMessage).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from hybrid.serve.body import Body
from hybrid.serve.pace import Steps
from hybrid.types import Message, Role

# A role whose turn says what a tool returned: that there was a call, the local template could not tell.
OF_TOOLS = frozenset({"tool", "function"})
# What a turn may hold besides its text that asks for nothing: clients send back what they were sent.
ECHOED = ("name", "refusal", "reasoning_content", "reasoning", "annotations", "audio", "thinking_blocks")
PLAIN, SPOKEN = {"role", "content"}, [role for role in get_args(Role) if role not in OF_TOOLS]
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


@dataclass(frozen=True)
class ReadMessages:
    """A conversation. ``relay``: what of it is no text, so that only a chat route of the cloud can be asked."""

    turns: tuple[Message, ...]
    relay: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_messages(body: Body, steps: Steps = iter) -> ReadMessages:
    """Read ``messages``, which are gone through by ``steps``. Raises ApiError."""
    found = body.given("messages")
    if not isinstance(found, list) or not found:
        raise body.wrong("messages", "a list of messages, at least one")
    turns, relay, ignored = list[Message](), list[str](), list[str]()
    for number, each in enumerate(steps(found)):
        if not isinstance(each, dict):
            raise body.wrong("messages", "a list of messages, at least one")
        if each.keys() == PLAIN and each["role"] in SPOKEN and isinstance(each["content"], str):
            turns.append(Message(each["role"], each["content"]))  # a tenth of the time of what follows
            continue
        turn = Body(each, f"messages[{number}].")
        role = turn.text("role")
        if role in OF_TOOLS:
            relay.append(f"messages[].role={role}")
            continue
        if role not in get_args(Role):
            raise turn.wrong("role", f"one of {', '.join(get_args(Role))}")
        calls = [name for name in ("tool_calls", "function_call") if turn.given(name)]
        relay += [f"messages[].{name}" for name in calls]
        text, other = _content(turn, each.get("content"), steps, missing=bool(calls))
        relay += other
        ignored += [f"messages[].{name}" for name in ECHOED if turn.given(name)]
        ignored += [f"messages[].{name.partition('.')[2]}" for name in turn.rest]
        turns.append(Message(role, text))  # type: ignore[arg-type]  # checked above
    return ReadMessages(tuple(turns), tuple(dict.fromkeys(relay)), tuple(dict.fromkeys(ignored)))


def _content(turn: Body, content: Any, steps: Steps, *, missing: bool) -> tuple[str, list[str]]:
    """Return a turn's text, and what of it is none. ``missing``: it may say nothing, for it does something."""
    turn.given("content")
    if isinstance(content, str):
        return content, []
    if content is None:
        if missing or turn.given("role") == "assistant":
            return "", []
        raise turn.wrong("content", "a text or a list of parts")
    if not isinstance(content, list):
        raise turn.wrong("content", "a text or a list of parts")
    texts, other = list[str](), list[str]()
    for part in steps(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise turn.wrong("content", "a list of parts, each with its type")
        if kind not in TEXT_PARTS:
            other.append(f"messages[].content.type={kind[:40]}")
            continue
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise turn.wrong("content", f"a list of parts; one of type {kind} holds its text")
        texts.append(text)
    return "".join(texts), other
