"""Tiny models with random weights, one per kind of memory llama.cpp has, and a way to ask any of them afresh.

``attention`` forgets nothing; ``sliding`` has a window of 8; ``recurrent`` (Mamba) cannot step back at all; ``hybrid``
(Qwen3.5's kind) steps back through snapshots. They share a byte-level vocabulary that is not the bundled one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest
from recurrent_shapes import TINY_RECURRENT
from scripted_engine import ScriptedEngine

import hybrid
from hybrid.engine.llama import Weights
from hybrid.lab.speed.random_model import write_random_model
from hybrid.prob import Dense

BUNDLED = Path(hybrid.__file__).parent / "models" / "small.gguf"
KINDS = ("attention", "sliding", "recurrent", "hybrid")
WIDTH, HIDDEN, HEAD, CONTEXT = 32, 64, 16, 1024


def _byte_pieces() -> list[str]:
    """GPT-2's printable stand-in for every byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    stand_in = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [stand_in[byte] for byte in range(256)]


PIECES = ["<end>", *_byte_pieces(), "he", "x" * 100, "<turn>"]


def _attention(block: str, *, key: int) -> dict[str, list[int]]:
    rows = {"attn_q": WIDTH, "attn_k": key, "attn_v": key}
    return {f"{block}.{name}.weight": [num, WIDTH] for name, num in rows.items()} | {
        f"{block}.attn_output.weight": [WIDTH, WIDTH]
    }


def _feed_forward(block: str) -> dict[str, list[int]]:
    return {
        f"{block}.ffn_gate.weight": [HIDDEN, WIDTH],
        f"{block}.ffn_up.weight": [HIDDEN, WIDTH],
        f"{block}.ffn_down.weight": [WIDTH, HIDDEN],
    }


def _write_attention(writer: gguf.GGUFWriter) -> dict[str, list[int]]:
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(HEAD)
    block = "blk.0"
    norms = {f"{block}.{name}.weight": [WIDTH] for name in ("attn_norm", "ffn_norm")}
    return norms | _attention(block, key=WIDTH) | _feed_forward(block)


def _write_sliding(writer: gguf.GGUFWriter) -> dict[str, list[int]]:
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_sliding_window(8)
    block = "blk.0"
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    norms = {f"{block}.{name}.weight": [WIDTH] for name in names}
    norms |= {f"{block}.attn_{name}_norm.weight": [HEAD] for name in "qk"}
    return norms | _attention(block, key=HEAD) | _feed_forward(block)


def _write_recurrent(writer: gguf.GGUFWriter) -> dict[str, list[int]]:
    inner, state, rank, kernel = 2 * WIDTH, 8, 2, 4
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    block = "blk.0"
    return {
        f"{block}.attn_norm.weight": [WIDTH],
        f"{block}.ssm_in.weight": [2 * inner, WIDTH],
        f"{block}.ssm_conv1d.weight": [inner, kernel],
        f"{block}.ssm_conv1d.bias": [inner],
        f"{block}.ssm_x.weight": [rank + 2 * state, inner],
        f"{block}.ssm_dt.weight": [inner, rank],
        f"{block}.ssm_dt.bias": [inner],
        f"{block}.ssm_a": [inner, state],
        f"{block}.ssm_d": [inner],
        f"{block}.ssm_out.weight": [WIDTH, inner],
    }


def _write_hybrid(writer: gguf.GGUFWriter) -> dict[str, list[int]]:
    """One gated-delta-net layer, then one of attention."""
    key_heads, value_heads, kernel = 2, 4, 4
    keys, values = HEAD * key_heads, HEAD * value_heads
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD // 2)
    writer.add_rope_dimension_sections([2, 1, 1, 0])
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(values)
    writer.add_ssm_state_size(HEAD)
    writer.add_ssm_time_step_rank(value_heads)
    writer.add_ssm_group_count(key_heads)
    writer.add_uint32("qwen35.full_attention_interval", 2)
    tensors = {
        "blk.0.attn_qkv.weight": [2 * keys + values, WIDTH],
        "blk.0.attn_gate.weight": [values, WIDTH],
        "blk.0.ssm_conv1d.weight": [2 * keys + values, kernel],
        "blk.0.ssm_dt.bias": [value_heads],
        "blk.0.ssm_a": [value_heads],
        "blk.0.ssm_beta.weight": [value_heads, WIDTH],
        "blk.0.ssm_alpha.weight": [value_heads, WIDTH],
        "blk.0.ssm_norm.weight": [HEAD],
        "blk.0.ssm_out.weight": [WIDTH, values],
    }
    tensors |= _attention("blk.1", key=HEAD) | {"blk.1.attn_q.weight": [2 * WIDTH, WIDTH]}
    tensors |= {f"blk.1.attn_{name}_norm.weight": [HEAD] for name in "qk"}
    for block in ("blk.0", "blk.1"):
        tensors |= {f"{block}.{name}.weight": [WIDTH] for name in ("attn_norm", "post_attention_norm")}
        tensors |= _feed_forward(block)
    return tensors


