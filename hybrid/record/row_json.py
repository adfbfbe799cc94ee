"""The cloud's rows in a trace: written and read back, of the local vocabulary or of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from hybrid.defer.packed import read_number
from hybrid.prob import Spelling, TextRow, TopK
from hybrid.prob.distribution import MAX_ID
from hybrid.prob.terms import ROUNDING


def row_to_json(row: TopK) -> dict[str, Any]:
    """Return a row; one of another vocabulary is the strings that it shows, in hexadecimal."""
    if isinstance(row, TextRow):
        text = {"strings": [each.hex() for each in row.strings], "masses": row.masses.tolist()}
        return {**text, "ending": row.ending, "hidden": row.hidden, "best": row.best, "noise": row.noise}
    return asdict(row) | {"ids": row.ids.tolist(), "logprobs": row.logprobs.tolist()}


def row_from_json(told: Mapping[str, Any], words: Spelling) -> TopK:
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
    words: Spelling,
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
