"""From the frame rate to the sample rate: ConvNeXt stages and Snake-activated decoder blocks. Own weights alone.

Kernel 7, dilations 1, 3, 9, a ConvNeXt widening of 4 and kernels of twice the stride are fixed by the official graph;
its JSON names none of them. Positions are rows, [B, N, channels], from the first layer to the last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalDepthwiseConv1d, HistoryWalk

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

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`x` [B, N, channels] -> the same shape and dtype, in `out` where that is given. Inference only."""
        gain = (self.beta.exp() + SNAKE_EPS).reciprocal_()
        wave = (x * self.alpha.exp()).sin_().square_()
        return torch.addcmul(x, gain, wave, out=out)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm, two pointwise layers with exact GELU, a gain, and the input added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalDepthwiseConv1d(width, KERNEL)
        self.norm = nn.LayerNorm(width, eps=CONVNEXT_EPS)
        self.pwconv1 = nn.Linear(width, CONVNEXT_WIDENING * width)
        self.pwconv2 = nn.Linear(CONVNEXT_WIDENING * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """`x` [B, N, width] -> the same shape."""
        y = self.norm(walk.run(self.dwconv, x, lengths))
        return torch.addcmul(x, self.gamma, self.pwconv2(functional.gelu(self.pwconv1(y))))


class UpsampleStage(nn.ModuleList):
    """`0`: transposed convolution, kernel = stride = ratio; `1`: ConvNeXt block."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__([CausalConvTranspose1d(width, width, ratio, stride=ratio), ConvNeXtBlock(width)])

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`x` [B, N, width] -> [B, N * ratio, width], and the rows' lengths there."""
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

    @property
    def adds_nothing(self) -> bool:
        """True for a unit that is the identity by its weights: its last layer is zero, bias included."""
        return not any(bool(each.any()) for each in self.conv2.parameters())

    def forward(self, x: Tensor, walk: HistoryWalk, lengths: Tensor | None) -> Tensor:
        """`x` [B, N, channels] -> the same shape."""
        y = walk.run(self.conv1, x, lengths, self.act1)
        return walk.run(self.conv2, y, lengths, self.act2, plus=x)


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
        """`x` [B, N, in] -> [B, N * rate, out], and the rows' lengths there."""
        activation, up, *units = self.block
        assert isinstance(activation, SnakeBeta)
        assert isinstance(up, CausalConvTranspose1d)
        x = walk.run(up, x, lengths, activation)
        lengths = None if lengths is None else lengths * up.stride
        for unit in units:
            if isinstance(unit, ResidualUnit):
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
        """Latents [B, N, latent] -> samples [B, N * rates] in [-1, 1]."""
        first, *blocks, activation, last = self
        assert isinstance(first, CausalConv1d)
        assert isinstance(activation, SnakeBeta)
        assert isinstance(last, CausalConv1d)
        x = walk.run(first, x, lengths)
        for block in blocks:
            x, lengths = block(x, walk, lengths)
        return walk.run(last, x, lengths, activation).squeeze(2).clamp_(-1.0, 1.0)


def pass_idle_units(head: WaveHead) -> None:
    """Put the identity in place of residual units that add nothing. A history from before no longer fits."""
    for stage in head:
        if isinstance(stage, DecoderBlock):
            for at, unit in enumerate(stage.block):
                if isinstance(unit, ResidualUnit) and unit.adds_nothing:
                    stage.block[at] = nn.Identity()
