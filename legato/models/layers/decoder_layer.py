"""The pre-norm decoder layer of talker and code predictor: grouped-query attention with per-head norms, and SwiGLU.

The caller passes a `KVView`, which determines where keys and values are stored, if at all. So the same layer runs on a
KV cache of many sequences, on the scratch of one frame, and on whole sequences under autograd.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from legato.config.model import TransformerConfig
from legato.models.layers.attention import attention
from legato.models.layers.linear import Linear
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import RopeTables, apply_rope


@dataclass(frozen=True, slots=True)
class KVLocations:
    """Where the keys and values of one call are stored, for kernels that read and write them by address.

    `keys`, `values` [L, S, H_kv, P, d]. `slots`, `positions` int64 [N], one entry for each valid input position.
    `used`: which of the B * T input positions these are; None: all. `span`: an exclusive upper bound of `positions`.
    A position attends to its slot's positions up to and including its own.
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    positions: Tensor
    used: Tensor | None
    span: int


class KVView(Protocol):
    """The keys and values that the queries of one call attend to; also stores those of the call."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`queries` [B, H, T, d], `keys` and `values` [B, H_kv, T, d] of this call -> attended values [B, H, T, d]."""

    def locations(self) -> KVLocations | None:
        """Locations of the stored keys and values. None if none are stored, or if positions are on a CUDA device."""


@dataclass(frozen=True, slots=True)
class UncachedKV:
    """A `KVView` for whole sequences: attends only to the keys of this call, under `mask`, and stores nothing."""

    mask: Tensor

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:  # noqa: ARG002
        """See `KVView`."""
        return attention(queries, keys, values, self.mask)

    def locations(self) -> KVLocations | None:
        """See `KVView`."""
        return None


class GroupedAttention(nn.Module):
    """Grouped-query attention without biases; RMSNorm on the queries and keys of each head before RoPE."""

    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        width, d = stack.hidden_size, stack.head_dim
        self.head_dim, self.heads, self.kv_heads = d, stack.num_attention_heads, stack.num_key_value_heads
        self.q_proj = Linear(width, stack.num_attention_heads * d, bias=False)
        self.k_proj = Linear(width, stack.num_key_value_heads * d, bias=False)
        self.v_proj = Linear(width, stack.num_key_value_heads * d, bias=False)
        self.o_proj: nn.Module = Linear(stack.num_attention_heads * d, width, bias=False)
        self.q_norm = RMSNorm(d, stack.rms_norm_eps)
        self.k_norm = RMSNorm(d, stack.rms_norm_eps)

    def forward(self, x: Tensor, rope: RopeTables, kv: KVView, layer: int) -> Tensor:
        """`x` [B, T, D] -> [B, T, D]. RoPE is applied in the dtype of `rope` (float32) and cast back."""
        B, T, _ = x.shape
        heads = self.projected(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        queries, keys, values = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        rotated = apply_rope(torch.cat((self.q_norm(queries), self.k_norm(keys)), dim=1), rope).to(values.dtype)
        attended = kv.attend(layer, rotated[:, : self.heads], rotated[:, self.heads :], values)
        y: Tensor = self.o_proj(attended.transpose(1, 2).reshape(B, T, -1))
        return y

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side: [B, T, (H + 2 H_kv) d]."""
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), dim=-1)


class DecoderLayer(nn.Module):
    """`x += attention(norm(x)); x += mlp(norm(x))`; parameter names as in the official files."""

    def __init__(self, stack: TransformerConfig) -> None:
        super().__init__()
        self.self_attn: GroupedAttention = GroupedAttention(stack)
        self.mlp: SwiGLU = SwiGLU(stack.hidden_size, stack.intermediate_size)
        self.input_layernorm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(stack.hidden_size, stack.rms_norm_eps)

    def forward(self, x: Tensor, rope: RopeTables, kv: KVView, layer: int) -> Tensor:
        """`x` [B, T, D] -> [B, T, D]. `layer`: index of this layer in the stack, for `kv`."""
        x = x + self.self_attn(self.input_layernorm(x), rope, kv, layer)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Layers(nn.ModuleList):
    """The layers of a stack, in order."""

    def run(self, x: Tensor, *, rope: RopeTables, kv: KVView) -> Tensor:
        """`x` [B, T, D] through all layers, before any final norm."""
        return run_layers(self, x, rope=rope, kv=kv)


def run_layers(layers: Iterable[nn.Module], x: Tensor, *, rope: RopeTables, kv: KVView) -> Tensor:
    """`x` [B, T, D] through all `layers`, before any final norm."""
    for index, layer in enumerate(layers):
        x = layer(x, rope, kv, index)
    return x


def causal_visibility(valid: Tensor) -> Tensor:
    """Causal mask of one call: `valid` bool [B, T] -> bool [B, T, T], True where a query attends to a key.

    A query attends to the valid keys up to its own position. An invalid query also attends to itself, because attention
    needs at least one key per query.
    """
    T = valid.shape[1]
    square = torch.ones(T, T, dtype=torch.bool, device=valid.device)
    itself = torch.eye(T, dtype=torch.bool, device=valid.device)
    return (square.tril() & valid[:, None, :]) | itself
