"""Write a model of random weights whose layers keep a state: of four architectures, in the shape of real ones or tiny.

``mamba2`` has no attention. ``falcon-h1`` has both in every layer. ``granitehybrid`` and ``lfm2`` have attention in
every fourth layer, and Mamba's state space or a short convolution in the others. The matrices have eight bits a weight.
Needs the ``gguf`` package (extra ``bench``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from hybrid.lab.speed.random_model import BLOCK, add_vocabulary, random_q8

# Granite's attention layers are one in ten, LFM2's six of sixteen.
ATTENTION_EVERY = 4
Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class RecurrentShape:
    """A model in numbers. ``inner`` counts the channels of the state space, ``state`` the numbers of each."""

    architecture: str
    num_tokens: int
    width: int
    layers: int
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    inner: int = 0
    state: int = 0
    state_heads: int = 0
    kernel: int = 4
    window: int = 0
    head: int = 64
    context: int = 16_384

    def has_attention(self, layer: int) -> bool:
        """Whether this layer attends."""
        every = {"mamba2": 0, "falcon-h1": 1}.get(self.architecture, ATTENTION_EVERY)
        return bool(every) and (layer + 1) % every == 0


# As Falcon-H1 0.5B and Mamba2 370M, but for the vocabulary of the latter (50k).
FALCON = RecurrentShape("falcon-h1", 32_784, 1024, 36, 2048, 8, 2, inner=1536, state=128, state_heads=24)
MAMBA = RecurrentShape("mamba2", 32_784, 1024, 48, inner=2048, state=128, state_heads=32)
# One of each architecture with next to no weights; LFM2 with a window and without.
TINY = {
    "mamba2": RecurrentShape("mamba2", 288, 32, 2, inner=64, state=16, state_heads=4, context=1024),
    "falcon-h1": RecurrentShape("falcon-h1", 288, 32, 2, 64, 2, 1, 64, 16, 4, head=16, context=1024),
    "granitehybrid": RecurrentShape("granitehybrid", 288, 32, 4, 64, 2, 1, 64, 16, 4, head=16, context=1024),
    "lfm2": RecurrentShape("lfm2", 288, 32, 4, 64, 2, 1, kernel=3, head=16, context=1024),
    "lfm2-window": RecurrentShape("lfm2", 288, 32, 4, 64, 2, 1, kernel=3, window=8, head=16, context=1024),
}


def write_recurrent_model(path: Path, shape: RecurrentShape, seed: int = 0) -> Path:
    """Write the model as GGUF and return its path. The same seed, the same file; one that is there is left as it is."""
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, shape.architecture)
    rng = np.random.default_rng(seed)
    _add_shape(writer, shape)
    add_vocabulary(writer, shape.num_tokens)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, dimensions in _tensors(shape).items():
        if len(dimensions) == 2 and dimensions[1] % BLOCK == 0 and "norm" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, random_q8(rng, *dimensions), raw_dtype=kind)
        else:
            writer.add_tensor(name, _numbers(name, dimensions, rng).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.replace(path)


def _add_shape(writer: gguf.GGUFWriter, shape: RecurrentShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv([shape.kv_heads * shape.has_attention(i) for i in range(shape.layers)])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.num_tokens)
    if shape.heads:
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
        writer.add_rope_dimension_count(shape.head)
    if shape.window:
        writer.add_sliding_window(shape.window)
    if shape.architecture == "lfm2":
        writer.add_shortconv_l_cache(shape.kernel)
        return
    writer.add_ssm_conv_kernel(shape.kernel)
    writer.add_ssm_inner_size(shape.inner)
    writer.add_ssm_state_size(shape.state)
    writer.add_ssm_time_step_rank(shape.state_heads)
    writer.add_ssm_group_count(1)


def _tensors(shape: RecurrentShape) -> Tensors:
    """Return the dimensions of every tensor, the longest last."""
    last_norm = "token_embd_norm.weight" if shape.architecture == "lfm2" else "output_norm.weight"
    found: Tensors = dict.fromkeys(("token_embd.weight", "output.weight"), (shape.num_tokens, shape.width))
    found[last_norm] = (shape.width,)
    for i in range(shape.layers):
        layer: Tensors = {"attn_norm.weight": (shape.width,)}
        if shape.has_attention(i):
            layer |= _attention(shape)
        if not shape.has_attention(i) or shape.architecture == "falcon-h1":
            layer |= _short_convolution(shape) if shape.architecture == "lfm2" else _state_space(shape)
        if shape.hidden:
            layer |= _feed_forward(shape)
        found |= {f"blk.{i}.{name}": dimensions for name, dimensions in layer.items()}
    return found


def _attention(shape: RecurrentShape) -> Tensors:
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    norms: Tensors = (
        {f"attn_{name}_norm.weight": (shape.head,) for name in "qk"} if shape.architecture == "lfm2" else {}
    )
    return norms | {
        "attn_q.weight": (queries, shape.width),
        "attn_k.weight": (keys, shape.width),
        "attn_v.weight": (keys, shape.width),
        "attn_output.weight": (shape.width, queries),
    }


def _state_space(shape: RecurrentShape) -> Tensors:
    mixed, heads = shape.inner + 2 * shape.state, shape.state_heads
    return {
        "ssm_in.weight": (shape.inner + mixed + heads, shape.width),
        "ssm_conv1d.weight": (mixed, shape.kernel),
        "ssm_conv1d.bias": (mixed,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads, 1),
        "ssm_d": (heads, 1),
        "ssm_norm.weight": (1, shape.inner),
        "ssm_out.weight": (shape.width, shape.inner),
    }


def _short_convolution(shape: RecurrentShape) -> Tensors:
    return {
        "shortconv.conv.weight": (shape.width, shape.kernel),
        "shortconv.in_proj.weight": (3 * shape.width, shape.width),
        "shortconv.out_proj.weight": (shape.width, shape.width),
    }


def _feed_forward(shape: RecurrentShape) -> Tensors:
    norm = "ffn_norm" if shape.architecture == "falcon-h1" else "ffn_norm.weight"
    return {
        norm: (shape.width,),
        "ffn_gate.weight": (shape.hidden, shape.width),
        "ffn_up.weight": (shape.hidden, shape.width),
        "ffn_down.weight": (shape.width, shape.hidden),
    }


def _numbers(name: str, dimensions: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if "norm" in name:
        return np.ones(dimensions)
    drawn = rng.standard_normal(dimensions)
    return -np.exp(drawn) if name.endswith("ssm_a") else drawn / np.sqrt(dimensions[-1])  # states decay
