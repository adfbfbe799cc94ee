"""The local model behind one port. The only importer of ``llama_cpp``, which is loaded with ``hybrid.engine.llama``."""

from hybrid.engine.cursor import ONE_BY_ONE, Cursor, Reuse
from hybrid.engine.pool import ContextPool, CursorContext, PooledContext, Worker
from hybrid.engine.port import (
    MEND_CONTEXT,
    NO_ARGS,
    ChatVocabulary,
    Engine,
    Interrupted,
    IsCancelled,
    ThoughtMarks,
    never,
)
from hybrid.types import num_shared

__all__ = [
    "MEND_CONTEXT",
    "NO_ARGS",
    "ONE_BY_ONE",
    "ChatVocabulary",
    "ContextPool",
    "Cursor",
    "CursorContext",
    "Engine",
    "Interrupted",
    "IsCancelled",
    "PooledContext",
    "Reuse",
    "ThoughtMarks",
    "Worker",
    "never",
    "num_shared",
]
