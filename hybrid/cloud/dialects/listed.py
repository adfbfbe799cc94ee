"""Rows as OpenAI's chat lists them: an object per token with its text, its bytes and its alternatives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.cloud.dialects.reading import number
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.errors import BadReply
from hybrid.prob import TopK
from hybrid.types import Ids


def read_content(
    words: Spelling, text: str, content: Sequence[Mapping[str, Any]], top_k: int
) -> tuple[Ids, list[TopK | None], int]:
    """Return the tokens that name the text from its beginning on, their rows, and how many characters they spell."""
    ids: list[int] = []
    rows: list[TopK | None] = []
    read = 0
    for entry in content if top_k else ():
        token, piece = _id(words, entry), str(entry["token"])
        if token is None or not piece or not text.startswith(piece, read):
            break
        ids.append(token)
        rows.append(_row(words, token, entry))
        read += len(piece)
    return tuple(ids), rows, read


def _id(words: Spelling, entry: Mapping[str, Any]) -> int | None:
    told = entry.get("bytes")
    if told is not None and not isinstance(told, list):  # bytes(10**12) would be that many zeros
        msg = "a token's bytes are no list"
        raise TypeError(msg)
    return words.id_of(str(entry["token"]) if told is None else bytes(told))


def _row(words: Spelling, token: int, entry: Mapping[str, Any]) -> TopK | None:
    """Build a row; what it lists without naming a token of ours is hidden mass. None where it names no token at all."""
    if not entry.get("top_logprobs"):
        msg = "the endpoint gave a token without a top-k list: missing, not certain"
        raise BadReply(msg)
    top: dict[int, float] = {}
    hidden = 0.0
    for other in entry["top_logprobs"]:
        known, value = _id(words, other), number(other["logprob"])
        if known is None or known in top:
            hidden += math.exp(value)
        else:
            top[known] = value
    return TopK.from_lists(top, (token, number(entry["logprob"])), hidden=hidden) if top else None
