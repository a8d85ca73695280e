"""Quantized linear layers as they are stored: int8 per output channel, int4 in groups, and how weights become them.

Their `forward` is the reference: dequantize, then an ordinary linear. Backends multiply the same numbers faster.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.decoder_layer import GroupedAttention
from legato.models.layers.mlp import SwiGLU

GROUP = 32
"""Consecutive inputs that share a scale and a zero point in int4 weights."""
OUTPUTS = 16
"""int4 layers need a multiple of this number of outputs."""
TINY = 1e-30
"""Lower bound of a scale, so that an all-zero channel or row does not divide by zero."""


class Int8Linear(nn.Module):
    """`values` int8 [N, K] times `scales` float32 [N] (one per output channel); `bias` float32 [N] or None."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.values = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(out_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def dense(self) -> Tensor:
        """The dequantized weights, float32 [N, K]."""
        return self.values.float() * self.scales[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        return _dense_linear(x, self.dense(), self.bias)


class Int4Linear(nn.Module):
    """`values` uint8 [N, K / 2]: two numbers 0 to 15 per byte, the first in the low half.

    Number q of group g of output n stands for `(q - 8) * affine[n, g, 0] + affine[n, g, 1]`; `affine` is bfloat16.
    """

    bias: None = None

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.values = nn.Parameter(torch.empty(out_features, in_features // 2, dtype=torch.uint8), requires_grad=False)
        groups = in_features // GROUP
        self.affine = nn.Parameter(torch.empty(out_features, groups, 2, dtype=torch.bfloat16), requires_grad=False)

    def numbers(self) -> Tensor:
        """The numbers 0 to 15, int32 [N, K]."""
        return torch.stack((self.values & 15, self.values >> 4), dim=-1).flatten(1).int()

    def dense(self) -> Tensor:
        """The dequantized weights, float32 [N, K]."""
        steps = (self.numbers() - 8).view(self.out_features, -1, GROUP).float()
        return (steps * self.affine[..., :1].float() + self.affine[..., 1:].float()).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., K] -> [..., N] in the dtype of `x`."""
        return _dense_linear(x, self.dense(), None)


QuantizedLinear = Int8Linear | Int4Linear


class FusedAttention(GroupedAttention):
    """`GroupedAttention` with queries, keys and values as one linear, `qkv_proj`, as quantized checkpoints store it."""

    def __init__(self, attention: GroupedAttention, qkv_proj: nn.Module, o_proj: nn.Module) -> None:
        nn.Module.__init__(self)
        self.head_dim, self.heads, self.kv_heads = attention.head_dim, attention.heads, attention.kv_heads
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side: [B, T, (H + 2 H_kv) d]."""
        projected: Tensor = self.qkv_proj(x)
        return projected


class FusedSwiGLU(SwiGLU):
    """`SwiGLU` with gate and up as one linear, `gate_up_proj`."""

    def __init__(self, gate_up_proj: nn.Module, down_proj: nn.Module) -> None:
        nn.Module.__init__(self)
        self.gate_up_proj = gate_up_proj
        self.down_proj = down_proj

    def gate_and_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both inner vectors of `x`, [..., inner] each."""
        both: Tensor = self.gate_up_proj(x)
        inner = both.shape[-1] // 2
        return both[..., :inner], both[..., inner:]


def fits_int4(in_features: int, out_features: int) -> bool:
    """Whether a layer of this shape can have int4 weights."""
    return in_features % GROUP == 0 and out_features % OUTPUTS == 0


def to_int8(weight: Tensor, bias: Tensor | None) -> Int8Linear:
    """Quantize `weight` [N, K] to int8: the largest magnitude of each output channel becomes 127."""
    wide = weight.float()
    linear = Int8Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    scales = wide.abs().amax(1).clamp(min=TINY) / 127
    linear.scales.copy_(scales)
    linear.values.copy_((wide / scales[:, None]).round())
    if linear.bias is not None and bias is not None:
        linear.bias.copy_(bias)
    return linear


def to_int4(weight: Tensor) -> Int4Linear:
    """Quantize `weight` [N, K] to int4: the smallest and largest weight of each group become 0 and 15."""
    N, K = weight.shape
    groups = weight.float().view(N, K // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / 15).clamp(min=TINY).bfloat16()
    zero = (low + 8 * scale.float()).bfloat16()
    linear = Int4Linear(K, N)
    linear.affine.copy_(torch.stack((scale, zero), dim=-1))
    numbers = ((groups - zero.float()[..., None]) / scale.float()[..., None]).round().add(8).clamp(0, 15)
    pairs = numbers.to(torch.uint8).view(N, K // 2, 2)
    linear.values.copy_(pairs[..., 0] | pairs[..., 1] << 4)
    return linear


def dense_linear(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> nn.Linear:
    """An ordinary linear without gradients."""
    with torch.device("meta"):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    return linear


def _dense_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = functional.linear(x.to(wide), weight.to(wide), None if bias is None else bias.to(wide))
    return y.to(x.dtype)
