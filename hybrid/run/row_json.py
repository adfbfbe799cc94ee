"""The cloud's rows in a trace: written and read back, of the local vocabulary or of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from hybrid.prob import Spelling, TextRow, TopK
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
    TopK.from_lists(dict(zip(ids[:num_listed], logprobs[:num_listed], strict=True)))  # raises for what is none
    return TopK(np.array(ids), np.array(logprobs), cap, num_listed, noise)


def _text_row(
    words: Spelling,
    strings: list[str],
    masses: list[float],
    ending: float,
    hidden: float,
    best: int,
    noise: float = 0.0,
) -> TextRow:
    texts, shares = tuple(map(bytes.fromhex, strings)), np.array([*masses, ending, hidden], dtype=np.float64)
    is_law = bool((shares >= 0.0).all()) and abs(float(shares.sum()) - 1.0) <= ROUNDING
    if len(texts) != len(masses) or not all(texts) or not is_law or not 0 <= best < len(words.pieces):
        raise ValueError("no row of another vocabulary")
    return TextRow.listed_as(best, texts, shares[:-2], ending, hidden, words, noise)
