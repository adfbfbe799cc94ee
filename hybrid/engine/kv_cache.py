"""The KV cache of a context: which types its numbers may have, and what it takes in memory.

The law (``tests/engine/test_kv_cache.py``): what is told of its size is what llama.cpp keeps of a token, to the byte. A
type that a model cannot have is refused in a sentence before llama.cpp is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hybrid.engine.native import ll
from hybrid.errors import UsageError


@dataclass(frozen=True)
class KvType:
    """A type of numbers: llama.cpp's number of it, and the bytes of a block of so many values."""

    number: int
    block_bytes: int
    block: int = 1


DEFAULT_KV_TYPE = "f16"
# ggml.h has the numbers, ggml-common.h the blocks. As f16, bf16 takes two bytes, with less precision and f32's range.
KV_TYPES: Mapping[str, KvType] = {
    "f16": KvType(ll.GGML_TYPE_F16, 2),
    "f32": KvType(ll.GGML_TYPE_F32, 4),
    "bf16": KvType(30, 2),
    "q8_0": KvType(ll.GGML_TYPE_Q8_0, 34, 32),
    "q5_1": KvType(ll.GGML_TYPE_Q5_1, 24, 32),
    "q5_0": KvType(ll.GGML_TYPE_Q5_0, 22, 32),
    "q4_1": KvType(ll.GGML_TYPE_Q4_1, 20, 32),
    "q4_0": KvType(ll.GGML_TYPE_Q4_0, 18, 32),
}


@dataclass(frozen=True)
class KvCacheSize:
    """What a cache holds of a token: in so many layers, for so many heads, a key and a value of so many numbers."""

    num_layers: int
    num_heads: int
    key_length: int
    value_length: int
    kv_type: str = DEFAULT_KV_TYPE

    def __post_init__(self) -> None:
        """Raise UsageError where a head's numbers are no whole number of blocks."""
        block = KV_TYPES[self.kv_type].block
        for length in (self.key_length, self.value_length):
            if length % block:
                fitting = ", ".join(name for name, kind in KV_TYPES.items() if not length % kind.block)
                packs = f"kv_type {self.kv_type} packs {block} numbers"
                msg = f"{packs}, and a head of this model has {length}: it can have {fitting}"
                raise UsageError(msg)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the cache for one token, in all layers."""
        kind = KV_TYPES[self.kv_type]
        numbers = self.num_layers * self.num_heads * (self.key_length + self.value_length)
        return numbers * kind.block_bytes // kind.block


def as_size(num_bytes: float) -> str:
    """Return an amount of memory for people.

    >>> as_size(9 * 2**29), as_size(300 * 2**20), as_size(5 * 2**20)
    ('4.5 GiB', '300 MiB', '5 MiB')
    """
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
