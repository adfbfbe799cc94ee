"""Write a model of random weights with the shape of a real one. Decoding costs the same whatever the weights are.

The default has the shape of a small multilingual chat model: 494 million parameters, 151,936 tokens, eight bits a
weight. A model may take the vocabulary of another file. Then both read a text alike, and the matrices are float16,
which every other format can represent exactly. Layers of four architectures keep a state: ``mamba2`` has no attention,
``falcon-h1`` has both in every layer. ``granitehybrid`` and ``lfm2`` have attention in every fourth layer, and Mamba's
state space or a short convolution in the others. Needs the ``gguf`` package (extra ``bench``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BLOCK = 32  # weights of a Q8_0 block: a float16 scale and 32 signed bytes
SPECIAL = ("<unk>", "<s>", "</s>")
NUM_BYTES = 256
# Layers from one with attention to the next, 0: there is none. Granite's are one in ten, LFM2's six of sixteen.
ATTENTION_EVERY = {"llama": 1, "falcon-h1": 1, "mamba2": 0, "granitehybrid": 4, "lfm2": 4}
Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class RandomModelShape:
    """A model in numbers. Query heads are a multiple of key-value heads; ``head`` 0: they share the width.

    ``inner`` counts the channels of the state space, ``state`` the numbers of each.
    """

    num_tokens: int = 151_936
    width: int = 896
    hidden: int = 4864
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    context: int = 16_384
    architecture: str = "llama"
    inner: int = 0
    state: int = 0
    state_heads: int = 0
    kernel: int = 4
    window: int = 0
    head: int = 0

    def has_attention(self, layer: int) -> bool:
        """Whether this layer attends."""
        every = ATTENTION_EVERY[self.architecture]
        return bool(every) and (layer + 1) % every == 0

    @property
    def num_parameters(self) -> int:
        """Weights; an embedding that is the output's too is counted once."""
        return sum(map(math.prod, _tensors(self).values()))


HALF_BILLION = RandomModelShape()
# The same vocabulary on next to nothing: a reference whose own computing hides no round trip.
TINY = RandomModelShape(width=64, hidden=128, layers=1, heads=1, kv_heads=1)
# As Falcon-H1 0.5B and Mamba2 370M, but for the vocabulary of the latter (50k).
FALCON = RandomModelShape(32_784, 1024, 2048, 36, 8, 2, 16_384, "falcon-h1", 1536, 128, 24, head=64)
MAMBA = RandomModelShape(32_784, 1024, 0, 48, 0, 0, 16_384, "mamba2", 2048, 128, 32)


