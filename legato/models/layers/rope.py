"""Rotary position embedding, rotate-half (NeoX) layout. Owns nothing: positions are an argument.

The three-section M-RoPE of the official talker has three equal position rows, which makes it this plain form.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RopeTables(NamedTuple):
    """Cosines and sines [B, 1, T, head_dim], ready to broadcast over heads."""

    cos: Tensor
    sin: Tensor


def inverse_frequencies(head_dim: int, theta: float, device: torch.device | None = None) -> Tensor:
    """Angular steps [head_dim / 2] of one position, float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / (theta**exponents)


def rope_tables(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> RopeTables:
    """Rotation of integer `positions` [B, T]: angles, cos and sin in float32, cast to `dtype`.

    Float64 activations get float64 angles from the same float32 steps.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    half = positions.to(wide)[:, None, :, None] * inv_freq.to(wide)
    angles = torch.cat((half, half), dim=-1)
    return RopeTables(angles.cos().to(dtype), angles.sin().to(dtype))


def apply_rope(x: Tensor, rope: RopeTables) -> Tensor:
    """Turn `x` [B, H, T, head_dim] by its positions."""
    first, second = x.chunk(2, dim=-1)
    return x * rope.cos + torch.cat((-second, first), dim=-1) * rope.sin
