"""Write a model of random weights with the shape of a real one. Decoding costs the same whatever the weights are.

The default has the shape of a small multilingual chat model: 494 million parameters, 151,936 tokens, eight bits a
weight. A model may take the vocabulary of another file. Then both read a text alike, and the matrices are float16,
which every other format can represent exactly.
Needs the ``gguf`` package (extra ``bench``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BLOCK = 32  # weights of a Q8_0 block: a float16 scale and 32 signed bytes
SPECIAL = ("<unk>", "<s>", "</s>")
NUM_BYTES = 256


@dataclass(frozen=True)
class RandomModelShape:
    """A Llama-architecture model, in numbers. Query heads are a multiple of key-value heads."""

    num_tokens: int = 151_936
    width: int = 896
    hidden: int = 4864
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    context: int = 16_384

    @property
    def num_parameters(self) -> int:
        """Weights, the shared embedding counted once."""
        kv_width = self.width // self.heads * self.kv_heads
        layer = 2 * self.width * (self.width + kv_width) + 3 * self.width * self.hidden + 2 * self.width
        return self.num_tokens * self.width + self.layers * layer + self.width


HALF_BILLION = RandomModelShape()
# The same vocabulary on next to nothing: a reference whose own computing hides no round trip.
TINY = RandomModelShape(width=64, hidden=128, layers=1, heads=1, kv_heads=1)


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
    writer = gguf.GGUFWriter(unfinished, "llama")
    rng = np.random.default_rng(seed)
    if vocabulary_of is None:
        add_vocabulary(writer, shape.num_tokens)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        for name, rows, columns in _matrices(shape):
            writer.add_tensor(name, random_q8(rng, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    else:
        kinds = _copy_vocabulary(writer, vocabulary_of)
        shape = replace(shape, num_tokens=kinds.size)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        for name, rows, columns in _matrices(shape):
            weights = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float16)
            if name == "token_embd.weight":
                weights[kinds == gguf.TokenType.CONTROL] = 0.0  # a score of 0, and the largest is above that
            if name.endswith("attn_output.weight"):
                weights[:] = 0.0  # attention is computed, and has no say
            writer.add_tensor(name, weights)
    _add_shape(writer, shape)
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.width, dtype=np.float32))
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
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(shape.num_tokens)


def _matrices(shape: RandomModelShape) -> list[tuple[str, int, int]]:
    kv_width = shape.width // shape.heads * shape.kv_heads
    found = [("token_embd.weight", shape.num_tokens, shape.width)]
    for i in range(shape.layers):
        found += [
            (f"blk.{i}.attn_q.weight", shape.width, shape.width),
            (f"blk.{i}.attn_k.weight", kv_width, shape.width),
            (f"blk.{i}.attn_v.weight", kv_width, shape.width),
            (f"blk.{i}.attn_output.weight", shape.width, shape.width),
            (f"blk.{i}.ffn_gate.weight", shape.hidden, shape.width),
            (f"blk.{i}.ffn_up.weight", shape.hidden, shape.width),
            (f"blk.{i}.ffn_down.weight", shape.width, shape.hidden),
        ]
    return found


def _norms(shape: RandomModelShape) -> list[str]:
    return ["output_norm.weight"] + [
        f"blk.{i}.{name}.weight" for i in range(shape.layers) for name in ("attn_norm", "ffn_norm")
    ]


def random_q8(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return uniform weights of variance 1 / columns, as bytes of Q8_0 blocks; shape (rows, bytes of a row)."""
    blocks = np.empty((rows, columns // BLOCK), dtype=[("scale", "<f2"), ("weights", "i1", (BLOCK,))])
    blocks["scale"] = np.sqrt(3 / columns) / 127  # a uniform number in -127 .. 127 has a variance of 127^2 / 3
    blocks["weights"] = rng.integers(-127, 128, size=blocks["weights"].shape, dtype=np.int8)
    return blocks.view(np.uint8).reshape(rows, -1)


def add_vocabulary(writer: gguf.GGUFWriter, num_tokens: int) -> None:
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
