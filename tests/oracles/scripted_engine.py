"""An engine that answers from a table, for tests and for teaching.

A word is a token: text is split at spaces. A function of the prefix gives the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybrid.engine.port import NO_ARGS, PROMPT_BLOCK, Interrupted, IsCancelled, Logits, ThoughtMarks, check_fits, never
from hybrid.types import Ids, Message, TemplateArg


class ScriptedEngine:
    """A model that is a table from prefixes to scores."""

    def __init__(
        self,
        words: Sequence[str],
        scores: Callable[[Ids], Sequence[float]],
        *,
        end_ids: frozenset[int] = frozenset(),
        num_context: int = 1_000_000,
        thoughts: ThoughtMarks | None = None,
    ) -> None:
        """Take the vocabulary, a table (prefix to V raw scores), its ends, and the marks of thoughts."""
        self._words = tuple(words)
        self._scores = scores
        self._thoughts = thoughts
        self.end_ids = end_ids
        self.num_context = num_context
        self.has_exact_rewind = True
        self.prompt_block = PROMPT_BLOCK
        self.waited_s = 0.0  # it shares nothing
        self.num_tokens = len(self._words)
        self.num_decoded = 0
        self._ids: Ids = ()

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
        return self._ids

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """Look every word up; an unknown one is token 0."""
        return tuple(self._words.index(word) if word in self._words else 0 for word in text.split())

    def piece(self, token: int) -> bytes:
        """Return the word and a space."""
        return self._words[token].encode() + b" "

    @property
    def template_names(self) -> frozenset[str]:
        """No template reads any."""
        return frozenset()

    def render(
        self,
        messages: Sequence[Message],
        args: Mapping[str, TemplateArg] = NO_ARGS,
        cancelled: IsCancelled = never,
    ) -> Ids:
        """Join the turns' contents."""
        return self.tokenize(" ".join(message.content for message in messages))

    def thoughts(self, messages: Sequence[Message], args: Mapping[str, TemplateArg] = NO_ARGS) -> ThoughtMarks | None:
        """Return the marks that were given."""
        return self._thoughts

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Append and look the rows up."""
        check_fits(len(self._ids) + len(ids), self.num_context)
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

    def settle(self, length: int) -> None:
        """Do nothing: a table goes back anywhere."""

    def close(self) -> None:
        """Nothing to free."""
