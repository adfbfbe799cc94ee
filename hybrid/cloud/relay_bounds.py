"""The most that a chat request may be charged, from its body alone, and below it the fewest tokens of a reply.

No tokenizer here reads what is relayed.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from hybrid.cloud.prompt_bounds import TURN, BoundedPrompt, BoundedTurn, PromptCounts, max_bytes
from hybrid.errors import UsageError
from hybrid.types import CloudUsage

# The fewest tokens that a reply can have, by what came of it: what its usage is raised to, for chats and relays.
#
# The laws (``tests/cloud/test_reply_floor.py``). A delta that is not empty is a token at the least, in each choice: of
# content, of thoughts, of a tool call's arguments. Where log-probabilities list tokens, of whatever part, these count
# instead. Where the vocabulary is known, a text has no fewer tokens than its bytes over those of the longest token.
# What a server holds back or sends several tokens at a time stays below its true count; beyond the floor it is trusted.
#
# Framing alone charges nobody more than an honest server tells:
#
# - A role, the name of a call and the end of a text are no tokens: a service that forces a call writes its name itself.
# - A delta that begins with the rest of a character belongs to the token that the last one began.
# - Proxies that imitate a stream cut a text into characters. Where deltas have two characters or fewer, on average, a
#   usage is believed that needs no more than eight characters for a token: English has four to five in the largest
#   vocabularies. A lower usage no such framing explains, and every delta counts.

# How many completion tokens may be charged for a limit, and by which name a service takes it: the one place for both.
#
# The law (``tests/cloud/test_completion_limit.py``): a server that thinks, and bounds thoughts and visible text
# together by the limit that it is sent, is charged no more completion than is reserved here, however it tells its
# thoughts.
#
# ``max_completion_tokens`` is OpenAI's bound of "visible output tokens and reasoning tokens"; ``max_tokens``, its older
# name, is what everybody else takes, and it bounds the thoughts too wherever that is documented (vLLM, DeepSeek,
# Gemini's and Anthropic's compatible routes). So a reservation of the limit covers the thoughts, which are charged
# before the first visible token. ``reasoning_effort`` bounds nothing: with ``none`` or ``minimal`` thoughts are few,
# without a number, so it lowers no reservation. A service that thinks beyond the limit is charged as told, and
# disputed.

LimitName: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
# Services that refuse ``max_tokens`` for their newer models.
NEW_NAMES = ("api.openai.com", ".openai.azure.com")


def limit_name(url: str) -> LimitName:
    """Return the name of the limit that a service at an address bounds thoughts by.

    >>> limit_name("https://api.openai.com/v1"), limit_name("http://127.0.0.1:8000")
    ('max_completion_tokens', 'max_tokens')
    """
    return "max_completion_tokens" if (urlsplit(url).hostname or "").endswith(NEW_NAMES) else "max_tokens"


def most_completion(limit: int, choices: int = 1) -> int:
    """Return the most completion tokens, thoughts included, that may be charged for answers of a limit each."""
    return choices * limit


CHARACTERS_OF_A_TOKEN = 8
CHARACTERS_OF_A_PIECE = 2
# What a model writes beside the content; some services tell their thoughts by two names at once.
THOUGHTS = ("reasoning_content", "reasoning")
# What stands in the place of a byte that is part of no character.
REPLACED = "\ufffd"


@dataclass
class _Choice:
    """Of one choice so far: deltas of content, others that no list counts, characters of all, tokens listed."""

    content: int = 0
    others: int = 0
    characters: int = 0
    listed: int = 0
    num_bytes: int = 0
    end: str = ""

    @property
    def num_tokens(self) -> int:
        return (self.listed or self.content) + self.others

    @property
    def is_cut_into_characters(self) -> bool:
        return not self.listed and self.characters <= CHARACTERS_OF_A_PIECE * (self.content + self.others)

    def add(self, content: str, other: str, num_listed: int) -> None:
        text = content + other
        self.listed += num_listed
        self.characters += len(text)
        self.num_bytes += len(text.replace(REPLACED, "?").encode("utf-8", "surrogatepass"))
        if text and not _continues(self.end, text):
            self.content += bool(content)
            self.others += not (content or num_listed)
        self.end = text[-1:] or self.end


class ReplyFloor:
    """Counts one reply, in events or as a whole."""

    def __init__(self, longest_token: int | None = None) -> None:
        """Take the bytes of the vocabulary's longest token; None: the vocabulary is not known."""
        self._longest_token = longest_token
        self._choices: dict[int, _Choice] = {}

    def add(self, reply: Any) -> None:
        """Count an event of a stream, or a whole reply, in OpenAI's shape; what has another shape counts nothing."""
        choices = reply.get("choices") if isinstance(reply, Mapping) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping):
                index = choice.get("index")
                found = self._choices.setdefault(index if isinstance(index, int) else 0, _Choice())
                found.add(*_texts(choice), _num_listed(choice.get("logprobs")))

    def num_tokens(self, told: int) -> int:
        """Return the fewest tokens of all choices that came. ``told``: what the usage says that they are."""
        choices = self._choices.values()
        counted = sum(choice.num_tokens for choice in choices)
        characters = sum(choice.characters for choice in choices)
        if all(choice.is_cut_into_characters for choice in choices) and told * CHARACTERS_OF_A_TOKEN >= characters:
            counted = min(counted, told)
        if self._longest_token is None:
            return counted
        return max(counted, -(-sum(choice.num_bytes for choice in choices) // self._longest_token))


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    """Return the content of a choice or of its delta, and what else a model writes."""
    part = choice.get("delta") or choice.get("message")
    part = part if isinstance(part, Mapping) else {}
    content = _text(part.get("content")) + _text(part.get("refusal")) + _text(choice.get("text"))
    thoughts = max((_text(part.get(name)) for name in THOUGHTS), key=len)
    return content, thoughts + "".join(_arguments(part))


def _arguments(part: Mapping[str, Any]) -> Iterator[str]:
    calls = part.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    for function in (*functions, part.get("function_call")):
        if isinstance(function, Mapping):
            yield _text(function.get("arguments"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _num_listed(logprobs: object) -> int:
    found = [logprobs.get(name) for name in ("content", "refusal")] if isinstance(logprobs, Mapping) else []
    return sum(len(each) for each in found if isinstance(each, list))


def _continues(end: str, text: str) -> bool:
    """Whether a text begins with the rest of a character whose first part ends the text before it."""
    return (end == text[0] == REPLACED) or ("\ud800" <= end <= "\udbff" and "\udc00" <= text[0] <= "\udfff")


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
