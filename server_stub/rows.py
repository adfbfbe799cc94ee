"""Next-token rows as an endpoint keeps them: the top of the list, and what is known of the actual token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hybrid.prob import Dense

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
