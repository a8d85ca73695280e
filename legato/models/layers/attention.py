"""Attention written out, and sliding-window self-attention with its own history of keys and values.

Owns weights alone. A history holds the last `window - 1` positions, keys already rotated, and starts *empty*: its
places exist but the mask hides those before position 0, because a zero key is still a key. Rows may stand at different
positions. Knows neither frames nor streams; the talker's KV cache is its own matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from legato.models.layers.conv import advance
from legato.models.layers.rope import Rotation, rotate


class KeyValues(NamedTuple):
    """Keys and values [B, kv_heads, positions, head_dim]."""

    keys: Tensor
    values: Tensor


def attend(queries: Tensor, past: KeyValues, mask: Tensor) -> Tensor:
    """Scaled dot-product attention; softmax in float32 at least.

    `queries` [B, H, T, head_dim], `past` with H or a divisor of H heads, boolean `mask` broadcastable to [B, H, T, P],
    True where a query may look (at least one place for each). Returns [B, H, T, head_dim].
    """
    keys, values = past
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    scores = scores.masked_fill(~mask, float("-inf"))
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.softmax(scores, dim=-1, dtype=wide).to(values.dtype) @ values


def window_mask(positions: Tensor, count: int, window: int) -> Tensor:
    """What `count` new positions of each row may see of its history and of each other: [B, 1, count, window-1+count].

    `positions` [B] are the absolute positions of the rows' first new position, which is also how many came before.
    Place j holds absolute position `positions - (window-1) + j`; query t sees the last `window` of them, itself
    included, none before 0.
    """
    past = window - 1
    place = torch.arange(past + count, device=positions.device)
    query = torch.arange(count, device=positions.device)[:, None]
    band = (place >= query) & (place <= query + past)
    exists = place >= past - positions[:, None]
    return (band & exists[:, None, :])[:, None]


def causal_mask(past: int, count: int, device: torch.device) -> Tensor:
    """What `count` new positions may see of `past` earlier ones and of each other: [1, 1, count, past + count]."""
    place = torch.arange(past + count, device=device)
    query = torch.arange(past, past + count, device=device)
    return (place <= query[:, None])[None, None]


class SelfAttention(nn.Module):
    """Multi-head self-attention without biases; keys and values of the past are an argument."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x: Tensor, past: KeyValues, by: Rotation, mask: Tensor) -> tuple[Tensor, KeyValues]:
        """`x` [B, T, width] at the positions of `by`; `past` in front; `mask` [B, 1, T, past + T].

        Returns the result [B, T, width] and past and new keys and values joined (the owner keeps what it needs).
        """
        rows, count, _ = x.shape
        queries = rotate(self.q_proj(x).view(rows, count, self.heads, self.head_dim).transpose(1, 2), by)
        keys = rotate(self.k_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2), by)
        values = self.v_proj(x).view(rows, count, self.kv_heads, self.head_dim).transpose(1, 2)
        joined = KeyValues(
            torch.cat((past.keys.to(keys.dtype), keys), dim=2), torch.cat((past.values.to(values.dtype), values), dim=2)
        )
        mixed = attend(queries, joined, mask).transpose(1, 2).reshape(rows, count, self.heads * self.head_dim)
        y: Tensor = self.o_proj(mixed)
        return y, joined


class SlidingWindowAttention(SelfAttention):
    """Self-attention in which position t sees `window` positions: t and the `window - 1` before it."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__(width, heads, kv_heads, head_dim)
        self.window = window

    @property
    def history_length(self) -> int:
        """Past positions that the next window needs."""
        return self.window - 1

    @property
    def history_shape(self) -> tuple[int, int, int]:
        """Heads, positions and head width of one row's keys (and of its values)."""
        return self.kv_heads, self.history_length, self.head_dim

    def step(
        self, x: Tensor, history: KeyValues, by: Rotation, mask: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, KeyValues]:
        """`forward` over a window whose row b has `lengths[b]` valid positions; returns the next history.

        `mask` is `window_mask` of the rows' positions.
        """
        y, joined = self(x, history, by, mask)
        keep = self.history_length
        return y, KeyValues(advance(joined.keys, keep, lengths, 2), advance(joined.values, keep, lengths, 2))
