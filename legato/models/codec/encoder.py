"""The codec encoder (Mimi, fully causal): 24 kHz samples to codes, for the reference recording of a cloned voice.

The history is an argument and a result. Encoding a whole recording is an initial history and one last window. Samples
may come in pieces of any size: samples that do not fill a frame wait in the history. Attention is causal over the whole
reference, so the history grows, and the length is limited to `REFERENCE_LIMIT_FRAMES`.
Weights have the names of the official speech tokenizer's `encoder.`, except for the codebooks (`codec/quantizer.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import CodecEncoderConfig
from legato.errors import ReferenceAudioError
from legato.models.codec.quantizer import EncoderQuantizer
from legato.models.codec.transformer import LayerScale
from legato.models.layers.attention import KeyValues, SelfAttention, causal_mask
from legato.models.layers.conv import CausalConv1d, ConvHistories, history_shapes
from legato.models.layers.mlp import GeluMLP
from legato.models.layers.rope import RopeTables, inverse_frequencies, rope_tables

REFERENCE_LIMIT_FRAMES = 750
"""Longest reference: 60 s at 12.5 Hz. Memory grows with the length, and attention with its square."""

KERNEL_PER_STRIDE = 2
"""Kernel size of the downsampling convolutions, in strides. Fixed in the official code."""


@dataclass(frozen=True, slots=True)
class EncoderHistory:
    """Encoder state of B references. All rows have received the same number of samples.

    `pending` [B, n]: samples that do not fill a frame yet. `positions`: number of latents computed so far, before the
    downsampling. `keys`, `values`: [B, kv_heads, positions, head_dim] for each layer; they grow. `convs`: history of
    each convolution. `latent_tail` [B, n, width]: history of the downsampling.
    """

    pending: Tensor
    positions: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    convs: tuple[Tensor, ...]
    latent_tail: Tensor


def pad_to_stride(x: Tensor, lengths: Tensor, stride: int, *, replicate: bool) -> tuple[Tensor, Tensor]:
    """Pad each row of the last window to a multiple of `stride`: with zeros, or by repeating the last valid position.

    `x` [B, N, C]; `lengths` [B]: valid positions. Returns x [B, multiple of stride, C], in which all positions after a
    row's valid ones are padding, and the lengths after the strided convolution (rounded up).
    """
    if stride == 1:
        return x, lengths
    x = functional.pad(x, (0, 0, 0, -x.shape[1] % stride))
    positions = torch.arange(x.shape[1], device=x.device)
    if replicate:
        nearest = torch.minimum(positions, (lengths[:, None] - 1).clamp(min=0))
        x = x.gather(1, nearest[:, :, None].expand_as(x))
    else:
        x = x.masked_fill((positions >= lengths[:, None])[:, :, None], 0.0)
    return x, -(-lengths // stride)


class ResidualBlock(nn.Module):
    """`x + conv_1(ELU(conv_k(ELU(x))))`; the convolutions are `block.1` and `block.3`."""

    def __init__(self, channels: int, inner: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                nn.ELU(),
                CausalConv1d(channels, inner, kernel_size, dilation=dilation),
                nn.ELU(),
                CausalConv1d(inner, channels, 1),
            ]
        )

    def forward(self, x: Tensor, histories: ConvHistories) -> Tensor:
        """`x` [B, N, channels] -> the same shape."""
        y = x
        for layer in self.block:
            y = histories.run(layer, y) if isinstance(layer, CausalConv1d) else layer(y)
        return x + y


class SampleConvs(nn.Module):
    """Samples [B, N, 1] -> latents [B, N / product of ratios, hidden]."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.num_filters
        layers: list[nn.Module] = [CausalConv1d(1, width, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            for depth in range(config.num_residual_layers):
                dilation = config.dilation_growth_rate**depth
                layers.append(ResidualBlock(width, width // config.compress, config.residual_kernel_size, dilation))
            layers.append(nn.ELU())
            layers.append(CausalConv1d(width, 2 * width, KERNEL_PER_STRIDE * ratio, stride=ratio))
            width *= 2
        layers += [nn.ELU(), CausalConv1d(width, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, histories: ConvHistories, ends: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`ends` [B]: valid samples of each row of the last window, else None. Returns latents and their `ends`."""
        for layer in self.layers:
            if isinstance(layer, CausalConv1d):
                if ends is not None:
                    x, ends = pad_to_stride(x, ends, layer.stride, replicate=False)
                x = histories.run(layer, x)
            else:
                x = layer(x, histories) if isinstance(layer, ResidualBlock) else layer(x)
        return x, ends


class LatentTransformerLayer(nn.Module):
    """Pre-LayerNorm, full causal attention, exact GELU, LayerScale on both branches."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.self_attn = SelfAttention(width, config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.mlp = GeluMLP(width, config.intermediate_size)
        self.input_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps)
        self.self_attn_layer_scale = LayerScale(width)
        self.mlp_layer_scale = LayerScale(width)

    def forward(self, x: Tensor, past: KeyValues, rope: RopeTables, mask: Tensor) -> tuple[Tensor, KeyValues]:
        """`x` [B, T, width] -> the same shape; `past` -> `past` and the keys and values of the T new positions."""
        attended, past = self.self_attn(self.input_layernorm(x), past, rope, mask)
        x = x + self.self_attn_layer_scale(attended)
        x = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return x, past


class LatentTransformer(nn.Module):
    """Latents [B, T, width] -> the same shape, with full causal attention (numerics of transformers 4.57.3)."""

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_dim, config.rope_theta
        self.layers = nn.ModuleList([LatentTransformerLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, x: Tensor, past: Sequence[KeyValues], positions: int) -> tuple[Tensor, list[KeyValues]]:
        """`positions`: number of earlier latents. `past`: their keys and values, for each layer."""
        count = x.shape[1]
        absolute = torch.arange(positions, positions + count, device=x.device)[None]
        rope = rope_tables(absolute, inverse_frequencies(self.head_dim, self.theta, x.device), x.dtype)
        mask = causal_mask(positions, count, x.device)
        grown: list[KeyValues] = []
        for layer, before in zip(self.layers, past, strict=True):
            x, after = layer(x, before, rope, mask)
            grown.append(after)
        return x, grown


class CodecEncoder(nn.Module):
    """Samples in [-1, 1] at the codec's sample rate -> frames of `valid_quantizers` codes."""

    def __init__(self, config: CodecEncoderConfig, frame_samples: int) -> None:
        super().__init__()
        self.config = config
        self.frame_samples = frame_samples
        latent_samples = 1
        for ratio in config.upsampling_ratios:
            latent_samples *= ratio
        self.latents_per_frame, rest = divmod(frame_samples, latent_samples)
        if rest or self.latents_per_frame < 1:
            raise ValueError(f"the frame size {frame_samples} is not a multiple of the latent size {latent_samples}")
        width, stride = config.hidden_size, self.latents_per_frame
        self.encoder = SampleConvs(config)
        self.encoder_transformer = LatentTransformer(config)
        self.downsample = CausalConv1d(width, width, KERNEL_PER_STRIDE * stride, stride=stride, bias=False)
        self.quantizer = EncoderQuantizer(config)

    def initial_history(self, batch: int) -> EncoderHistory:
        """History of `batch` references before their first sample."""
        config, like = self.config, self.downsample.conv.weight
        empty = like.new_zeros(batch, config.num_key_value_heads, 0, config.head_dim)
        return EncoderHistory(
            like.new_zeros(batch, 0),
            0,
            (empty,) * config.num_hidden_layers,
            (empty,) * config.num_hidden_layers,
            tuple(like.new_zeros(batch, *shape) for shape in history_shapes(self.encoder)),
            like.new_zeros(batch, *self.downsample.history_shape),
        )

    def forward(self, history: EncoderHistory, samples: Tensor) -> tuple[Tensor, EncoderHistory]:
        """Encode the next samples [B, N], any N.

        Returns the codes [B, T, Q] of the frames that are complete now, and the next history. Raises
        `ReferenceAudioError` beyond `REFERENCE_LIMIT_FRAMES`.
        """
        joined = torch.cat((history.pending, samples.to(history.pending.dtype)), dim=1)
        whole = joined.shape[1] // self.frame_samples * self.frame_samples
        pending = joined[:, whole:].clone()
        if whole == 0:
            codes = torch.zeros(joined.shape[0], 0, self.config.valid_quantizers, dtype=torch.int64)
            return codes.to(joined.device), EncoderHistory(
                pending, history.positions, history.keys, history.values, history.convs, history.latent_tail
            )
        return self._encode(history, joined[:, :whole], pending, None)

    def finish(self, history: EncoderHistory, samples: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode the last samples [B, N]. `lengths` int64 [B]: valid samples of each row; None: all N.

        The end is padded as in the official encoder: each strided convolution completes its last stride, with zeros or,
        in the downsampling, by repeating its last value. Returns codes [B, T, Q], -1 after a row's end, and the number
        of frames [B] of each row; a whole reference has ceil(samples / frame_samples).
        """
        joined = torch.cat((history.pending, samples.to(history.pending.dtype)), dim=1)
        given = torch.full((joined.shape[0],), samples.shape[1], dtype=torch.int64) if lengths is None else lengths
        ends = given.to(joined.device) + history.pending.shape[1]
        frames = -(-ends // self.frame_samples)
        if joined.shape[1] == 0:
            codes = torch.zeros(joined.shape[0], 0, self.config.valid_quantizers, dtype=torch.int64)
            return codes.to(joined.device), frames
        codes, _ = self._encode(history, joined, joined[:, :0], ends)
        padding = torch.arange(codes.shape[1], device=codes.device) >= frames[:, None]
        return codes.masked_fill(padding[..., None], -1), frames

    def encode(self, samples: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encode whole references [B, N] with `lengths` [B] valid samples. Returns the same as `finish`."""
        return self.finish(self.initial_history(samples.shape[0]), samples, lengths)

    def _encode(
        self, history: EncoderHistory, window: Tensor, pending: Tensor, ends: Tensor | None
    ) -> tuple[Tensor, EncoderHistory]:
        self._check_length(history.positions, window.shape[1])
        histories = ConvHistories(history.convs)
        x, ends = self.encoder(window[:, :, None], histories, ends)
        past = [KeyValues(*each) for each in zip(history.keys, history.values, strict=True)]
        x, past = self.encoder_transformer(x, past, history.positions)
        positions = history.positions + x.shape[1]
        if ends is not None:
            x, ends = pad_to_stride(x, ends, self.downsample.stride, replicate=True)
        # The official downsampling pads the start with its first input; all other convolutions pad with zeros.
        tail = history.latent_tail if history.positions else x[:, :1].expand_as(history.latent_tail)
        x, tail = self.downsample(x, tail)
        keys, values = tuple(each.keys for each in past), tuple(each.values for each in past)
        codes: Tensor = self.quantizer(x)
        return codes, EncoderHistory(pending, positions, keys, values, histories.updated(), tail)

    def _check_length(self, positions: int, samples: int) -> None:
        frames = positions // self.latents_per_frame + -(-samples // self.frame_samples)
        if frames > REFERENCE_LIMIT_FRAMES:
            raise ReferenceAudioError(
                f"the reference has at least {frames} frames, and the limit is {REFERENCE_LIMIT_FRAMES} "
                f"({REFERENCE_LIMIT_FRAMES * self.frame_samples} samples)",
                field="reference",
            )
