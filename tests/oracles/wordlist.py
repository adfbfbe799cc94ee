"""A vocabulary of a few pieces, and what servers said that were held to the bundled one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hybrid.cloud import Chunk, Scores
from hybrid.cloud.dialects.dialect import ContinuationRequest, Dialect, Post, ScoreFlow

RECORDED = Path(__file__).parent.parent / "cloud" / "recorded"


class WordList:
    """Splits text into its longest pieces; ``opening`` stands before every text."""

    def __init__(self, pieces: Sequence[bytes], ends: Sequence[int], opening: tuple[int, ...] = ()) -> None:
        self._pieces = tuple(pieces)
        self.end_ids = frozenset(ends)
        self.num_tokens = len(self._pieces)
        self._opening = opening

    def tokenize(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        rest, ids = text.encode(), self._opening if special else ()
        while rest:
            fitting = (i for i, piece in enumerate(self._pieces) if rest.startswith(piece) and i not in self.end_ids)
            token = max(fitting, key=lambda i: len(self._pieces[i]))
            rest, ids = rest[len(self._pieces[token]) :], (*ids, token)
        return ids

    def piece(self, token: int) -> bytes:
        return self._pieces[token]


def recorded(name: str):
    """Return the question and the replies of a real server; which one it was, its file says."""
    told = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return told["question"], told["replies"]


def drive(asking: ScoreFlow, *replies: object) -> tuple[list[Post], Scores | None]:
    """Send replies to a dialect one after the other; return what it asked, and its scores once it has them."""
    asked, left = [], list(replies)
    try:
        asked.append(next(asking))
        while left:
            asked.append(asking.send(left.pop(0)))
    except StopIteration as done:
        return asked, done.value
    return asked, None


def opened(writing: ContinuationRequest) -> tuple[Post, Callable[[object], Chunk]]:
    """Return what a dialect that writes asks, and what reads one event after the other."""
    return writing.post, writing.read


def able(dialect: Dialect, **facts: object) -> Dialect:
    """Return a dialect of which other things are known."""
    return replace(dialect, can=replace(dialect.can, **facts))
