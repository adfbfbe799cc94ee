"""What a local model takes and where it lies, as a user is told: layers on a GPU, and the KV caches."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.engine.gpu import Placement
from hybrid.engine.kv_cache import KvCacheSize, as_size

# From here on a cache is worth a line: beside the weights of a model of a billion parameters it is no trifle.
BIG_CACHE = 2**30


@dataclass(frozen=True)
class LocalMemory:
    """Where layers lie, and the cache of so many contexts of so many tokens each; None: no cache that grows."""

    placement: Placement
    cache: KvCacheSize | None
    num_context: int
    num_contexts: int = 1

    @property
    def cache_bytes(self) -> int:
        """Bytes of all caches together, wherever they lie."""
        return 0 if self.cache is None else self.cache.bytes_per_token * self.num_context * self.num_contexts

    @property
    def cache_told(self) -> str:
        """The size in words: 288 MiB for 8192 tokens in f16."""
        if self.cache is None:
            return "a state of its own, whatever the length"
        several = f"{self.num_contexts} x " if self.num_contexts > 1 else ""
        return f"{as_size(self.cache_bytes)} for {several}{self.num_context} tokens in {self.cache.kv_type}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is said when the model is opened: where it lies, if there is a GPU, and how big a big cache is."""
        big = f"the local model's KV cache takes {self.cache_told}" if self.cache_bytes >= BIG_CACHE else ""
        return tuple(said for said in (self.placement.told, big) if said)
