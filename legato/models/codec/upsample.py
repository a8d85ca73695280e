"""From the frame rate to the sample rate: ConvNeXt stages and Snake-activated decoder blocks. Own weights alone.

Kernel 7, dilations 1, 3, 9, a ConvNeXt widening of 4 and kernels of twice the stride are fixed by the official graph;
its JSON names none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, HistoryWalk

KERNEL = 7
DILATIONS = (1, 3, 9)
KERNEL_PER_STRIDE = 2
CONVNEXT_WIDENING = 4
CONVNEXT_EPS = 1e-6
SNAKE_EPS = 1e-9


class SnakeBeta(nn.Module):
    """`x + sin(x * exp(alpha))^2 / exp(beta)`, alpha and beta per channel, stored as logarithms.

    Snake(0) = 0, so a history of zeros is the same before and after it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, channels, N] -> the same shape and dtype."""
        rate = self.alpha.exp()[:, None]
        gain = (self.beta.exp() + SNAKE_EPS).reciprocal()[:, None]
        return x + gain.to(x.dtype) * (x * rate.to(x.dtype)).sin().square()


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm, two pointwise layers with exact GELU, a gain, and the input added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(width, width, KERNEL, groups=width)
        self.norm = nn.LayerNorm(width, eps=CONVNEXT_EPS)
        self.pwconv1 = nn.Linear(width, CONVNEXT_WIDENING * width)
        self.pwconv2 = nn.Linear(CONVNEXT_WIDENING * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """`x` [B, width, N] -> the same shape."""
        y = walk.run(self.dwconv, x, lengths).transpose(1, 2)
        y = self.pwconv2(functional.gelu(self.pwconv1(self.norm(y))))
        scaled: Tensor = self.gamma * y
        return x + scaled.transpose(1, 2)


class UpsampleStage(nn.ModuleList):
    """`0`: transposed convolution, kernel = stride = ratio; `1`: ConvNeXt block."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__([CausalConvTranspose1d(width, width, ratio, stride=ratio), ConvNeXtBlock(width)])

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`x` [B, width, N] -> [B, width, N * ratio], and the rows' lengths there."""
        up, block = self
        assert isinstance(up, CausalConvTranspose1d)
        x = walk.run(up, x, lengths)
        lengths = None if lengths is None else lengths * up.stride
        return block(x, walk, lengths), lengths


class ResidualUnit(nn.Module):
    """`x + conv2(act2(conv1(act1(x))))`; conv1 is dilated, conv2 has kernel 1."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, KERNEL, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """`x` [B, channels, N] -> the same shape."""
        y = walk.run(self.conv1, self.act1(x), lengths)
        return x + walk.run(self.conv2, self.act2(y), lengths)


class DecoderBlock(nn.Module):
    """Snake, transposed convolution with overlap, three residual units (`block.0` ... `block.4`)."""

    def __init__(self, in_channels: int, out_channels: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(in_channels),
                CausalConvTranspose1d(in_channels, out_channels, KERNEL_PER_STRIDE * rate, stride=rate),
                *(ResidualUnit(out_channels, dilation) for dilation in DILATIONS),
            ]
        )

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`x` [B, in, N] -> [B, out, N * rate], and the rows' lengths there."""
        activation, up, *units = self.block
        assert isinstance(up, CausalConvTranspose1d)
        x = walk.run(up, activation(x), lengths)
        lengths = None if lengths is None else lengths * up.stride
        for unit in units:
            x = unit(x, walk, lengths)
        return x, lengths


class WaveHead(nn.ModuleList):
    """The whole synthesis: first convolution, decoder blocks, Snake, last convolution, clamp."""

    def __init__(self, latent: int, width: int, rates: tuple[int, ...]) -> None:
        stages: list[nn.Module] = [CausalConv1d(latent, width, KERNEL)]
        for rate in rates:
            stages.append(DecoderBlock(width, width // 2, rate))
            width //= 2
        super().__init__([*stages, SnakeBeta(width), CausalConv1d(width, 1, KERNEL)])

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """Latents [B, latent, N] -> samples [B, N * rates] in [-1, 1]."""
        first, *blocks, activation, last = self
        assert isinstance(first, CausalConv1d)
        assert isinstance(last, CausalConv1d)
        x = walk.run(first, x, lengths)
        for block in blocks:
            x, lengths = block(x, walk, lengths)
        return walk.run(last, activation(x), lengths).squeeze(1).clamp(-1.0, 1.0)
