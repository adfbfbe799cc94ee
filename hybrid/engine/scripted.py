"""An engine that answers from a table, for tests and for teaching.

A word is a token: text is split at spaces. A function of the prefix gives the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybrid.engine.port import Interrupted, IsCancelled, Logits, never
from hybrid.errors import ContextOverflow
from hybrid.types import Ids, Message


class ScriptedEngine:
    """A model that is a table from prefixes to scores."""

    def __init__(
        self,
        words: Sequence[str],
        scores: Callable[[Ids], Sequence[float]],
        *,
        end_ids: frozenset[int] = frozenset(),
        num_context: int = 1_000_000,
    ) -> None:
        """Take the vocabulary, a table (prefix to V raw scores) and the ids that end an answer."""
        self._words = tuple(words)
        self._scores = scores
        self.end_ids = end_ids
        self.num_context = num_context
        self.has_exact_rewind = True
        self.num_tokens = len(self._words)
        self.num_decoded = 0
        self._ids: Ids = ()

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
        return self._ids

    def tokenize(self, text: str, *, special: bool = False) -> Ids:  # noqa: ARG002  (the port's shape)
        """Look every word up; an unknown one is token 0."""
        return tuple(self._words.index(word) if word in self._words else 0 for word in text.split())

    def piece(self, token: int) -> bytes:
        """Return the word and a space."""
        return self._words[token].encode() + b" "

    def render(self, messages: Sequence[Message]) -> Ids:
        """Join the turns' contents."""
        return self.tokenize(" ".join(message.content for message in messages))

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Append and look the rows up."""
        if len(self._ids) + len(ids) > self.num_context:
            msg = f"{len(self._ids) + len(ids)} tokens do not fit the context of {self.num_context}"
            raise ContextOverflow(msg)
        if cancelled():
            raise Interrupted
        self._ids += ids
        self.num_decoded += len(ids)
        ends = range(len(self._ids) - num_rows + 1, len(self._ids) + 1)
        rows = [self._scores(self._ids[:end]) for end in ends]
        return np.array(rows, dtype=np.float32).reshape(num_rows, self.num_tokens)

    def rewind(self, length: int) -> None:
        """Forget all but ``length`` tokens."""
        self._ids = self._ids[:length]

    def close(self) -> None:
        """Nothing to free."""
