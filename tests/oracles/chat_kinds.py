"""How chat services count, bill and tell: tokenizers, tariffs and usages, honest ones and others.

Written from the services' documents, by another hand than the client. It must never import ``hybrid``.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

PIECE = re.compile(r" ?[A-Za-z]{1,6}|\d| ?[^\sA-Za-z\d]|\s")
MISSING = object()


def pieces(text: str) -> int:
    """Count tokens as a byte-level BPE of English does: parts of words, digits, and every byte of anything else."""
    return sum(max(1, len(piece.strip().encode())) if not piece.isascii() else 1 for piece in PIECE.findall(text))


def raw_bytes(text: str) -> int:
    return len(text.encode())


def normalised(form: str) -> Callable[[str], int]:
    """Count a token a byte, after a normal form: the dearest honest tokenizer of that form."""
    return lambda text: len(unicodedata.normalize(form, text).encode())


@dataclass(frozen=True)
class Tariff:
    """USD a million tokens. ``long``: from so many prompt tokens on, all counts cost ``long_times`` as much."""

    prompt: str = "1"
    cached: str = "0.1"
    completion: str = "4"
    write: str | None = None
    request: str = "0"
    long: int | None = None
    long_times: int = 2

    def nanousd(self, prompt: int, cached: int, written: int, completion: int) -> int:
        """``cached`` and ``written`` are among ``prompt``; rounded up once a request."""
        per = [
            Fraction(price) * 1000 for price in (self.prompt, self.cached, self.write or self.prompt, self.completion)
        ]
        counts = (prompt - cached - written, cached, written, completion)
        total = sum((price * count for price, count in zip(per, counts, strict=True)), Fraction(0))
        if self.long is not None and prompt > self.long:
            total *= self.long_times
        return math.ceil(total + Fraction(self.request) * 10**9)


@dataclass
class Served:
    """One request, as the service knows it."""

    number: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt: int = 0
    cached: int = 0
    written: int = 0
    caches: bool = False  # the service has a cache, and tells what it read and wrote of it
    thoughts: int = 0
    completion: int = 0  # thoughts among them
    nanousd: int = 0
    told: Any = MISSING
    deltas: list[str] = field(default_factory=list)  # texts that were sent
    bytes_sent: int = 0
    whole: bool = False  # the reply had its end
    left: bool = False  # the caller went before it

    @property
    def limit(self) -> int:
        """The most that may be written, of all choices together."""
        limit = self.body.get("max_completion_tokens", self.body.get("max_tokens"))
        return (10**6 if limit is None else limit) * self.choices

    @property
    def choices(self) -> int:
        return self.body.get("n") or 1


def usage_of(served: Served, times: Fraction = Fraction(1)) -> dict[str, Any]:
    """A usage in today's shape; ``times``: of every count, within what was allowed."""

    def more(count: int) -> int:
        return math.ceil(count * times)

    prompt, completion = more(served.prompt), min(served.limit, more(served.completion))
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    told["total_tokens"] = prompt + completion
    if served.caches:
        told["prompt_tokens_details"] = {"cached_tokens": served.cached, "cache_write_tokens": served.written}
    if served.thoughts:
        told["completion_tokens_details"] = {"reasoning_tokens": served.thoughts}
    return told


def silent(served: Served) -> dict[str, Any]:
    """A usage without details, as proxies leave it."""
    return {name: count for name, count in usage_of(served).items() if not name.endswith("_details")}


def with_prompt(value: Any) -> Callable[[Served], Any]:
    """Tell this in the place of the prompt's tokens."""
    return lambda served: {**usage_of(served), "prompt_tokens": value}


def low(served: Served) -> dict[str, Any]:
    return {**usage_of(served), "completion_tokens": 3, "total_tokens": served.prompt + 3}


def total_only(served: Served) -> dict[str, Any]:
    return {"total_tokens": served.prompt + served.completion}


