"""How many completion tokens may be charged for a limit, and by which name a service takes it: the one place for both.

The law (``tests/cloud/test_completion_limit.py``): a server that thinks, and bounds thoughts and visible text together
by the limit that it is sent, is charged no more completion than is reserved here, however it tells its thoughts.

``max_completion_tokens`` is OpenAI's bound of "visible output tokens and reasoning tokens"; ``max_tokens``, its older
name, is what everybody else takes, and it bounds the thoughts too wherever that is documented (vLLM, DeepSeek, Gemini's
and Anthropic's compatible routes). So a reservation of the limit covers the thoughts, which are charged before the
first visible token. ``reasoning_effort`` bounds nothing: with ``none`` or ``minimal`` thoughts are few, without a
number, so it lowers no reservation. A service that thinks beyond the limit is charged as told, and disputed.
"""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import urlsplit

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
