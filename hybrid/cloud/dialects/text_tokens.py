"""Tokens, rows and continuations that are named by text.

A text may match no local token (part of a character, a token of another vocabulary) or several (control tokens, which
many servers print as the empty text; tokens of one text are one entry). Such a text names no token and is never
guessed: in a row its mass counts as hidden and becomes the row's cap, since any token not shown may hold all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

from hybrid.cloud.dialects.reading import NO_LIST, NO_ROWS, Written, choice_of, finish_of, guarded, number, read_usage
from hybrid.cloud.port import Chunk, WriteQuestion
from hybrid.cloud.prompt_bounds import max_bytes
from hybrid.errors import BadReply, MissingCapability
from hybrid.prob import TopK
from hybrid.types import Ids, Vocabulary

# Bytes of a piece that is looked for; longer ones are runs of white space, which shorter ones spell too.
LONGEST = 48


class TextVocabulary:
    """The local vocabulary as a map from texts to token ids; a text of several tokens maps to None."""

    def __init__(self, words: Vocabulary) -> None:
        """Take the local vocabulary; its table is made when it is first needed."""
        self._words = words
        self.end_ids = words.end_ids
        self.num_tokens = words.num_tokens

    @cached_property
    def opening(self) -> Ids:
        """What the model's own rule puts before every text: a BOS token, or nothing."""
        return self._words.tokenize("", special=True)

    @cached_property
    def _ids(self) -> dict[bytes, int | None]:
        found: dict[bytes, int | None] = {}
        for token in range(self._words.num_tokens):
            piece = self._words.piece(token)
            found[piece] = None if piece in found or not piece else token
        return found

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._ids))

    def id_of(self, text: str | bytes) -> int | None:
        """Return the one token of this text; None if there is none, or more than one."""
        return self._ids.get(text.encode() if isinstance(text, str) else text)

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """Return what some tokens spell, control tokens by their names."""
        return b"".join(map(self._words.piece, ids))

    def text_of(self, ids: Iterable[int]) -> str | None:
        """Return what some tokens spell; None where that ends inside a character, which no JSON can say."""
        try:
            return self.bytes_of(ids).decode()
        except UnicodeDecodeError:
            return None

    def max_tokens(self, ids: Iterable[int]) -> int:
        """Return the most tokens that a server makes of what some tokens spell: one a byte, and one that opens it.

        Half a character at the end counts as the three bytes of what stands for it.
        """
        return max_bytes(self.bytes_of(ids).decode("utf-8", "replace")) + 1

    def split(self, text: str) -> Ids | None:
        """Return tokens that spell a text exactly; None where no pieces do."""
        ids = self._words.tokenize(text) if text else ()
        return ids if self.bytes_of(ids) == text.encode() else self._longest(text.encode())

    def parts(self, spelled: bytes, num: int) -> Ids:
        """Return so many tokens that spell the beginning of a character. Raises BadReply where none do."""
        for cuts in combinations(range(1, len(spelled)), num - 1):
            ids = [self.id_of(spelled[start:end]) for start, end in pairwise((0, *cuts, len(spelled)))]
            if all(token is not None for token in ids):
                return tuple(token for token in ids if token is not None)
        msg = f"the endpoint named {num} tokens less than it wrote"
        raise BadReply(msg)

    def _longest(self, text: bytes) -> Ids | None:
        """Spell a text by its longest pieces: a tokeniser that puts a space before everything cannot go on a text."""
        found: list[int] = []
        start = 0
        while start < len(text):
            for stop in range(min(len(text), start + LONGEST), start, -1):
                token = self._ids.get(text[start:stop])
                if token is not None and token not in self.end_ids:
                    found.append(token)
                    start = stop
                    break
            else:
                return None
        return tuple(found)


# ---- rows as a mapping of texts, as OpenAI's legacy route lists them ----------------------------------------------


def row_by_text(words: TextVocabulary, listed: Mapping[str, Any], own: str, top_k: int) -> tuple[TopK | None, float]:
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


