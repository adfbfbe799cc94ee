"""What a request wants computed, in whatever family's words it came: the one thing that all dialects translate into.

An ``Ask`` knows no field of any wire. ``Completion`` computes it and an ``Exchange`` says the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hybrid.prob import Dense

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Scoring:
    """Which rows of the prompt are wanted, and how much of the prefix cache may be read for them.

    The row after n tokens says what follows them. Wanted are those after ``start + 1`` tokens and more: the row of the
    token at ``start`` itself would need the scores of the position before it, which no cache keeps. Each row tells its
    ``num_top`` likeliest tokens (the server's own limit at least) and those of ``watched``, one tuple per wanted row.
    ``max_cached`` tokens of the prefix may come from the cache; ``keeps_rows`` answers rows that were computed once
    again instead.
    """

    start: int = 0
    num_top: int = 0
    watched: tuple[Ids, ...] = ()
    max_cached: int = 0
    keeps_rows: bool = False

    def watched_after(self, num_tokens: int) -> Ids:
        """Return what the row after so many tokens must tell besides its likeliest."""
        return self.watched[num_tokens - self.start - 1] if self.watched else ()


@dataclass(frozen=True)
class Ask:
    """A prompt to continue, how to draw, and which log-probabilities to keep on the way.

    ``scoring`` None: no rows of the prompt. ``num_top`` and ``watched`` are for the rows of written tokens, as in
    ``Scoring``. ``processed_rows``: those rows are told after bias and temperature, not raw. ``ignores_end``: an end
    token is one like any other. ``unwritten``: its one token is drawn for its row alone, and neither told nor charged.
    """

    ids: Ids
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    salt: str | None = None
    scoring: Scoring | None = None
    num_top: int = 0
    watched: Ids = ()
    processed_rows: bool = False
    ignores_end: bool = False
    unwritten: bool = False


# Next-token rows as an endpoint keeps them: the top of the list, and what is known of the actual token.

# Asked for in the place of a token: no token, so never likely. vLLM pads its lists of candidates with it.
NO_TOKEN = -1


@dataclass(frozen=True)
class Row:
    """The ``max_logprobs`` best tokens with their log-probabilities, and one token beside them with its rank.

    ``watched`` are further tokens with theirs, in the order they were asked for.
    """

    top: tuple[tuple[int, float], ...]
    beside: tuple[int, float, int] | None = None
    watched: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, dense: Dense, size: int, actual: int | None = None, watched: tuple[int, ...] = ()) -> Row:
        """Keep the top ``size`` of a full distribution, and the actual token where it is not among them."""
        top, others = tuple(dense.top(size)), cls._of(dense, watched)
        if actual is None or any(i == actual for i, _ in top):
            return cls(top, None, others)
        score = dense.logits[actual]
        return cls(top, (actual, float(score) - dense.log_total, int((dense.logits > score).sum()) + 1), others)

    @staticmethod
    def _of(dense: Dense, watched: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
        ids = np.array(watched, dtype=np.int64)
        logprobs = np.where(ids == NO_TOKEN, -np.inf, dense.logprobs_of(ids))
        return tuple(zip(watched, logprobs.tolist(), strict=True))

    def knows(self, token: int) -> bool:
        """Whether this row can tell the token's log-probability."""
        return any(i == token for i, _ in self.top) or (self.beside is not None and self.beside[0] == token)

    def actual(self, token: int) -> tuple[float, int]:
        """Return a token's log-probability and rank. Raises KeyError where the row does not know it."""
        for rank, (i, logprob) in enumerate(self.top, start=1):
            if i == token:
                return logprob, rank
        if self.beside is None or self.beside[0] != token:
            raise KeyError(token)
        return self.beside[1], self.beside[2]
