"""What lies on a GPU: the devices that llama.cpp found, and how many layers of a model went there.

The law (``tests/engine/test_gpu.py``): a build or a machine without a GPU has no layer there, whatever was asked for,
and then nothing is said, unless layers were asked for. llama.cpp counts the output as a layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hybrid.engine.native import ll

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
