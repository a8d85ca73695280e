"""Rotary position embedding (RoPE), rotate-half (NeoX) layout.

The official talker declares M-RoPE with three sections, but gives all three the same positions, so it equals this form.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RopeTables(NamedTuple):
    """Cosines and sines [B, 1, T, head_dim]; they broadcast over heads."""

    cos: Tensor
    sin: Tensor


def inverse_frequencies(head_dim: int, theta: float, device: torch.device | None = None) -> Tensor:
    """Inverse frequencies `theta ** (-2i / head_dim)`, [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / (theta**exponents)


def rope_tables(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> RopeTables:
    """Tables for integer `positions` [B, T], computed in float32 and cast to `dtype`.

    For float64 the angles are float64, from the same float32 frequencies.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    half = positions.to(wide)[:, None, :, None] * inv_freq.to(wide)
    angles = torch.cat((half, half), dim=-1)
    return RopeTables(angles.cos().to(dtype), angles.sin().to(dtype))


def apply_rope(x: Tensor, rope: RopeTables) -> Tensor:
    """Rotate `x` [B, H, T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * rope.cos + torch.cat((-second, first), dim=-1) * rope.sin
