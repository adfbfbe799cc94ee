"""Rows beside an answer: kept until their token is written, and in a trace, of the local vocabulary or of another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from hybrid.defer.packed import read_number
from hybrid.prob import Dense, TextRow, TokenBytes, TopK
from hybrid.prob.distribution import MAX_ID
from hybrid.prob.terms import ROUNDING
from hybrid.record.answer import Token
from hybrid.types import Ids

FullOrTopK: TypeAlias = Dense | TopK
Listed: TypeAlias = list[list[Any]]
"""A token's text, its probability, and whether it is the one that stands, each; the likeliest first."""
# What is shown of a model at a place: so many of its likeliest tokens.
NUM_CANDIDATES = 5


def row_to_json(row: TopK) -> dict[str, Any]:
    """Return a row; one of another vocabulary is the strings that it shows, in hexadecimal."""
    if isinstance(row, TextRow):
        text = {"strings": [each.hex() for each in row.strings], "masses": row.masses.tolist()}
        return {**text, "ending": row.ending, "hidden": row.hidden, "best": row.best, "noise": row.noise}
    lists = {"ids": row.ids.tolist(), "logprobs": row.logprobs.tolist()}
    return {**lists, "cap": row.tail_max, "num_listed": row.num_listed, "noise": row.noise}


def row_from_json(told: Mapping[str, Any], words: TokenBytes) -> TopK:
    """Read a row that ``events.to_json`` wrote. Raises ValueError, TypeError or KeyError for what is none.

    ``words``: the local vocabulary, for rows of another one.
    """
    if "strings" in told:
        return _text_row(words=words, **told)
    return _row(**told)


def _row(ids: list[int], logprobs: list[float], num_listed: int, cap: float, noise: float = 0.0) -> TopK:
    logs, are_tokens = (
        np.array(logprobs, dtype=np.float64),
        all(type(each) is int and 0 <= each <= MAX_ID for each in ids),
    )
    if not are_tokens or logs.shape != (len(ids),) or np.isnan(logs).any() or not 0 <= num_listed <= len(ids):
        raise ValueError("no row of this vocabulary")
    TopK.from_lists(dict(zip(ids[:num_listed], logprobs[:num_listed], strict=True)))  # raises for what is none
    return TopK(np.array(ids), logs, read_number(cap, 0.0), num_listed, read_number(noise, 0.0))


def _text_row(
    words: TokenBytes,
    strings: list[str],
    masses: list[float],
    ending: float,
    hidden: float,
    best: int,
    noise: float = 0.0,
) -> TextRow:
    texts, shares = tuple(map(bytes.fromhex, strings)), np.array([*map(read_number, (*masses, ending, hidden))])
    is_law = bool((shares >= 0.0).all()) and abs(float(shares.sum()) - 1.0) <= ROUNDING
    is_token = type(best) is int and 0 <= best < len(words.pieces)
    if len(texts) != len(masses) or not all(texts) or not is_law or not is_token:
        raise ValueError("no row of another vocabulary")
    return TextRow.listed_as(best, texts, shares[:-2], ending, hidden, words, read_number(noise, 0.0))


# ---- rows until their token is written -------------------------------------------------------------------------------


class RowsAtPlace:
    """The rows of one answer until their token is written: they come before it, some along drafts that will not stand.

    They are told apart by the tokens before them; a row that comes late belongs to the token that stands there.
    """

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.ids: list[int] = []
        self._ahead: dict[Ids, dict[str, FullOrTopK]] = {}

    def read(self, at: Ids, local: Dense | None, cloud: TopK | None) -> dict[str, FullOrTopK]:
        """Take rows after the tokens ``at``; return those that belong to a token that is written already."""
        known = {side: row for side, row in (("local", local), ("cloud", cloud)) if row is not None}
        place = len(at)
        if place < len(self.ids):
            return known if at == tuple(self.ids[:place]) else {}
        self._ahead.setdefault(at, {}).update(known)
        return {}

    def write(self, token: Token) -> dict[str, FullOrTopK]:
        """Take the next token of the answer; return the rows at its place."""
        place = len(self.ids)
        rows = self._ahead.pop(tuple(self.ids), {}) if self._ahead else {}
        self.ids.append(token.id)
        # What was read along another text will not stand; its rows are large.
        gone = token.how == "recovered"
        for at in [at for at in self._ahead if len(at) <= place or (gone and at[place] != token.id)]:
            del self._ahead[at]
        return rows


class Candidates:
    """What both models would have written at each place of an answer, as ``Listed``, from the rows that were read."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._rows = RowsAtPlace()
        self.pieces: tuple[bytes, ...] = ()
        """The bytes of each token, by its id."""
        self.listed: list[dict[str, Listed] | None] = []
        """By place and by whose it is; None: no row was read."""

    def read(self, at: Ids, local: Dense | None, cloud: TopK | None) -> bool:
        """Take rows after the tokens ``at``; tell whether a token that is written already gets them."""
        if rows := self._rows.read(at, local, cloud):
            place = len(at)
            self.listed[place] = (self.listed[place] or {}) | self._of(rows, self._rows.ids[place])
        return bool(rows)

    def write(self, token: Token) -> None:
        """Take the next token of the answer."""
        self.listed.append(self._of(self._rows.write(token), token.id) or None)

    def forget(self) -> None:
        """Forget what is not shown."""
        self.pieces, self._rows = (), RowsAtPlace()

    def _of(self, rows: dict[str, FullOrTopK], token: int) -> dict[str, Listed]:
        return {side: [self._shown(*each, token) for each in _likeliest(row, token)] for side, row in rows.items()}

    def _shown(self, token: int, logprob: float, stands: int) -> list[Any]:
        text = self.pieces[token].decode("utf-8", "replace") if token < len(self.pieces) else f"#{token}"
        return [text, math.exp(min(0.0, logprob)), token == stands]


def _likeliest(row: FullOrTopK, token: int) -> list[tuple[int, float]]:
    """Return the likeliest tokens of a row with their log-probabilities, and the one that stands where it is known."""
    if isinstance(row, Dense):
        best = row.top(NUM_CANDIDATES)
        if 0 <= token < row.logits.size and token not in dict(best):
            best.append((token, float(row.logprobs_of(np.array([token]))[0])))
        return best
    known = dict(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True))
    best = list(known.items())[: min(NUM_CANDIDATES, row.num_listed)]
    return [*best, (token, known[token])] if token in known and token not in dict(best) else best
