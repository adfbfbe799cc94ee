"""The Llama architecture in torch, small: what llama.cpp runs as ``general.architecture = llama``.

RoPE rotates neighbouring pairs (interleaved), as llama.cpp's ``llama`` expects. The parameter names below are what
``export.py`` maps to GGUF tensor names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NORM_EPS = 1e-5
ROPE_BASE = 10_000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of one model."""

    num_tokens: int
    width: int
    layers: int
    heads: int
    hidden: int
    context: int = 1024


class RmsNorm(nn.Module):
    """Root-mean-square layer norm with a learned scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, NORM_EPS)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate neighbouring pairs of the last axis: each is a complex number, ``turns`` (T, head / 2) the unit ones."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Block(nn.Module):
    """Attention, then a gated feed-forward net, each on a normed residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.heads = shape.heads
        self.attn_norm, self.ffn_norm = RmsNorm(width), RmsNorm(width)
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.ffn_gate, self.ffn_up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width), causal; attention in float32, which is twice as fast on CPUs as bfloat16."""
        batch, length, width = x.shape
        y = self.attn_norm(x)
        q, k, v = (
            m(y).view(batch, length, self.heads, -1).transpose(1, 2) for m in (self.attn_q, self.attn_k, self.attn_v)
        )
        with torch.autocast(x.device.type, enabled=False):
            y = F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v.float(), is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, width)
        x = x + self.attn_output(y)
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(nn.Module):
    """Token ids in, logits out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.num_tokens, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = RmsNorm(shape.width)
        self.output = nn.Linear(shape.width, shape.num_tokens, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 if p is self.token_embd.weight else 1 / math.sqrt(p.shape[1]))
        head = shape.width // shape.heads
        angles = torch.outer(torch.arange(shape.context).float(), ROPE_BASE ** (-torch.arange(0, head, 2) / head))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, ids: Tensor, wanted: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, V); with a mask ``wanted`` (B, T) only the rows it wants, (N, V)."""
        length = ids.shape[1]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, self.turns[:length])
        return self.output(self.output_norm(x if wanted is None else x[wanted]))
