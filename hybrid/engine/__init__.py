"""The local model behind one port. The only importer of ``llama_cpp``, which is loaded with ``hybrid.engine.llama``."""

from hybrid.engine.cursor import ONE_BY_ONE, Cursor, num_shared
from hybrid.engine.pool import ContextPool, PooledContext
from hybrid.engine.port import MEND_CONTEXT, ChatVocabulary, Engine, Interrupted, IsCancelled
from hybrid.engine.scripted import ScriptedEngine
from hybrid.engine.worker import Worker

__all__ = [
    "MEND_CONTEXT",
    "ONE_BY_ONE",
    "ChatVocabulary",
    "ContextPool",
    "Cursor",
    "Engine",
    "Interrupted",
    "IsCancelled",
    "PooledContext",
    "ScriptedEngine",
    "Worker",
    "num_shared",
]