@guarded
def read_written(words: TextVocabulary, reply: Any, top_k: int) -> Chunk:
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
    ids, rows, _ = read_arrays(words, text, logprobs or {}, top_k)
    return Chunk(ids, tuple(rows), text, finish or "length", read_usage(reply))


def only_documented(question: WriteQuestion, *fields: str) -> None:
    """Raise MissingCapability for a way of drawing that the endpoint has no word for: nothing is dropped unsaid."""
    for name in fields:
        if getattr(question.sampling, name):
            msg = f"this endpoint cannot draw with --{name.replace('_', '-')}"
            raise MissingCapability(msg)
    if question.ban:
        msg = "this endpoint cannot be kept from a token"
        raise MissingCapability(msg)


def split_text(words: TextVocabulary, text: str) -> Ids:
    """Split a text into local tokens. Raises BadReply where they cannot spell it."""
    ids = words.split(text)
    if ids is None:
        msg = f"the endpoint wrote what the local vocabulary cannot spell: {text[-40:]!r}"
        raise BadReply(msg)
    return ids


def read_arrays(words: TextVocabulary, text: str, logprobs: Mapping[str, Any], top_k: int) -> Written:
    """Return the tokens of a text, with the rows that the arrays hold of those that they name."""

    def row(_: int, piece: str, top: object) -> TopK | None:
        if not isinstance(top, dict) or not top:
            raise BadReply(NO_LIST)
        return row_by_text(words, top, piece, top_k)[0]

    pairs = zip(logprobs.get("tokens") or [], logprobs.get("top_logprobs") or [], strict=True)
    return _spelled(words, text, ((piece, words.id_of(piece), top) for piece, top in pairs), row)


def _spelled(
    words: TextVocabulary,
    text: str,
    listed: Iterable[tuple[str, int | None, Any]],
    row: Callable[[int, str, Any], TopK | None],
) -> Written:
    """Return the tokens that spell a text: those ``listed`` from its beginning on, each with its text, id and row.

    From the first that names no token, or is not the text's, the local tokeniser splits the rest, which has no rows.
    """
    ids: list[int] = []
    rows: list[TopK | None] = []
    read = 0
    for piece, token, entry in listed:
        if token is None or not piece or not text.startswith(piece, read):
            break
        ids.append(token)
        rows.append(row(token, piece, entry))
        read += len(piece)
    rest = split_text(words, text[read:])
    return (*ids, *rest), [*rows, *[None] * len(rest)], text


# ---- rows as an object per token with its text, its bytes and its alternatives, as OpenAI's chat lists them -------


def read_content(words: TextVocabulary, text: str, content: Sequence[Mapping[str, Any]], top_k: int) -> Written:
    """Return the tokens of a text, with the rows of those that the objects name."""
    listed = ((str(entry["token"]), _listed_id(words, entry), entry) for entry in (content if top_k else ()))
    return _spelled(words, text, listed, lambda token, _, entry: _listed_row(words, token, entry))


def _listed_id(words: TextVocabulary, entry: Mapping[str, Any]) -> int | None:
    told = entry.get("bytes")
    if told is not None and not isinstance(told, list):  # bytes(10**12) would be that many zeros
        msg = "a token's bytes are no list"
        raise TypeError(msg)
    return words.id_of(str(entry["token"]) if told is None else bytes(told))


def _listed_row(words: TextVocabulary, token: int, entry: Mapping[str, Any]) -> TopK | None:
    """Build a row; what it lists without naming a token of ours is hidden mass. None where it names no token at all."""
    if not entry.get("top_logprobs"):
        raise BadReply(NO_LIST)
    top: dict[int, float] = {}
    hidden = 0.0
    for other in entry["top_logprobs"]:
        known, value = _listed_id(words, other), number(other["logprob"])
        if known is None or known in top:
            hidden += math.exp(value)
        else:
            top[known] = value
    return TopK.from_lists(top, (token, number(entry["logprob"])), hidden=hidden) if top else None
