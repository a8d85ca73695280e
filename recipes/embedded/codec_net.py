"""Codec decoder for training: whole sequences with causal padding, with the official parameter names.

The graph is that of the Qwen3-TTS 12 Hz tokenizer's decoder: RVQ, causal convolution, sliding-window transformer,
ConvNeXt upsampling, SnakeBeta convolution blocks. The engine has its own streaming implementation; `codec_export.py`
checks that both agree. `CodecSizes` has the sizes of the embedded voice.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

SNAKE_FLOOR = 1e-9
CONVNEXT_KERNEL = 7
RESIDUAL_DILATIONS = (1, 3, 9)


@dataclass(frozen=True)
class CodecSizes:
    """The official keys of `decoder_config`."""

    latent_dim: int = 256
    codebook_dim: int = 256
    codebook_size: int = 512
    decoder_dim: int = 384
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    sliding_window: int = 72
    layer_scale_initial_scale: float = 0.1
    max_position_embeddings: int = 8_000
    num_quantizers: int = 8
    num_semantic_quantizers: int = 1
    upsample_rates: tuple[int, ...] = (2, 2, 2, 30)
    upsampling_ratios: tuple[int, ...] = (2, 2, 2, 1, 1, 1)

    @property
    def frame_samples(self) -> int:
        return math.prod(self.upsample_rates) * math.prod(self.upsampling_ratios)

    def as_json(self) -> dict[str, object]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


class CausalConv(nn.Module):
    """Causal convolution with a left context of (kernel - 1) * dilation positions."""

    def __init__(self, width_in: int, width_out: int, kernel: int, dilation: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width_in, width_out, kernel, dilation=dilation, groups=groups)
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (self.past, 0)) if self.past else x)


class CausalUpsample(nn.Module):
    """Causal transposed convolution: kernel k, stride s, without the last k - s samples.

    With k = s or k = 2 s an output block depends on one or two inputs. It is computed as a convolution to s * width_out
    channels, which is fast on a CPU.
    """

    def __init__(self, width_in: int, width_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(width_in, width_out, kernel, stride=stride)
        self.inputs, rest = divmod(kernel, stride)
        if rest:
            raise ValueError(f"kernel {kernel} is not a multiple of stride {stride}")
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        B, T, width_out = x.shape[0], x.shape[2], self.conv.out_channels
        weight = self.conv.weight.view(-1, width_out, self.inputs, self.stride).flip(2)
        taps = weight.permute(3, 1, 0, 2).reshape(self.stride * width_out, -1, self.inputs)
        y = functional.conv1d(functional.pad(x, (self.inputs - 1, 0)), taps)
        y = y.view(B, self.stride, width_out, T).permute(0, 2, 3, 1).reshape(B, width_out, T * self.stride)
        return y + self.conv.bias[:, None].to(y.dtype)


def snake_beta(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """SnakeBeta on [B, width, T], with sin^2(x) as (1 - cos(2x)) / 2. Compiled for training: fused it takes 10 %."""
    double_rate = (2 * alpha.exp())[:, None].to(x.dtype)
    half_height = (0.5 / (beta.exp() + SNAKE_FLOOR))[:, None].to(x.dtype)
    return x + half_height * (1 - torch.cos(double_rate * x))


class SnakeBeta(nn.Module):
    """x + sin^2(x e^alpha) / (e^beta + 1e-9), both parameters in log space."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.beta = (nn.Parameter(torch.zeros(width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return snake_beta(x, self.alpha, self.beta)


class ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(width, width, CONVNEXT_KERNEL, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.pwconv2(functional.gelu(self.pwconv1(y))) * self.gamma
        return x + y.transpose(1, 2)


class Scale(nn.Module):
    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Attention(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        width = sizes.num_attention_heads * sizes.head_dim
        self.heads, self.window = sizes.num_attention_heads, sizes.sliding_window
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(sizes.hidden_size, width, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(width, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor, rope_tables: tuple[Tensor, Tensor]) -> Tensor:
        B, T, _ = x.shape
        q, k, v = (
            project(x).view(B, T, self.heads, -1).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        age = torch.arange(T, device=x.device)[:, None] - torch.arange(T, device=x.device)
        seen = (age >= 0) & (age < self.window)
        mixed = functional.scaled_dot_product_attention(
            _rotate(q, rope_tables), _rotate(k, rope_tables), v, attn_mask=seen
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(B, T, -1))


class GatedMlp(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        width, inner = sizes.hidden_size, sizes.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TransformerLayer(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.self_attn = Attention(sizes)
        self.self_attn_layer_scale = Scale(sizes.hidden_size, sizes.layer_scale_initial_scale)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = GatedMlp(sizes)
        self.mlp_layer_scale = Scale(sizes.hidden_size, sizes.layer_scale_initial_scale)

    def forward(self, x: Tensor, rope_tables: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), rope_tables))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class PreTransformer(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.input_proj = nn.Linear(sizes.latent_dim, sizes.hidden_size)
        self.layers = nn.ModuleList(TransformerLayer(sizes) for _ in range(sizes.num_hidden_layers))
        self.norm = nn.RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.output_proj = nn.Linear(sizes.hidden_size, sizes.latent_dim)
        rates = sizes.rope_theta ** -(torch.arange(0, sizes.head_dim, 2).float() / sizes.head_dim)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.rates).repeat(1, 2)
        rope_tables = (angles.cos(), angles.sin())
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, rope_tables)
        return self.output_proj(self.norm(x))


def _rotate(x: Tensor, rope_tables: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * rope_tables[0].to(x.dtype) + torch.cat([-second, first], dim=-1) * rope_tables[1].to(x.dtype)


class Codebook(nn.Module):
    def __init__(self, entries: Tensor) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(entries.clone())
        self.register_buffer("cluster_usage", torch.ones(len(entries)))


class ResidualQuantizer(nn.Module):
    """Sum of codebook entries, projected to the codec width."""

    def __init__(self, codebooks: Tensor, width: int) -> None:
        super().__init__()
        levels = nn.ModuleList(nn.ModuleDict({"_codebook": Codebook(entries)}) for entries in codebooks)
        self.vq = nn.ModuleDict({"layers": levels})
        self.output_proj = nn.Conv1d(codebooks.shape[-1], width, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        entries = [
            functional.embedding(codes[..., level], layer["_codebook"].embedding_sum)
            for level, layer in enumerate(self.vq["layers"])
        ]
        return self.output_proj(torch.stack(entries).sum(0).transpose(1, 2))


class Quantizer(nn.Module):
    def __init__(self, codebooks: Tensor, sizes: CodecSizes) -> None:
        super().__init__()
        self.semantic = sizes.num_semantic_quantizers
        self.rvq_first = ResidualQuantizer(codebooks[: self.semantic], sizes.codebook_dim)
        self.rvq_rest = ResidualQuantizer(codebooks[self.semantic :], sizes.codebook_dim)

    def forward(self, codes: Tensor) -> Tensor:
        return self.rvq_first(codes[..., : self.semantic]) + self.rvq_rest(codes[..., self.semantic :])


class ResidualUnit(nn.Module):
    """Residual unit, initialized as the identity (the second convolution starts at zero)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(width)
        self.conv1 = CausalConv(width, width, 7, dilation)
        self.act2 = SnakeBeta(width)
        self.conv2 = CausalConv(width, width, 1)
        nn.init.zeros_(self.conv2.conv.weight)
        nn.init.zeros_(self.conv2.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class DecoderBlock(nn.Module):
    def __init__(self, width_in: int, width_out: int, rate: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            SnakeBeta(width_in),
            CausalUpsample(width_in, width_out, 2 * rate, rate),
            *(ResidualUnit(width_out, dilation) for dilation in RESIDUAL_DILATIONS),
        )
        self.skip_units = False
        """If true, the residual units are skipped (they are still the identity), which saves time."""

    def forward(self, x: Tensor) -> Tensor:
        return self.block[:2](x) if self.skip_units else self.block(x)


class CodecDecoder(nn.Module):
    """Codes int64 [B, T, Q] -> samples [B, 1920 T]."""

    def __init__(self, sizes: CodecSizes, codebooks: Tensor | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        if codebooks is None:
            codebooks = torch.zeros(sizes.num_quantizers, sizes.codebook_size, sizes.codebook_dim // 2)
        self.quantizer = Quantizer(codebooks, sizes)
        self.pre_conv = CausalConv(sizes.codebook_dim, sizes.latent_dim, 3)
        self.pre_transformer = PreTransformer(sizes)
        latent = sizes.latent_dim
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, ratio, ratio), ConvNeXt(latent)])
            for ratio in sizes.upsampling_ratios
        )
        widths = [sizes.decoder_dim >> level for level in range(len(sizes.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            [
                CausalConv(sizes.latent_dim, widths[0], 7),
                *map(DecoderBlock, widths, widths[1:], sizes.upsample_rates),
                SnakeBeta(widths[-1]),
                CausalConv(widths[-1], 1, 7),
            ]
        )

    def forward(self, codes: Tensor) -> Tensor:
        x = self.pre_conv(self.quantizer(codes))
        x = self.pre_transformer(x.transpose(1, 2)).transpose(1, 2)
        for upsample, convnext in self.upsample:
            x = convnext(upsample(x))
        for stage in self.decoder:
            x = stage(x)
        return x[:, 0].float()
