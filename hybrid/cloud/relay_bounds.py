"""What a chat request may be charged at the most, told from its body alone: no tokenizer here reads what is relayed.

The law (``tests/cloud/test_relay_bounds.py``): whatever template a server puts a bounded body into, with whatever
byte-level vocabulary, it is charged no more prompt tokens than this, or the body is refused by the name of the field
that nothing bounds. A token is a byte at the least, of the text in whichever of its forms is tokenised
(``prompt_bounds.max_bytes``). Texts of users and of the model stand in a prompt once; what is JSON (tools, calls and
their results, schemas) may be printed anew with any indentation, with every other character escaped, and twice. What a
server adds is told by nobody: a preamble is assumed, until the endpoint has counted (``prompt_bounds``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hybrid.cloud.prompt_bounds import TURN, BoundedPrompt, BoundedTurn, PromptCounts, max_bytes
from hybrid.cloud.reply_floor import most_completion
from hybrid.errors import UsageError
from hybrid.types import CloudUsage

# Fields that change no worst case: they shape what is drawn, or name somebody.
FREE = frozenset(
    (
        *("model", "messages", "stream", "stream_options", "stop", "seed", "logprobs", "top_logprobs", "logit_bias"),
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "verbosity"),
        "reasoning_effort",
    )
)
# Fields whose JSON a server may print into the prompt.
PRINTED = ("tools", "tool_choice", "functions", "function_call", "response_format", "chat_template_kwargs")
# Other fields that a template may write something for.
SAID = ("reasoning_effort", "verbosity", "parallel_tool_calls")
LIMITS = ("max_completion_tokens", "max_tokens")
# Other tiers are charged more than a price says.
PLAIN_TIERS = frozenset({"auto", "default", "flex"})
FORMATS = frozenset({"text", "json_object", "json_schema"})
# Llama 3.1's template indents tools by four. Some services print them in a language of their own, with comment marks
# before each line, and say twice how to call one.
INDENT, TIMES = 4, 2
# What a turn of text alone may be; its role is among a turn's marks.
PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
# What a turn and a part of one may hold; what else stands there (a video, a mark that makes a prompt dearer) no bound
# here knows.
TURN_FIELDS = frozenset(
    (
        *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "annotations"),
        *("reasoning", "reasoning_content", "thinking_blocks"),
    )
)
TEXTS = ("text", "refusal")
PART_FIELDS = frozenset({"type", *TEXTS, "image_url"})
# Servers that join the parts of a turn put a line's end between them (vLLM), or an empty line.
JOINED = 2
# What Jinja's own ``tojson`` escapes for the web, as \u003c.
FOR_THE_WEB = "<>&'"
ESCAPED = 6
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')


class UnboundedField(UsageError):
    """Nothing tells what a field may cost at the most. ``name`` is the field."""

    def __init__(self, name: str, why: str = "what it may cost has no known bound") -> None:
        """Take its name."""
        super().__init__(f"{name}: {why}, and there is a price or a cap: it is not relayed")
        self.name = name


def whole_counts(body: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts of a body (its limits, and how many answers) as whole numbers; 9.0 is one. Raises UsageError.

    >>> whole_counts({"max_tokens": 9.0, "n": None})
    {'max_tokens': 9}
    """
    given = {name: body[name] for name in (*LIMITS, "n") if body.get(name) is not None}
    for name, value in given.items():
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or value < 1:
            msg = f"{name} must be a whole number of at least 1"
            raise UsageError(msg)
    return {name: int(value) for name, value in given.items()}


def num_choices(body: Mapping[str, Any]) -> int:
    """Return how many answers are wanted. Raises UsageError."""
    return whole_counts(body).get("n", 1)


def limit_of(body: Mapping[str, Any]) -> int | None:
    """Return the most tokens of one answer that a body asks for; None: it says nothing. Raises UsageError."""
    counts = whole_counts(body)
    return min((counts[name] for name in LIMITS if name in counts), default=None)


def worst_case(
    body: Mapping[str, Any], limit: int, image_tokens: int | None = None, counts: PromptCounts | None = None
) -> CloudUsage:
    """Return the most that a body may be charged if each of its answers has ``limit`` tokens at the most.

    Answers are counted with a prompt each: some proxies ask once for each. ``image_tokens``: the most for an image;
    None: that is not known. ``counts``: what the endpoint has counted so far; where that is nothing like it, the prompt
    is assumed. Raises UnboundedField.
    """
    bound, choices = (counts or PromptCounts()).most(bounded_prompt(body, image_tokens)), num_choices(body)
    assumed = 0 if bound.counted else choices * bound.tokens
    return CloudUsage(choices * bound.tokens, most_completion(limit, choices), assumed_prompt_tokens=assumed)