def write_random_model(
    path: Path, shape: RandomModelShape = HALF_BILLION, seed: int = 0, vocabulary_of: Path | None = None
) -> Path:
    """Write the model as GGUF and return its path; about as many bytes as parameters. The same seed, the same file.

    ``vocabulary_of`` names a file whose tokens it takes, in the place of the shape's. Such a model's next token depends
    on the last one alone, so that texts of any length are continued alike; control tokens are never the likeliest, so
    that a greedy text does not end. A file that is there already is left as it is: it appears whole or not at all.
    """
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    writer, rng = gguf.GGUFWriter(unfinished, shape.architecture), np.random.default_rng(seed)
    if vocabulary_of is None:
        _add_vocabulary(writer, shape.num_tokens)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    else:
        kinds = _copy_vocabulary(writer, vocabulary_of)
        shape = replace(shape, num_tokens=kinds.size)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _add_shape(writer, shape)
    for name, dimensions in _tensors(shape).items():
        if "norm" in name or len(dimensions) < 2 or dimensions[1] % BLOCK:
            writer.add_tensor(name, _numbers(name, dimensions, rng).astype(np.float32))
        elif vocabulary_of is None:
            writer.add_tensor(name, _random_q8(rng, *dimensions), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            weights = _numbers(name, dimensions, rng).astype(np.float16)
            if name == "token_embd.weight":
                weights[kinds == gguf.TokenType.CONTROL] = 0.0  # a score of 0, and the largest is above that
            if name.endswith("attn_output.weight"):
                weights[:] = 0.0  # attention is computed, and has no say
            writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.replace(path)


def _add_shape(writer: gguf.GGUFWriter, shape: RandomModelShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    by_layer = [shape.kv_heads * shape.has_attention(i) for i in range(shape.layers)]
    writer.add_head_count_kv(shape.kv_heads if shape.architecture == "llama" else by_layer)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.num_tokens)
    if shape.head and shape.heads:
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
        writer.add_rope_dimension_count(shape.head)
    if shape.window:
        writer.add_sliding_window(shape.window)
    if shape.architecture == "lfm2":
        writer.add_shortconv_l_cache(shape.kernel)
    if shape.inner:
        writer.add_ssm_conv_kernel(shape.kernel)
        writer.add_ssm_inner_size(shape.inner)
        writer.add_ssm_state_size(shape.state)
        writer.add_ssm_time_step_rank(shape.state_heads)
        writer.add_ssm_group_count(1)


def _tensors(shape: RandomModelShape) -> Tensors:
    """Return the dimensions of every tensor, the longest last."""
    lfm2 = shape.architecture == "lfm2"
    found: Tensors = {"token_embd.weight": (shape.num_tokens, shape.width)}
    if shape.architecture != "llama":
        found["output.weight"] = shape.num_tokens, shape.width
    found["token_embd_norm.weight" if lfm2 else "output_norm.weight"] = (shape.width,)
    for i in range(shape.layers):
        layer: Tensors = {"attn_norm.weight": (shape.width,)}
        if shape.has_attention(i):
            layer |= _attention(shape)
        if not shape.has_attention(i) or shape.architecture == "falcon-h1":
            layer |= _short_convolution(shape) if lfm2 else _state_space(shape)
        if shape.hidden:
            layer |= _feed_forward(shape)
        found |= {f"blk.{i}.{name}": dimensions for name, dimensions in layer.items()}
    return found


def _attention(shape: RandomModelShape) -> Tensors:
    head = shape.head or shape.width // shape.heads
    queries, keys = shape.heads * head, shape.kv_heads * head
    norms: Tensors = {f"attn_{name}_norm.weight": (head,) for name in "qk"} if shape.architecture == "lfm2" else {}
    return norms | {
        "attn_q.weight": (queries, shape.width),
        "attn_k.weight": (keys, shape.width),
        "attn_v.weight": (keys, shape.width),
        "attn_output.weight": (shape.width, queries),
    }


def _state_space(shape: RandomModelShape) -> Tensors:
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


def _short_convolution(shape: RandomModelShape) -> Tensors:
    return {
        "shortconv.conv.weight": (shape.width, shape.kernel),
        "shortconv.in_proj.weight": (3 * shape.width, shape.width),
        "shortconv.out_proj.weight": (shape.width, shape.width),
    }


def _feed_forward(shape: RandomModelShape) -> Tensors:
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


def _random_q8(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uniform weights of variance 1 / columns, as bytes of Q8_0 blocks; shape (rows, bytes of a row)."""
    blocks = np.empty((rows, columns // BLOCK), dtype=[("scale", "<f2"), ("weights", "i1", (BLOCK,))])
    blocks["scale"] = np.sqrt(3 / columns) / 127  # a uniform number in -127 .. 127 has a variance of 127^2 / 3
    blocks["weights"] = rng.integers(-127, 128, size=blocks["weights"].shape, dtype=np.int8)
    return blocks.view(np.uint8).reshape(rows, -1)


def _add_vocabulary(writer: gguf.GGUFWriter, num_tokens: int) -> None:
    """Add three special tokens, every byte, and words up to ``num_tokens``."""
    words = [f"\N{LOWER ONE EIGHTH BLOCK}w{i}" for i in range(num_tokens - NUM_BYTES - len(SPECIAL))]
    control, byte, normal = gguf.TokenType.CONTROL, gguf.TokenType.BYTE, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*SPECIAL, *(f"<0x{i:02X}>" for i in range(NUM_BYTES)), *words])
    writer.add_token_scores([0.0] * (len(SPECIAL) + NUM_BYTES) + [-float(i) for i in range(len(words))])
    writer.add_token_types([control] * len(SPECIAL) + [byte] * NUM_BYTES + [normal] * len(words))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(value=False)


def _copy_vocabulary(writer: gguf.GGUFWriter, path: Path) -> np.ndarray:
    """Copy every tokenizer key of a file; return the tokens' types, shape (V,)."""
    fields: dict[str, Any] = gguf.GGUFReader(path).fields
    for key, field in fields.items():
        if key.startswith("tokenizer."):
            kind, *of = field.types
            writer.add_key_value(key, field.contents(), kind, of[0] if of else None)
    return np.array(fields["tokenizer.ggml.token_type"].contents())
