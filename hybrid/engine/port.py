"""The local model as the rest of the house sees it: a tokeniser, and a cache that is extended and rewound.

What an engine must keep: ``ids`` is exactly what the cache holds; ``extend`` either takes all it was given or raises
and leaves ``ids`` at what was taken; after ``rewind`` the next ``extend`` gives the rows it would have given had the
cache never held more (``tests/engine`` checks both engines against each other's definition of that).

An engine is not safe to share between threads: one owner thread drives it (``engine.worker``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.types import Ids, Message, Vocabulary

Logits: TypeAlias = NDArray[np.float32]
IsCancelled: TypeAlias = Callable[[], bool]

# What a person can do about a text that is too long.
MEND_CONTEXT = "shorten the text, or raise --ctx to at most what the model was trained with"


class Interrupted(Exception):
    """The work was cancelled between two chunks."""


def never() -> bool:
    """Nobody cancels."""
    return False


class ChatVocabulary(Vocabulary, Protocol):
    """Text to ids and back, and conversations as this model reads them."""

    def render(self, messages: Sequence[Message]) -> Ids:
        """Return a conversation as the model's chat template writes it, ready for the assistant's turn.

        Raises UsageError where the model has no template or the template refuses the conversation.
        """
        ...


class Engine(ChatVocabulary, Protocol):
    """A vocabulary, and the model's cache at some prefix."""

    @property
    def num_context(self) -> int:
        """How many tokens the cache can hold."""
        ...

    @property
    def ids(self) -> Ids:
        """What the cache holds."""
        ...

    @property
    def has_exact_rewind(self) -> bool:
        """Whether ``rewind`` is free and exact: the same logits come again. Nothing is decoded ahead without it."""
        ...

    def extend(self, ids: Ids, num_rows: int = 1, cancelled: IsCancelled = never) -> Logits:
        """Append at least one token and return raw scores after each of the last ``num_rows`` of them.

        Shape (num_rows, V), a copy; ``num_rows`` at most len(ids), 0 allowed. Raises ContextOverflow before anything
        is decoded where it does not fit, Interrupted between chunks once ``cancelled()`` says so, EngineError where
        the model cannot decode or a row is no distribution (a NaN, nothing above -inf).
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...
