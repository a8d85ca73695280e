"""The codec decoder's transformer at the frame rate: sliding-window attention, SwiGLU, LayerScale.

Keys and values of past frames are an argument and a result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from legato.config.model import CodecDecoderConfig
from legato.models.layers.attention import KeyValues, SlidingWindowAttention, window_mask
from legato.models.layers.mlp import SwiGLU
from legato.models.layers.norm import RMSNorm
from legato.models.layers.rope import RopeTables, inverse_frequencies, rope_tables


class LayerScale(nn.Module):
    """A learned scale for each channel of a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] -> the same shape."""
        return x * self.scale


class FrameTransformerLayer(nn.Module):
    """`x += scale(attention(norm(x)))`, `x += scale(mlp(norm(x)))`."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = SlidingWindowAttention(
            width, config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.attention_window
        )
        self.mlp = SwiGLU(width, config.intermediate_size)
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(width)
        self.mlp_layer_scale = LayerScale(width)

    def forward(
        self, x: Tensor, history: KeyValues, rope: RopeTables, mask: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, KeyValues]:
        """`x` [B, T, width] -> the same shape; `history` -> the history after `frames` [B] valid frames of each row."""
        attended, history = self.self_attn.step(self.input_layernorm(x), history, rope, mask, frames)
        x = x + self.self_attn_layer_scale(attended)
        x = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return x, history


class FrameTransformer(nn.Module):
    """Latents [B, T, C] -> [B, T, C]; a frame attends to itself and the `attention_window - 1` frames before it."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.window = config.attention_window
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.layers = nn.ModuleList([FrameTransformerLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_proj: nn.Module = nn.Linear(config.latent_dim, config.hidden_size)
        self.output_proj: nn.Module = nn.Linear(config.hidden_size, config.latent_dim)

    def history_shapes(self) -> list[tuple[int, int, int]]:
        """For each layer, the shape of one row's keys and of its values: KV heads, positions, head_dim."""
        return [each.history_shape for each in self.modules() if isinstance(each, SlidingWindowAttention)]

    def forward(
        self, x: Tensor, past: Sequence[KeyValues], positions: Tensor, frames: Tensor | None
    ) -> tuple[Tensor, list[KeyValues]]:
        """`positions` [B]: frames before the window; `frames` [B]: its valid frames. Returns the next history, too."""
        x = self.input_proj(x)
        count = x.shape[1]
        absolute = positions[:, None] + torch.arange(count, device=x.device)
        rope = rope_tables(absolute, inverse_frequencies(self.head_dim, self.theta, x.device), x.dtype)
        mask = window_mask(positions, count, self.window)
        updated: list[KeyValues] = []
        for layer, history in zip(self.layers, past, strict=True):
            x, history = layer(x, history, rope, mask, frames)
            updated.append(history)
        y: Tensor = self.output_proj(self.norm(x))
        return y, updated