def bounded_prompt(body: Mapping[str, Any], image_tokens: int | None = None) -> BoundedPrompt:
    """Return what one prompt of a body is made of. Raises UnboundedField."""
    for name, value in body.items():
        if value is not None and name not in {*FREE, *PRINTED, *LIMITS, "n"}:
            _mind_field(name, value)
    printed = [name for name in PRINTED if body.get(name) is not None]
    for name in printed:
        _mind_printed(name, body[name])
    most_printed = sum(TIMES * printed_bytes(body[name]) for name in printed)
    others = {name: body[name] for name in (*PRINTED, *SAID) if body.get(name) is not None}
    turns = tuple(_bounded_turn(turn, image_tokens) for turn in body["messages"])
    return BoundedPrompt(turns, _exactly(others), most_printed, len(printed))


def printed_bytes(value: object) -> int:
    """Return the bytes of a value printed as JSON in the longest way: indented, and with all escaped that may be.

    >>> printed_bytes("é"), printed_bytes({"a": [1]}), len(json.dumps({"a": [1]}, indent=4))
    (8, 30, 30)
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise UsageError("the body is nested too deeply") from None
    return max_bytes(text, escaped=True) + (ESCAPED - 1) * sum(map(text.count, FOR_THE_WEB)) + _indentation(text)


def _indentation(text: str) -> int:
    """Return the bytes that indentation adds to a JSON text. Counted, not made: a deep list has gigabytes of it."""
    marks = _STRINGS.sub("0", text).replace("[]", "0").replace("{}", "0").encode()
    codes = np.frombuffer(marks, np.uint8)
    opens = (codes == ord("[")) | (codes == ord("{"))
    closes = (codes == ord("]")) | (codes == ord("}"))
    depth = np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int32)
    breaks = opens | closes
    # After a comma the line's end takes the place of a space.
    return int(breaks.sum() + INDENT * depth[breaks | (codes == ord(","))].sum(dtype=np.int64))


def _mind_field(name: str, value: object) -> None:
    if name == "service_tier" and isinstance(value, str) and value in PLAIN_TIERS:
        return
    if name == "modalities" and value == ["text"]:
        return
    raise UnboundedField(name)


def _mind_printed(name: str, value: Any) -> None:
    if name == "tools":
        kinds = [tool.get("type") for tool in value] if _is_list_of_objects(value) else [None]
        if unknown := next((kind for kind in kinds if kind != "function"), None):
            raise UnboundedField(f"tools.type={unknown}"[:80])
        if None in kinds:
            raise UsageError("tools must be a list of objects, each with its type")
    if name == "response_format" and not (
        isinstance(value, Mapping) and isinstance(value.get("type"), str) and value["type"] in FORMATS
    ):
        raise UnboundedField("response_format")


def _bounded_turn(turn: Mapping[str, Any], image_tokens: int | None) -> BoundedTurn:
    """Return a turn's bound. A tool's result, and all beside role and text, may be printed as JSON."""
    _mind_names(turn, TURN_FIELDS, "messages[].")
    role, content = turn.get("role"), turn.get("content")
    rest = {name: value for name, value in turn.items() if name != "content" and value is not None}
    if isinstance(content, str) and rest.keys() == {"role"} and role in PLAIN_ROLES:
        return BoundedTurn.of(role, content)
    tokens = TIMES * printed_bytes(rest)
    if role in {"tool", "function"}:
        tokens += TIMES * printed_bytes(content)
    parts: Sequence[Any] = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    tokens += sum(_part_tokens(part, image_tokens) for part in parts)
    calls = " that calls" if rest.keys() & {"tool_calls", "function_call"} else ""
    # Behind an address there may be another picture every time.
    once = secrets.token_bytes(16) if any(map(_is_linked, parts)) else b""
    return BoundedTurn(f"{role}{calls}", _exactly(turn) + once, tokens)


def _is_linked(part: Mapping[str, Any]) -> bool:
    """Whether a part is an image that stands somewhere else; ``data:`` holds it."""
    if part.get("type") != "image_url":
        return False
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    return not (isinstance(url, str) and url.startswith("data:"))


def _exactly(value: object) -> bytes:
    """Return bytes that only an equal value has, in the same order."""
    return b"json " + json.dumps(value).encode()


def _part_tokens(part: Any, image_tokens: int | None) -> int:
    """Return the most tokens of a part: all its texts count, whatever its type says which of them is meant."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in {*TEXTS, "image_url"}:
        raise UnboundedField(f"messages[].content.type={kind}"[:80])
    _mind_names(part, PART_FIELDS - ({"image_url"} if kind != "image_url" else set()), "messages[].content.")
    texts = [part[name] for name in TEXTS if part.get(name) is not None]
    if not all(isinstance(text, str) for text in texts) or (kind in TEXTS and part.get(kind) is None):
        raise UnboundedField(f"messages[].content.type={kind}"[:80])
    tokens = sum(JOINED + max_bytes(text) for text in texts)
    if kind in TEXTS:
        return tokens
    if image_tokens is None:
        raise UnboundedField("messages[].content.type=image_url", "[relay] image_tokens does not bound an image")
    return image_tokens + TURN + tokens


def _mind_names(found: Mapping[str, Any], known: frozenset[str], within: str) -> None:
    for name, value in found.items():
        if value is not None and name not in known:
            raise UnboundedField(f"{within}{name}"[:80])


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)
