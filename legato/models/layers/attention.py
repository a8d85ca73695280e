"""Scaled dot-product attention and sliding-window self-attention with an explicit history of keys and values.

A history holds the keys (after RoPE) and values of the last `window - 1` positions. It has this size from the start:
positions before 0 hold zeros, and the mask hides them, because a zero key would still get softmax weight. The rows of a
batch may be at different positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.conv import next_history
from legato.models.layers.linear import Linear
from legato.models.layers.rope import RopeTables, apply_rope


class KeyValues(NamedTuple):
    """Keys and values [B, kv_heads, positions, head_dim]."""

    keys: Tensor
    values: Tensor


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype for operations that lose accuracy in low precision: float32, or float64 for float64 activations."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query scaled dot-product attention; softmax in float32 (float64 for float64 input).

    `queries` [B, H, T, d]; `keys`, `values` [B, H_kv, P, d]; `mask` bool [B or 1, T, P], True where a query attends to
    a key (at least one key per query); None: every query attends to every key. Returns [B, H, T, d].

    A masked key may be NaN, because its score is replaced. A masked value must be finite: its weight is 0, and 0 times
    NaN is NaN. The H / H_kv query heads of a KV head are rows of one matmul, so keys are not repeated in memory.
    """
    if mask is None:
        return functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    B, H, T, d = queries.shape
    H_kv, P = keys.shape[1], keys.shape[2]
    G = H // H_kv
    grouped = queries.reshape(B, H_kv, G * T, d) * d**-0.5
    scores = grouped @ keys.transpose(-1, -2)
    wide = scores.to(wide_dtype(scores)).reshape(B, H_kv, G, T, P)
    wide = torch.where(mask[:, None, None], wide, float("-inf")).view(B, H_kv, G * T, P)
    weights = torch.softmax(wide, dim=-1).to(values.dtype)
    return (weights @ values).view(B, H, T, d)


def window_mask(positions: Tensor, count: int, window: int) -> Tensor:
    """Sliding-window causal mask over history and new positions, bool [B, 1, count, window - 1 + count].

    `positions` [B]: absolute position of each row's first new position, which equals the number of earlier ones. Key j
    is at absolute position `positions - (window - 1) + j`. A query attends to itself and the `window - 1` positions
    before it, but to none before 0.
    """
    past = window - 1
    key = torch.arange(past + count, device=positions.device)
    query = torch.arange(count, device=positions.device)[:, None]
    band = (key >= query) & (key <= query + past)
    exists = key >= past - positions[:, None]
    return (band & exists[:, None, :])[:, None]


def causal_mask(past: int, count: int, device: torch.device) -> Tensor:
    """Causal mask of `count` new positions after `past` earlier ones, bool [1, 1, count, past + count]."""
    key = torch.arange(past + count, device=device)
    query = torch.arange(past, past + count, device=device)
    return (key <= query[:, None])[None, None]


class SelfAttention(nn.Module):
    """Multi-head self-attention without biases. Past keys and values are an argument and a result."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = Linear(width, heads * head_dim, bias=False)
        self.k_proj = Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = Linear(heads * head_dim, width, bias=False)

    def forward(self, x: Tensor, past: KeyValues, rope: RopeTables, mask: Tensor) -> tuple[Tensor, KeyValues]:
        """Attend from `x` [B, T, width] to `past` and itself.

        `rope`: tables for the positions of `x`. `mask` bool [B, 1, T, past + T]. Returns [B, T, width] and the
        concatenated past and new keys and values; the caller keeps what it needs.
        """
        rows, count, _ = x.shape
        queries = apply_rope(self.q_proj(x).view(rows, count, self.heads, self.head_dim).transpose(1, 2), rope)
        keys = apply_rope(self.k_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2), rope)
        values = self.v_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2)
        joined = KeyValues(
            torch.cat((past.keys.to(keys.dtype), keys), dim=2), torch.cat((past.values.to(values.dtype), values), dim=2)
        )
        attended = (
            attention(queries, *joined, mask[:, 0]).transpose(1, 2).reshape(rows, count, self.heads * self.head_dim)
        )
        y: Tensor = self.o_proj(attended)
        return y, joined


class SlidingWindowAttention(SelfAttention):
    """Self-attention in which position t attends to `window` positions: itself and the `window - 1` before it."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__(width, heads, kv_heads, head_dim)
        self.window = window

    @property
    def history_length(self) -> int:
        """Number of past positions that the next window needs."""
        return self.window - 1

    @property
    def history_shape(self) -> tuple[int, int, int]:
        """Shape of one row's keys, and of its values: KV heads, positions, head_dim."""
        return self.kv_heads, self.history_length, self.head_dim

    def step(
        self, x: Tensor, history: KeyValues, rope: RopeTables, mask: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, KeyValues]:
        """`forward` over one window; returns the output and the next history.

        `lengths` [B]: valid positions of each row; None: all. `mask`: `window_mask` of the rows' positions.
        """
        y, joined = self(x, history, rope, mask)
        keep = self.history_length
        return y, KeyValues(next_history(joined.keys, keep, lengths, 2), next_history(joined.values, keep, lengths, 2))
