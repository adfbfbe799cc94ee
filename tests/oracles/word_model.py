"""A model file of any words with any rows, small enough to be written in a test: one block that nobody runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

HIDDEN = 32


def write_word_model(path: Path, words: Sequence[str], rows: np.ndarray, *, tied: bool = True) -> Path:
    """Write words as GPT-2's vocabulary spells them (a space is U+0120); those in <...> are control tokens.

    ``rows``: of the output matrix, shape (num_words, 32 * n). The first word ends a text.
    """
    width = rows.shape[1]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(width // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_block_count(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    kinds = gguf.TokenType
    writer.add_token_list([word.replace(" ", "\u0120") for word in words])
    writer.add_token_types([kinds.CONTROL if word.startswith("<") else kinds.NORMAL for word in words])
    writer.add_token_merges(["a a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {f"attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (HIDDEN, width), "ffn_up": (HIDDEN, width), "ffn_down": (width, HIDDEN)}
    tensors = {f"blk.0.{name}.weight": np.zeros(shape) for name, shape in shapes.items()}
    tensors |= {f"{name}_norm.weight": np.ones(width) for name in ("output", "blk.0.attn", "blk.0.ffn")}
    tensors |= {"token_embd.weight": rows} if tied else {"token_embd.weight": rows[::-1], "output.weight": rows}
    for name, numbers in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(numbers, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
