"""The fewest tokens that a reply can have, by what came of it: what its usage is raised to, for chats and relays.

The laws (``tests/cloud/test_reply_floor.py``). A delta that is not empty is a token at the least, in each choice: of
content, of thoughts, of a tool call's arguments. Where log-probabilities list tokens, of whatever part, these count
instead. Where the vocabulary is known, a text has no fewer tokens than its bytes over those of the longest token. What
a server holds back or sends several tokens at a time stays below its true count; beyond the floor it is trusted.

Framing alone charges nobody more than an honest server tells:

- A role, the name of a call and the end of a text are no tokens: a service that forces a call writes its name itself.
- A delta that begins with the rest of a character belongs to the token that the last one began.
- Proxies that imitate a stream cut a text into characters. Where deltas have two characters or fewer, on average, a
  usage is believed that needs no more than eight characters for a token: English has four to five in the largest
  vocabularies. A lower usage no such framing explains, and every delta counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

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
