"""Honest chat services and conversations by number: templates that print more for what a body has, turns that change.

The same number is the same service and the same requests. It must never import ``hybrid``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import Any

from chat_kinds import Kind, normalised, pieces, raw_bytes

Extra = Callable[[Mapping[str, Any]], int]
SIGNS = ("a", "the quick ", "1234 ", "\n", "\u6f22\u5b57", "\ud55c", "\u0390", "\U0001d160", "\ufdfa", "e\u0301", " ",
         "\U0001f468\u200d\U0001f469", "<|im_end|>", "\\", '"', "{}")  # fmt: skip
COUNTS = (pieces, raw_bytes, *map(normalised, ("NFC", "NFD", "NFKC", "NFKD")))


def text(draw: random.Random) -> str:
    return "".join(draw.choice(SIGNS) for _ in range(draw.randint(1, draw.choice((2, 6, 12)))))


def service(draw: random.Random) -> Kind:
    """An honest one: what it prints depends on the body alone, by rules that published templates have."""
    found: list[Extra] = []

    def perhaps(most: int, rule: Callable[[Mapping[str, Any]], int]) -> None:
        tokens = draw.randint(0, most)
        if draw.random() < 0.4:
            found.append(lambda body: tokens * rule(body))

    perhaps(500, lambda body: all(turn["role"] != "system" for turn in body["messages"]))
    perhaps(400, lambda body: bool(body.get("tools")))
    perhaps(14, lambda body: sum(turn["role"] == "assistant" for turn in body["messages"]))
    perhaps(60, lambda body: len(body["messages"]) > 1)
    return Kind(
        count=draw.choice(COUNTS), preamble=draw.randint(0, 300), each_turn=draw.randint(0, 16),
        thoughts=draw.choice((0, 0, 5, 10**6)), answer=draw.randint(1, 30), prompt_per_choice=draw.random() < 0.3,
        extra=lambda body: sum(rule(body) for rule in found),
    )  # fmt: skip


def dialogue(draw: random.Random, num: int) -> list[list[dict[str, Any]]]:
    """Conversations that go on, are edited, begun again, and get or lose turns."""
    turns, found = [{"role": "user", "content": text(draw)}], []
    for _ in range(num):
        found.append(copy.deepcopy(turns))
        way = draw.random()
        if way < 0.5:
            turns += [{"role": role, "content": text(draw)} for role in ("assistant", "user")]
        elif way < 0.65:
            draw.choice(turns)["content"] = text(draw)
        elif way < 0.75 and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": text(draw)})
        elif way < 0.9 and len(turns) > 2:
            del turns[-2:]
        if way >= 0.9 or sum(len(turn["content"].encode()) for turn in turns) > 600:
            turns = [{"role": "user", "content": text(draw)}]
    return found
