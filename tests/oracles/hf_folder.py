"""A GGUF as a Hugging Face folder, which servers other than llama.cpp's load: the same numbers, as float32.

    python tests/oracles/hf_folder.py MODEL.gguf FOLDER

Runs in a server's environment, which has what it imports: gguf, numpy, safetensors, tokenizers. Reads the llama
architecture, byte-level BPE, and weights in any format that gguf can turn into numbers, nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# How llama.cpp splits text before it merges, in one pass after the other, by the name that the file gives (llama.cpp,
# src/llama-vocab.cpp).
SPLITS = {
    "qwen2": [
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    ],
    "smollm": [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"],
}
# What llama.cpp takes for the end of a text beside the file's own token, by their names.
ENDS = {"<|im_end|>", "<|endoftext|>", "<reponame>"}
PARAMETERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # llama.cpp's type of a token that text never spells


class Model:
    """A GGUF file: its fields by name and its weights."""

    def __init__(self, path: str):
        self._reader = GGUFReader(path)
        self.num_heads = self["llama.attention.head_count"]
        self.num_key_heads = self["llama.attention.head_count_kv"]

    def __getitem__(self, name: str):
        return self._reader.fields[name].contents()

    def weights(self) -> dict[str, np.ndarray]:
        """Return every weight under the name it has there."""
        found = {}
        for tensor in self._reader.tensors:
            *block, part, _ = tensor.name.split(".")
            weight = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            heads = {"attn_q": self.num_heads, "attn_k": self.num_key_heads}.get(part)
            place = f"model.layers.{block[1]}." if block else ""
            found[f"{place}{PARAMETERS[part]}.weight"] = np.ascontiguousarray(
                halves(weight, heads) if heads else weight
            )
        return found

    def config(self) -> dict:
        width, tied = self["llama.embedding_length"], "output.weight" not in {t.name for t in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": width,
            "head_dim": width // self.num_heads,
            "num_hidden_layers": self["llama.block_count"],
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_key_heads,
            "intermediate_size": self["llama.feed_forward_length"],
            "hidden_act": "silu",
            "rms_norm_eps": float(np.float32(self["llama.attention.layer_norm_rms_epsilon"])),
            "rope_theta": float(self["llama.rope.freq_base"]),
            "max_position_embeddings": self["llama.context_length"],
            "vocab_size": len(self["tokenizer.ggml.tokens"]),
            "tie_word_embeddings": tied,
            "torch_dtype": "float32",
            **self.ends(),
        }

    def ends(self) -> dict:
        """Return the tokens that end a text: of the document and of the turn."""
        end, start, pad = (self[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "bos", "padding"))
        named = {number for number, token in enumerate(self["tokenizer.ggml.tokens"]) if token in ENDS}
        return {"bos_token_id": start, "eos_token_id": sorted({end, *named}), "pad_token_id": pad}

    def tokenizer(self) -> Tokenizer:
        tokens = self["tokenizer.ggml.tokens"]
        merges = [tuple(merge.split(" ", 1)) for merge in self["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[self["tokenizer.ggml.pre"]]),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self["tokenizer.ggml.token_type"]
        tokenizer.add_special_tokens(
            [
                AddedToken(token, special=True, normalized=False)
                for token, kind in zip(tokens, kinds, strict=True)
                if kind == CONTROL
            ]
        )
        return tokenizer

    def words(self) -> dict:
        tokens = self["tokenizer.ggml.tokens"]
        end, pad = (tokens[self[f"tokenizer.ggml.{name}_token_id"]] for name in ("eos", "padding"))
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": pad,
            "clean_up_tokenization_spaces": False,
            "model_max_length": self["llama.context_length"],
            "chat_template": self["tokenizer.chat_template"],
        }


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of each head as Hugging Face rotates them: by halves, where GGUF rotates neighbours."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def convert(model: Model, folder: Path) -> None:
    """Write the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.weights(), folder / "model.safetensors", metadata={"format": "pt"})
    model.tokenizer().save(str(folder / "tokenizer.json"))
    for name, content in {
        "config": model.config(),
        "generation_config": model.ends(),
        "tokenizer_config": model.words(),
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    convert(Model(sys.argv[1]), Path(sys.argv[2]))
