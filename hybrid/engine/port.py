"""The port of the local model: a tokeniser, and a KV cache that is extended and rewound.

The laws (``tests/engine/test_port.py`` asks them of every engine): ``ids`` are exactly the tokens in the cache;
``extend`` takes all its tokens, or raises and leaves in ``ids`` those it took; after ``rewind`` the next ``extend``
gives the rows that it would give had the cache never held more.

Threads must not share an engine: one owner thread drives it (``engine.worker``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybrid.types import Ids, Message, Vocabulary

Logits: TypeAlias = NDArray[np.float32]
IsCancelled: TypeAlias = Callable[[], bool]

# The remedy that every message about a too long text ends with.
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
    """A vocabulary, and a KV cache that holds some prefix."""

    @property
    def num_context(self) -> int:
        """The most tokens that the cache can hold."""
        ...

    @property
    def ids(self) -> Ids:
        """The tokens in the cache."""
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
        """Free the engine's memory."""
        ...
