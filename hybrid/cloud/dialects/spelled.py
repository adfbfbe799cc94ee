"""Rows and continuations that name tokens by their text, and what asking in text may cost.

A list by text can hide a likely token: control tokens and parts of characters have no text of their own, and tokens of
one text collapse into one entry. What is hidden is a mass, and becomes the row's cap: any token that is not shown may
hold all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hybrid.cloud.dialects.reading import NO_ROWS, choice_of, finish_of, guarded, number, read_usage
from hybrid.cloud.dialects.spelling import Spelling
from hybrid.cloud.port import Chunk, Question, ScoreQuestion, WriteQuestion
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import CloudUsage, Ids


def row_by_text(words: Spelling, listed: Mapping[str, Any], own: str, top_k: int) -> tuple[TopK | None, float]:
    """Return the row of a list by text, and the probability it hides; None where it shows no token at all.

    ``own`` is the text of the token beside the list, which is among its entries; beyond ``top_k`` it was appended.
    """
    top: dict[int, float] = {}
    named: dict[int, float] = {}
    shown, nameless = 0.0, 0.0
    for text, logprob in listed.items():
        token, value = words.id_of(text), number(logprob)
        if token is None:
            nameless += math.exp(value)
            continue
        (named if text == own and len(listed) > top_k else top)[token] = value
        shown += math.exp(value)
    collapsed = len(listed) < top_k or (
        nameless > 0.0 and len(listed) == top_k
    )  # one of them may be the appended token
    hidden = max(0.0, 1.0 - shown) if collapsed else nameless
    return (TopK.from_lists(top, named=named, hidden=hidden) if top else None), hidden


def bytes_worst(words: Spelling, question: Question, requests: int) -> CloudUsage:
    """Return the most that some requests in text are charged: a token per byte, and one that opens the text."""
    if isinstance(question, ScoreQuestion):
        prompt = len(words.bytes_of(question.prefix + question.span)) + 1
        return CloudUsage(requests * prompt, requests, requests=requests)
    return CloudUsage(requests * (len(words.bytes_of(question.prefix)) + 1), question.limit)


@guarded
def read_written(words: Spelling, reply: Any, top_k: int) -> Chunk:
    """Read a continuation in one piece, with the legacy arrays if they are there: its tokens, as its text spells them.

    Where texts name tokens the rows are theirs; from the first that does not, the local tokeniser splits the rest.
    """
    choice = choice_of(reply)
    text, logprobs = str(choice.get("text") or ""), choice.get("logprobs")
    finish = finish_of(choice.get("finish_reason"))
    if not text:
        return Chunk(finish=finish or "length", usage=read_usage(reply))
    if top_k and not isinstance(logprobs, dict):
        raise MissingCapability(NO_ROWS)
    ids, rows, read = named_tokens(words, text, logprobs or {}, top_k)
    rest = spelled(words, text[read:])
    return Chunk(ids + rest, (*rows, *[None] * len(rest)), text, finish or "length", read_usage(reply))


def only_documented(question: WriteQuestion, *fields: str) -> None:
    """Raise MissingCapability for a way of drawing that the endpoint has no word for: nothing is dropped unsaid."""
    for name in fields:
        if getattr(question.sampling, name):
            msg = f"this endpoint cannot draw with --{name.replace('_', '-')}"
            raise MissingCapability(msg)
    if question.ban:
        msg = "this endpoint cannot be kept from a token"
        raise MissingCapability(msg)


def spelled(words: Spelling, text: str) -> Ids:
    """Split a text into local tokens. Raises BadReply where they cannot spell it."""
    ids = words.split(text)
    if ids is None:
        msg = f"the endpoint wrote what the local vocabulary cannot spell: {text[-40:]!r}"
        raise BadReply(msg)
    return ids


def named_tokens(
    words: Spelling, text: str, logprobs: Mapping[str, Any], top_k: int
) -> tuple[Ids, list[TopK | None], int]:
    """Return the tokens that the arrays name, from the text's beginning on, their rows, and how much they spell."""
    ids: list[int] = []
    rows: list[TopK | None] = []
    read = 0
    for piece, top in zip(logprobs.get("tokens") or [], logprobs.get("top_logprobs") or [], strict=True):
        token = words.id_of(piece)
        if token is None or not text.startswith(piece, read):
            break
        if not isinstance(top, dict) or not top:
            msg = "the endpoint gave a token without a top-k list: missing, not certain"
            raise BadReply(msg)
        ids.append(token)
        rows.append(row_by_text(words, top, piece, top_k)[0])
        read += len(piece)
    return tuple(ids), rows, read