@dataclass(frozen=True)
class Kind:
    """A service. ``ending``: whole, cut, cut-json, no-body, error-event, reset."""

    count: Callable[[str], int] = pieces
    tell: Callable[[Served], Any] = usage_of
    ending: str = "whole"
    preamble: int = 11
    each_turn: int = 4
    answer: int = 12  # visible tokens that a reply wants
    thoughts: int = 0
    cache_from: int | None = None  # tokens from which a prefix is cached; None: there is no cache
    prompt_per_choice: bool = False
    refuses: Sequence[int] = ()  # statuses of the first tries, which compute nothing
    retry_after: str | None = "0"
    resets: int = 0  # so many first tries are cut before a header; nothing is computed
    word: str = " sum"
    per_delta: int = 1  # tokens in one event
    extra: Callable[[Mapping[str, Any]], int] = lambda _: 0  # tokens that a template adds for what a body has

    def texts(self, body: Mapping[str, Any]) -> Iterator[str]:
        """All that a template prints: every text of every part, tools and their calls as JSON."""
        for tool in body.get("tools") or ():
            yield json.dumps(tool, indent=4, ensure_ascii=False)
        for name in ("response_format", "functions"):
            if body.get(name):
                yield json.dumps(body[name], indent=4, ensure_ascii=False)
        for turn in body["messages"]:
            yield from turn_texts(turn)

    def prompt(self, body: Mapping[str, Any], turns: int | None = None) -> int:
        """Tokens of the conversation, or of its first turns."""
        some = {**body, "messages": list(body["messages"])[:turns]}
        own = self.preamble + self.extra(some) + self.each_turn * len(some["messages"])
        return own + sum(map(self.count, self.texts(some)))


def turn_texts(turn: Mapping[str, Any]) -> Iterator[str]:
    content = turn.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for part in parts:
        for name in ("text", "refusal", "name"):
            if isinstance(part.get(name), str):
                yield part[name]
    for name in ("name", "refusal", "reasoning_content"):
        if isinstance(turn.get(name), str):
            yield turn[name]
    if turn.get("tool_calls"):
        yield json.dumps(turn["tool_calls"], indent=4, ensure_ascii=False)


NAN = float("nan")
KINDS: dict[str, Kind] = {
    "honest": Kind(),
    "honest, no preamble": Kind(preamble=0),
    "honest, long preamble": Kind(preamble=400),
    "high": Kind(tell=lambda served: usage_of(served, Fraction(13, 10))),
    "cut": Kind(ending="cut"),
    "cut-json": Kind(ending="cut-json"),
    "no-body": Kind(ending="no-body"),
    "error-event": Kind(ending="error-event"),
    "reset": Kind(ending="reset"),
    "absent": Kind(tell=lambda _: MISSING),
    "null": Kind(tell=lambda _: None),
    "low": Kind(tell=low, answer=31),
    "NFC": Kind(count=normalised("NFC")),
    "NFD": Kind(count=normalised("NFD")),
    "NFKC": Kind(count=normalised("NFKC")),
    "NFKD": Kind(count=normalised("NFKD")),
    "zero": Kind(tell=with_prompt(0)),
    "text": Kind(tell=with_prompt("12")),
    "nan": Kind(tell=with_prompt(NAN)),
    "total-only": Kind(tell=total_only),
    "writes": Kind(cache_from=0),
    "writes, minimum": Kind(cache_from=128),
    "thoughts": Kind(thoughts=9),
    "thoughts to the limit": Kind(thoughts=10**6),
    "429 first": Kind(refuses=(429,)),
    "reset first": Kind(resets=1),
}
HONEST = (
    "honest", "honest, no preamble", "honest, long preamble", "NFC", "NFD", "NFKC", "NFKD", "writes", "writes, minimum",
    "thoughts", "thoughts to the limit", "429 first", "reset first",
)  # fmt: skip
BROKEN = ("cut", "cut-json", "no-body", "error-event", "reset")