ARCHITECTURES = {
    "attention": ("llama", _write_attention),
    "sliding": ("gemma3", _write_sliding),
    "recurrent": ("mamba", _write_recurrent),
    "hybrid": ("qwen35", _write_hybrid),
}


def _weights(name: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if "norm" in name:
        return np.ones(shape)
    if name.endswith("ssm_a"):
        return -np.exp(rng.normal(size=shape))  # states decay
    # The first factor keeps the rows of an untied or tied output matrix at an entropy that tells tokens apart.
    scale = 0.3 if name in {"token_embd.weight", "output.weight"} else 1 / np.sqrt(shape[-1])
    return rng.normal(size=shape) * scale


def write_tiny(path: Path, kind: str, template: str | None = None, padding: Sequence[tuple[str, int]] = ()) -> Path:
    """Write a model of one kind; the same weights each time.

    ``padding``: names and types of entries after the vocabulary. One of each two in a row outweighs every token.
    """
    architecture, describe = ARCHITECTURES[kind]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(0 if kind == "recurrent" else HIDDEN)
    writer.add_head_count(0 if kind == "recurrent" else WIDTH // HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    tensors = describe(writer) | {"output_norm.weight": [WIDTH]}
    embeddings = ("token_embd.weight",) if kind == "sliding" else ("token_embd.weight", "output.weight")
    tensors |= {name: [len(PIECES), WIDTH] for name in embeddings}
    writer.add_block_count(1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk.")))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    types = [gguf.TokenType.CONTROL if i in {0, len(PIECES) - 1} else gguf.TokenType.NORMAL for i in range(len(PIECES))]
    writer.add_token_list([*PIECES, *(name for name, _ in padding)])
    writer.add_token_types([*types, *(kind for _, kind in padding)])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(value=False)
    if template is not None:
        writer.add_chat_template(template)
    rng = np.random.default_rng(1)
    loud = np.outer([5.0 * (-1) ** i for i in range(len(padding))], np.ones(WIDTH))
    for name, shape in sorted(tensors.items()):
        weights = _weights(name, shape, rng)
        weights = np.concatenate([weights, loud]) if name in embeddings else weights
        writer.add_tensor(name, weights.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny_file(tmp_path):
    """Write a tiny model, with a chat template or without."""

    def write(kind="attention", template=None, padding=()):
        return write_tiny(tmp_path / f"{kind}-{len(padding)}.gguf", kind, template, padding)

    return write


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Every tiny model by its kind, those of the benchmarks with recurrent layers, and the bundled small one."""
    folder = tmp_path_factory.mktemp("tiny")
    loaded = {kind: Weights(write_tiny(folder / f"{kind}.gguf", kind)) for kind in KINDS}
    loaded |= {
        name: Weights(write_random_model(folder / f"{name}.gguf", shape)) for name, shape in TINY_RECURRENT.items()
    }
    loaded["bundled"] = Weights(BUNDLED)
    yield loaded
    for each in loaded.values():
        each.close()


def scripted_scores(ids: tuple[int, ...]) -> list[float]:
    """Scores that depend on every token of the prefix and on their order."""
    return np.random.default_rng([len(ids), *ids]).normal(size=7).tolist()


@pytest.fixture(scope="session")
def opened(weights):
    """Open a fresh engine of any kind for the length of a ``with``; ``scripted`` is a kind, too."""

    @contextmanager
    def open_engine(kind: str, num_context: int = CONTEXT):
        if kind == "scripted":
            yield ScriptedEngine([f"w{i}" for i in range(7)], scripted_scores, num_context=num_context)
            return
        engine = weights[kind].context(num_context, threads=1)
        yield engine
        engine.close()

    return open_engine


@pytest.fixture(scope="session")
def afresh(opened):
    """Return what an engine that never held anything else says after each of the last ``num_rows`` prefixes."""

    def rows(kind: str, ids: tuple[int, ...], num_rows: int = 1) -> list[Dense]:
        with opened(kind) as engine:
            return [Dense.from_logits(scores) for scores in engine.extend(ids, num_rows)]

    return rows
