"""What both models would have written at each place of an answer, from the rows as they were read.

Rows come before the token that they led to, and some belong to drafts that were turned down: they are told apart by
the tokens before them. A row that comes late is shown with the token that stands there.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from hybrid.prob import Dense, TopK
from hybrid.record.events import Rows
from hybrid.types import Ids

# How many of a model's likeliest tokens are shown at a place.
NUM_CANDIDATES = 5

Listed: TypeAlias = list[list[Any]]
"""A token's text, its probability, and whether it is the one that stands, each; the likeliest first."""


class Candidates:
    """The rows of one answer. ``pieces``: the bytes of each token, by its id."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self.pieces: tuple[bytes, ...] = ()
        self._ids: list[int] = []
        self._ahead: dict[Ids, dict[str, Dense | TopK]] = {}
        self._shown: list[dict[str, Listed] | None] = []

    def hear(self, event: Rows) -> int | None:
        """Take rows; return the place of the token that is shown already and gets them, if there is one."""
        rows = {"local": event.local, "cloud": event.cloud}
        known: dict[str, Dense | TopK] = {side: row for side, row in rows.items() if row is not None}
        place = len(event.at)
        if place >= len(self._ids):
            self._ahead.setdefault(event.at, {}).update(known)
            return None
        if not known or event.at != tuple(self._ids[:place]):
            return None
        self._shown[place] = (self._shown[place] or {}) | self._listed(known, self._ids[place])
        return place

    def emit(self, token: int, how: str) -> None:
        """Take the next token of the answer."""
        place = len(self._ids)
        rows = self._ahead.pop(tuple(self._ids), {}) if self._ahead else {}
        self._shown.append(self._listed(rows, token) or None)
        self._ids.append(token)
        # What was read along another text will not stand; its rows are large.
        stale = [at for at in self._ahead if len(at) <= place or (how == "recovered" and at[place] != token)]
        for at in stale:
            del self._ahead[at]

    def at(self, place: int) -> dict[str, Listed] | None:
        """Return both sides' likeliest tokens there; None: no row was read."""
        return self._shown[place]

    def clear(self) -> None:
        """Forget what is not shown."""
        self.pieces, self._ahead, self._shown, self._ids = (), {}, [], []

    def _listed(self, rows: dict[str, Dense | TopK], token: int) -> dict[str, Listed]:
        return {side: self._likeliest(row, token) for side, row in rows.items()}

    def _likeliest(self, row: Dense | TopK, token: int) -> Listed:
        if isinstance(row, Dense):
            best = row.top(NUM_CANDIDATES)
            if 0 <= token < row.logits.size and token not in dict(best):
                best.append((token, float(row.logprobs_of(np.array([token]))[0])))
        else:
            known = dict(zip(row.ids.tolist(), row.logprobs.tolist(), strict=True))
            best = list(known.items())[: min(NUM_CANDIDATES, row.num_listed)]
            if token in known and token not in dict(best):
                best.append((token, known[token]))
        return [[self._text(each), math.exp(min(0.0, logprob)), each == token] for each, logprob in best]

    def _text(self, token: int) -> str:
        return self.pieces[token].decode("utf-8", "replace") if token < len(self.pieces) else f"#{token}"
