"""From the frame rate to the sample rate: ConvNeXt upsampling stages, then decoder blocks with Snake activations.

The constants below (kernel 7, dilations 1, 3, 9, ConvNeXt expansion 4, transposed kernels of two strides) are fixed in
the official code and not part of the JSON configuration. The layout is [B, N, channels] throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.models.layers.conv import CausalConv1d, CausalConvTranspose1d, CausalDepthwiseConv1d, ConvHistories

KERNEL = 7
DILATIONS = (1, 3, 9)
KERNEL_PER_STRIDE = 2
CONVNEXT_EXPANSION = 4
CONVNEXT_EPS = 1e-6
SNAKE_EPS = 1e-9


class SnakeBeta(nn.Module):
    """`x + sin(x * exp(alpha))^2 / exp(beta)`; alpha and beta are per channel and stored as logarithms.

    SnakeBeta(0) = 0, so an initial history of zeros may be stored before or after the activation.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """`x` [B, N, channels] -> the same shape and dtype, written to `out` if given. Inference only."""
        gain = (self.beta.exp() + SNAKE_EPS).reciprocal_()
        wave = (x * self.alpha.exp()).sin_().square_()
        return torch.addcmul(x, gain, wave, out=out)


class ConvNeXtBlock(nn.Module):
    """`x + gamma * pwconv2(gelu(pwconv1(norm(dwconv(x)))))`, with the exact (erf) GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalDepthwiseConv1d(width, KERNEL)
        self.norm = nn.LayerNorm(width, eps=CONVNEXT_EPS)
        self.pwconv1 = nn.Linear(width, CONVNEXT_EXPANSION * width)
        self.pwconv2 = nn.Linear(CONVNEXT_EXPANSION * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """`x` [B, N, width] -> the same shape."""
        y = self.norm(histories.run(self.dwconv, x, lengths))
        return torch.addcmul(x, self.gamma, self.pwconv2(functional.gelu(self.pwconv1(y))))


class UpsampleStage(nn.ModuleList):
    """Transposed convolution with kernel = stride = ratio (`0`), then a ConvNeXt block (`1`)."""

    def __init__(self, width: int, ratio: int) -> None:
        super().__init__([CausalConvTranspose1d(width, width, ratio, stride=ratio), ConvNeXtBlock(width)])

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`x` [B, N, width] -> [B, N * ratio, width]; `lengths` -> the valid lengths of the output."""
        up, block = self
        assert isinstance(up, CausalConvTranspose1d)
        x = histories.run(up, x, lengths)
        lengths = None if lengths is None else lengths * up.stride
        return block(x, histories, lengths), lengths


class ResidualUnit(nn.Module):
    """`x + conv2(act2(conv1(act1(x))))`; conv1 is dilated, conv2 is pointwise."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv1d(channels, channels, KERNEL, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    @property
    def is_identity(self) -> bool:
        """True if conv2 is zero, including its bias, so that the unit returns its input."""
        return not any(bool(each.any()) for each in self.conv2.parameters())

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """`x` [B, N, channels] -> the same shape."""
        y = histories.run(self.conv1, x, lengths, self.act1)
        return histories.run(self.conv2, y, lengths, self.act2, residual=x)


class DecoderBlock(nn.Module):
    """SnakeBeta (`block.0`), transposed convolution (`block.1`), three residual units (`block.2` to `block.4`)."""

    def __init__(self, in_channels: int, out_channels: int, rate: int) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            [
                SnakeBeta(in_channels),
                CausalConvTranspose1d(in_channels, out_channels, KERNEL_PER_STRIDE * rate, stride=rate),
                *(ResidualUnit(out_channels, dilation) for dilation in DILATIONS),
            ]
        )

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """`x` [B, N, in] -> [B, N * rate, out]; `lengths` -> the valid lengths of the output."""
        activation, up, *units = self.block
        assert isinstance(activation, SnakeBeta)
        assert isinstance(up, CausalConvTranspose1d)
        x = histories.run(up, x, lengths, activation)
        lengths = None if lengths is None else lengths * up.stride
        for unit in units:
            if isinstance(unit, ResidualUnit):
                x = unit(x, histories, lengths)
        return x, lengths


class WaveformDecoder(nn.ModuleList):
    """Latents to waveform: convolution, decoder blocks, SnakeBeta, convolution, clamp."""

    def __init__(self, latent: int, width: int, rates: tuple[int, ...]) -> None:
        stages: list[nn.Module] = [CausalConv1d(latent, width, KERNEL)]
        for rate in rates:
            stages.append(DecoderBlock(width, width // 2, rate))
            width //= 2
        super().__init__([*stages, SnakeBeta(width), CausalConv1d(width, 1, KERNEL)])

    def forward(self, x: Tensor, histories: ConvHistories, lengths: Tensor | None) -> Tensor:
        """Latents [B, N, latent] -> samples [B, N * rates] in [-1, 1]."""
        first, *blocks, activation, last = self
        assert isinstance(first, CausalConv1d)
        assert isinstance(activation, SnakeBeta)
        assert isinstance(last, CausalConv1d)
        x = histories.run(first, x, lengths)
        for block in blocks:
            x, lengths = block(x, histories, lengths)
        return histories.run(last, x, lengths, activation).squeeze(2).clamp_(-1.0, 1.0)


def remove_identity_units(decoder: WaveformDecoder) -> None:
    """Replace residual units that return their input by `nn.Identity`. This changes the number of histories."""
    for stage in decoder:
        if isinstance(stage, DecoderBlock):
            for index, unit in enumerate(stage.block):
                if isinstance(unit, ResidualUnit) and unit.is_identity:
                    stage.block[index] = nn.Identity()
