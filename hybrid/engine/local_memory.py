"""What a local model takes and where it lies, as a user is told: layers on a GPU, and the KV caches."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hybrid.engine.native import ll
from hybrid.errors import UsageError

# What lies on a GPU: the devices that llama.cpp found, and how many layers of a model went there.
#
# The law (``tests/engine/test_gpu.py``): a build or a machine without a GPU has no layer there, whatever was asked for,
# and then nothing is said, unless layers were asked for. llama.cpp counts the output as a layer.

# ggml_backend_dev_type: a GPU with memory of its own, and one that shares the machine's.
_GPU_TYPES = frozenset((1, 2))


@dataclass(frozen=True)
class GpuDevice:
    """A GPU as llama.cpp names it (``CUDA0``) and describes it; the latter may be empty."""

    name: str
    description: str = ""

    def __str__(self) -> str:
        """Return the name, and in brackets what it is."""
        return f"{self.name} ({self.description})" if self.description else self.name


def gpu_devices() -> tuple[GpuDevice, ...]:
    """Return the GPUs on which llama.cpp can keep layers; none in a build without them."""
    if not ll.llama_supports_gpu_offload():
        return ()
    try:
        return tuple(_devices(ll.llama_cpp._lib))
    except AttributeError:  # a system on which a library does not show those that it was linked with
        return (GpuDevice("a GPU"),)


def _devices(library: ctypes.CDLL) -> Iterator[GpuDevice]:
    count, get = library.ggml_backend_dev_count, library.ggml_backend_dev_get
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, [ctypes.c_size_t]
    kind, name, described = (getattr(library, f"ggml_backend_dev_{what}") for what in ("type", "name", "description"))
    for function, result in ((kind, ctypes.c_int), (name, ctypes.c_char_p), (described, ctypes.c_char_p)):
        function.argtypes, function.restype = [ctypes.c_void_p], result
    for device in map(get, range(count())):
        if kind(device) in _GPU_TYPES:
            yield GpuDevice(*((text or b"").decode("utf-8", "replace") for text in (name(device), described(device))))


@dataclass(frozen=True)
class Placement:
    """How many of a model's layers lie on a GPU, of how many, its output among them.

    ``asked``: what was asked for, None: llama.cpp's own default. ``failed``: why they do not lie there, after an
    attempt.
    """

    on_gpu: int
    total: int
    devices: tuple[GpuDevice, ...] = ()
    asked: int | None = None
    failed: str = ""

    @classmethod
    def of(cls, requested: int, num_layers: int, devices: Sequence[GpuDevice], asked: int | None) -> Placement:
        """Return where layers went that were loaded with ``requested`` on a GPU; below 0: all."""
        total = num_layers + 1
        on_gpu = 0 if not devices else total if requested < 0 else min(requested, total)
        return cls(on_gpu, total, tuple(devices), asked)

    @property
    def share_in_memory(self) -> float:
        """The share of the layers with a KV cache that lie in the machine's memory; the output goes to a GPU first."""
        return 1.0 - max(0, self.on_gpu - 1) / max(1, self.total - 1)

    @property
    def told(self) -> str:
        """One sentence; empty where there is no GPU and none was asked for."""
        there = " and ".join(map(str, self.devices))
        if self.on_gpu:
            return f"{self.on_gpu} of {self.total} layers of the local model lie on {there}"
        if self.devices:
            why = self.failed or f"gpu_layers is {self.asked}"
            return f"no layer of the local model lies on {there}: {why}"
        if self.asked:
            return f"no layer of the local model lies on a GPU (gpu_layers is {self.asked}): llama.cpp finds none here"
        return ""


# The KV cache of a context: which types its numbers may have, and what it takes in memory.
#
# The law (``tests/engine/test_kv_cache.py``): what is told of its size is what llama.cpp keeps of a token, to the byte.
# A type that a model cannot have is refused in a sentence before llama.cpp is asked.


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
