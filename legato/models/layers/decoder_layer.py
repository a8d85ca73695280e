"""The pre-norm decoder layer that talker and code predictor share: grouped-query attention with per-head norms, SwiGLU.

Owns its weights. Where keys and values live, and for how long, is known to the `KeyValues` that the caller passes: the
same arithmetic serves a cache of many sequences, the scratch of one frame, and a whole sequence under autograd.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import TransformerConfig
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import Rotation, rotate


@dataclass(frozen=True, slots=True)
class Cells:
    """Where the keys and values of one call lie, for code that writes and reads them by itself.

    `keys`, `values` [L, S, H_kv, P, d]; `slots`, `positions` int64, one for each position of the call that counts;
    `used`: which of the B * T those are, or None for all; `span`: more than the largest position. A position attends to
    its slot's positions up to its own.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    positions: Tensor
    used: Tensor | None
    span: int


class KeyValues(Protocol):
    """What the queries of one call attend to: keeps the call's keys and values, knows which others are theirs."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`queries` [B, H, T, d], `keys` and `values` [B, H_kv, T, d] of this call -> attended values [B, H, T, d]."""

    def cells(self) -> Cells | None:
        """The same as places in memory; None where keys and values are not kept, or the host may not look at places."""


@dataclass(frozen=True, slots=True)
class OwnKeyValues:
    """No state: whole sequences attend to their own positions, as far as `visible` (see `attend`) lets them."""

    visible: Tensor

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing is kept."""
        return attend(queries, keys, values, self.visible)

    def cells(self) -> Cells | None:
        """Nowhere."""
        return None


def attend(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Scaled dot-product attention; softmax in float32 (float64 for float64 input).

    `queries` [B, H, T, d]; `keys`, `values` [B, H_kv, P, d]; `visible` bool [B or 1, T, P], or None where every query
    sees every key, which is the library's own fused form. With a mask it is written out, so that a hidden key may be
    NaN; hidden values must be finite: their weight is 0, and 0 times NaN is NaN. -> [B, H, T, d]. The H / H_kv heads of
    a group are rows of one product: keys are never repeated.
    """
    if visible is None:
        return functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
    B, H, T, d = queries.shape
    H_kv, P = keys.shape[1], keys.shape[2]
    G = H // H_kv
    grouped = queries.reshape(B, H_kv, G * T, d) * d**-0.5
    scores = grouped @ keys.transpose(-1, -2)
    wide = scores.to(wide_dtype(scores)).reshape(B, H_kv, G, T, P)
    wide = torch.where(visible[:, None, None], wide, float("-inf")).view(B, H_kv, G * T, P)
    weights = torch.softmax(wide, dim=-1).to(values.dtype)
    return (weights @ values).view(B, H, T, d)


class GroupedAttention(nn.Module):
    """Grouped-query attention, no biases; RMSNorm on each head's queries and keys before the rotation."""

    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        width, d = stack.hidden_size, stack.head_dim
        self.head_dim, self.heads, self.kv_heads = d, stack.num_attention_heads, stack.num_key_value_heads
        self.q_proj = nn.Linear(width, stack.num_attention_heads * d, bias=False)
        self.k_proj = nn.Linear(width, stack.num_key_value_heads * d, bias=False)
        self.v_proj = nn.Linear(width, stack.num_key_value_heads * d, bias=False)
        self.o_proj: nn.Module = nn.Linear(stack.num_attention_heads * d, width, bias=False)
        self.q_norm = RMSNorm(d, stack.rms_norm_eps)
        self.k_norm = RMSNorm(d, stack.rms_norm_eps)

    def forward(self, x: Tensor, by: Rotation, kv: KeyValues, layer: int) -> Tensor:
        """`x` [B, T, D] -> [B, T, D]. The rotation is applied in the dtype of `by` (float32) and cast back."""
        B, T, _ = x.shape
        heads = self.projected(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        turning = self.heads + self.kv_heads
        queries, keys, values = heads[:, : self.heads], heads[:, self.heads : turning], heads[:, turning:]
        turned = rotate(torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=1), by).to(values.dtype)
        mixed = kv.attend(layer, turned[:, : self.heads], turned[:, self.heads :], values)
        y: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(B, T, -1))
        return y

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side: [B, T, (H + 2 H_kv) d]."""
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)


class JoinedAttention(GroupedAttention):
    """The same with queries, keys and values as one product, `qkv_proj`; norms are those of `plain`."""

    def __init__(self, plain: GroupedAttention, qkv_proj: nn.Module, o_proj: nn.Module) -> None:
        nn.Module.__init__(self)
        self.head_dim, self.heads, self.kv_heads = plain.head_dim, plain.heads, plain.kv_heads
        self.qkv_proj = qkv_proj
        self.o_proj = o_proj
        self.q_norm, self.k_norm = plain.q_norm, plain.k_norm

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side: [B, T, (H + 2 H_kv) d]."""
        joint: Tensor = self.qkv_proj(x)
        return joint


class DecoderLayer(nn.Module):
    """`x += attention(norm(x)); x += mlp(norm(x))`; parameter names as in the official files."""

    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.self_attn: GroupedAttention = GroupedAttention(stack)
        self.mlp: SwiGLU = SwiGLU(stack.hidden_size, stack.intermediate_size)
        self.input_layernorm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)

    def forward(self, x: Tensor, by: Rotation, kv: KeyValues, layer: int) -> Tensor:
        """`x` [B, T, D] -> [B, T, D]; arguments as of `run_layers`."""
        x = x + self.self_attn(self.input_layernorm(x), by, kv, layer)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Layers(nn.ModuleList):
    """The layers of a stack, in order."""

    def run(self, x: Tensor, *, by: Rotation, kv: KeyValues) -> Tensor:
        """`x` [B, T, D] through all layers, before any final norm."""
        return run_layers(self, x, by=by, kv=kv)


def run_layers(layers: Iterable[nn.Module], x: Tensor, *, by: Rotation, kv: KeyValues) -> Tensor:
    """`x` [B, T, D] through all `layers`, before any final norm."""
    for index, layer in enumerate(layers):
        x = layer(x, by, kv, index)
    return x


def causal_visibility(valid: Tensor) -> Tensor:
    """Which keys each query of one call may see: `valid` bool [B, T] -> [B, T, T].

    A key must be valid and not later than the query; a query that is not valid sees itself, so that no row is empty.
    """
    T = valid.shape[1]
    square = torch.ones(T, T, dtype=torch.bool, device=valid.device)
    itself = torch.eye(T, dtype=torch.bool, device=valid.device)
    return (square.tril() & valid[:, None, :]) | itself


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype for what low precision would harm: float32, or float64 where the activations are float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
