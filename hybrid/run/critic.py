"""The critic: a second local model that reads what the drafter drafted, in one batch, before a planner decides.

It costs time and no money. The laws (``tests/run/test_critic.py``): its numbers are a function of the prompt and of
what was shown and drafted, whatever was decoded ahead; texts with and without look-ahead are the same; nothing that was
not shown stays in its cache. Runs on the thread of its context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hybrid.defer import CriticNumbers
from hybrid.engine import Cursor, IsCancelled
from hybrid.engine.port import never
from hybrid.policy.requests import Span, ids
from hybrid.prob import Dense
from hybrid.types import Ids


class Critic(Protocol):
    """Who says something of a draft: a model, or a trace in its place."""

    @property
    def waited_s(self) -> float:
        """How long it has waited for other contexts so far."""
        ...

    def read(self, at: Ids, span: Span, cancelled: IsCancelled) -> CriticNumbers:
        """Return what it says of a span after ``at``, the answer's tokens before it."""
        ...

    def rewind_to(self, shown: Ids) -> None:
        """Keep nothing that was not shown."""
        ...


class CursorCritic:
    """A model that reads along during one answer."""

    def __init__(self, cursor: Cursor, prompt: Ids) -> None:
        """Take the model's cursor, and the prompt, which is read when a draft is."""
        self._cursor = cursor
        self._prompt = prompt
        self._begun = False

    @property
    def waited_s(self) -> float:
        """How long it has waited for other contexts so far."""
        return self._cursor.waited_s

    def read(self, at: Ids, span: Span, cancelled: IsCancelled) -> CriticNumbers:
        """Read a span whose tokens have their local rows. Raises Interrupted."""
        rows = [token.draft_row for token in span if token.draft_row is not None]
        return self.numbers(at, ids(span), rows, cancelled)

    def numbers(self, at: Ids, tokens: Ids, drafter: Sequence[Dense], cancelled: IsCancelled = never) -> CriticNumbers:
        """Read tokens and return what it says of each; ``drafter``: the drafter's row before each of them."""
        if not self._begun:
            self._cursor.begin(self._prompt, cancelled)
            self._begun = True
        text = self._prompt + at + tokens[:-1]
        return CriticNumbers.of_rows(tokens, drafter, self._cursor.rows(text, len(tokens), cancelled) if tokens else [])

    def rewind_to(self, shown: Ids) -> None:
        """Leave no token in the cache that was not shown. Where nothing was read, the cache is as it was found."""
        if self._begun:
            self._cursor.rewind_to(self._prompt + shown)
