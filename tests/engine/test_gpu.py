"""What lies on a GPU, as it is told. The build here knows none: devices are made up, llama.cpp is asked the rest."""

from __future__ import annotations

import ctypes
from contextlib import closing
from types import SimpleNamespace

import pytest
from cases import each

from hybrid.engine import llama
from hybrid.engine import local_memory as gpu
from hybrid.engine.llama import Weights
from hybrid.engine.local_memory import GpuDevice, Placement, gpu_devices
from hybrid.engine.native import ll
from hybrid.errors import EngineError
from hybrid.settings.names import MODELS

CARD = GpuDevice("CUDA0", "a card")
SMALL = MODELS / "small.gguf"


@each(
    ("requested", "devices", "asked", "on_gpu", "said"),
    [
        (-1, [], None, 0, ""),
        (0, [], 0, 0, ""),
        (20, [], 20, 0, "no layer of the local model lies on a GPU (gpu_layers is 20): llama.cpp finds none here"),
        (-1, [], -1, 0, "no layer of the local model lies on a GPU (gpu_layers is -1): llama.cpp finds none here"),
        (-1, [CARD], None, 31, "31 of 31 layers of the local model lie on CUDA0 (a card)"),
        (99, [CARD], 99, 31, "31 of 31 layers of the local model lie on CUDA0 (a card)"),
        (20, [CARD], 20, 20, "20 of 31 layers of the local model lie on CUDA0 (a card)"),
        (30, [CARD, GpuDevice("CUDA1")], 30, 30, "30 of 31 layers of the local model lie on CUDA0 (a card) and CUDA1"),
        (0, [CARD], 0, 0, "no layer of the local model lies on CUDA0 (a card): gpu_layers is 0"),
    ],
)
def test_what_lies_on_a_gpu_is_one_sentence(requested, devices, asked, on_gpu, said):
    """Where there is none and none was asked for, there is nothing to say."""
    placed = Placement.of(requested, 30, devices, asked)
    assert (placed.on_gpu, placed.told) == (on_gpu, said)


@each(("on_gpu", "share"), [(0, 1.0), (1, 1.0), (16, 0.5), (31, 0.0)])
def test_the_output_goes_to_a_gpu_first_so_that_one_layer_there_leaves_the_whole_cache_here(on_gpu, share):
    assert Placement.of(on_gpu, 30, [CARD], on_gpu).share_in_memory == share


@each("asked", [None, 0, -1, 3])
def test_a_build_without_a_gpu_has_no_layer_there_whatever_was_asked_for(asked):
    """Noise is kept by what lies there: unset and 0 are one entry."""
    if ll.llama_supports_gpu_offload():
        pytest.skip("llama.cpp was built for a GPU")
    assert gpu_devices() == ()
    with closing(Weights(SMALL, gpu_layers=asked)) as weights:
        assert (weights.placement.on_gpu, weights.placement.total) == (0, 4)
        assert weights._bytes_per_token > 0


def test_devices_are_read_through_llama_cpps_own_interface(monkeypatch):
    """The processor is a device of type 0, an accelerator of type 3: neither is a GPU."""
    known = {1: (0, b"CPU", b"one"), 2: (1, b"CUDA0", b"a card"), 3: (2, b"Vulkan0", None), 4: (3, b"BLAS", b"")}

    class Function:
        def __init__(self, answer):
            self.answer = answer

        def __call__(self, *args):
            return self.answer(*args)

    library = SimpleNamespace(
        ggml_backend_dev_count=Function(lambda: len(known)),
        ggml_backend_dev_get=Function(lambda index: index + 1),
        ggml_backend_dev_type=Function(lambda device: known[device][0]),
        ggml_backend_dev_name=Function(lambda device: known[device][1]),
        ggml_backend_dev_description=Function(lambda device: known[device][2]),
    )
    monkeypatch.setattr(gpu.ll, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(gpu.ll.llama_cpp, "_lib", library)
    assert gpu_devices() == (GpuDevice("CUDA0", "a card"), GpuDevice("Vulkan0"))
    assert library.ggml_backend_dev_get.restype is ctypes.c_void_p, "a pointer that is cut to an int leads nowhere"
    monkeypatch.setattr(gpu.ll.llama_cpp, "_lib", SimpleNamespace())
    assert gpu_devices() == (GpuDevice("a GPU"),)


def test_the_real_library_is_read_as_well():
    """It has one device at least, the processor, and no call of ours ends the process."""
    assert all(device.name for device in gpu._devices(ll.llama_cpp._lib))


@each(("asked", "tried"), [(None, [-1, 0]), (-1, [-1]), (5, [5])])
def test_a_gpu_without_room_is_done_without_unless_it_was_asked_for(monkeypatch, asked, tried):
    """Nobody asked for the GPU, and the model was usable before: exit code 3 would be no default."""
    loaded, load = [], ll.llama_model_load_from_file

    def full(path, params):
        loaded.append(params.n_gpu_layers)
        return load(path, params) if params.n_gpu_layers == 0 else None

    monkeypatch.setattr(llama, "gpu_devices", lambda: (CARD,))
    monkeypatch.setattr(llama.ll, "llama_model_load_from_file", full)
    if asked is None:
        with closing(Weights(SMALL, gpu_layers=asked)) as weights:
            assert not weights._on_gpu
            assert weights.placement.told.startswith(
                "no layer of the local model lies on CUDA0 (a card): llama.cpp could"
            )
    else:
        with pytest.raises(EngineError, match="cannot load"):
            Weights(SMALL, gpu_layers=asked)
    assert loaded == tried
