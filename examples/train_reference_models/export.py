"""Write a trained checkpoint as a GGUF file that llama.cpp runs: weights, tokeniser and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from network import NORM_EPS, ROPE_BASE, Shape
from tokenizers import Tokenizer
from torch import Tensor
from vocabulary import CHAT_TEMPLATE, END_OF_TEXT, TURN_END


def write_gguf(
    path: Path,
    name: str,
    shape: Shape,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
    pre: str,
    training: dict[str, Any],
) -> None:
    """Write the model with float16 matrices and float32 norms; the file appears whole or not at all.

    ``pre``: llama.cpp's name of the pre-tokeniser. ``training``: how it was made, as the model card will say it.
    """
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name(name)
    writer.add_string("hybrid.training", json.dumps(training))
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_vocab_size(shape.num_tokens)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _write_vocabulary(writer, shape, pre, json.loads(tokenizer.to_str()))
    for key, value in weights.items():
        array = value.float().numpy()
        writer.add_tensor(key, array.astype(np.float16) if array.ndim > 1 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def read_gguf(path: Path) -> tuple[Shape, dict[str, Tensor]]:
    """Return the sizes and the weights, in float32, of a model that ``write_gguf`` wrote."""
    reader = gguf.GGUFReader(path)

    def size(key: str) -> int:
        return int(reader.fields[f"llama.{key}"].parts[-1][0])

    names = ("embedding_length", "block_count", "attention.head_count", "feed_forward_length", "context_length")
    width, layers, heads, hidden, context = map(size, names)
    weights = {each.name: torch.from_numpy(np.array(each.data, dtype=np.float32)) for each in reader.tensors}
    return Shape(size("vocab_size"), width, layers, heads, hidden, context), weights


def _write_vocabulary(writer: gguf.GGUFWriter, shape: Shape, pre: str, tokenizer: dict[str, Any]) -> None:
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    pieces = {index: piece for piece, index in tokenizer["model"]["vocab"].items()} | special
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([pieces[index] for index in range(shape.num_tokens)])
    writer.add_token_types(
        [gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in range(shape.num_tokens)]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    ids = {content: index for index, content in special.items()}
    writer.add_bos_token_id(ids[END_OF_TEXT])
    writer.add_eos_token_id(ids[TURN_END])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(CHAT_TEMPLATE)
