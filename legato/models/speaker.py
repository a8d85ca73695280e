"""The speaker encoder of Base checkpoints (ECAPA-TDNN): mel frames of a reference to a speaker vector.

It processes the whole reference in one call and has no state. Weights have the names of the official
`speaker_encoder.`. All sizes except the output width are defaults of the official package; no JSON contains them, and
the tensors of the released files confirm them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from legato.config.model import SpeakerEncoderConfig
from legato.errors import ConfigError, ReferenceAudioError
from legato.models.mel import MEL_BANDS, SAMPLE_RATE_HZ, log_mel

CHANNELS = 512
FIRST_KERNEL = 5
BLOCK_KERNEL = 3
BLOCK_DILATIONS = (2, 3, 4)
RES2NET_SCALE = 8
SQUEEZE_CHANNELS = 128
ATTENTION_CHANNELS = 128
VARIANCE_FLOOR = 1e-12


class TimeDelay(nn.Module):
    """Convolution with reflection padding (same length), then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, dilation=dilation)
        span = dilation * (kernel_size - 1)
        self.padding = (span // 2, span - span // 2)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, in, T] -> [B, out, T]."""
        if self.padding != (0, 0):
            x = functional.pad(x, self.padding, mode="reflect")
        return functional.relu(self.conv(x))


class Res2Net(nn.Module):
    """Res2Net: passes the first channel group; adds the previous result to each other one and convolves it."""

    def __init__(self, channels: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        width = channels // RES2NET_SCALE
        self.blocks = nn.ModuleList([TimeDelay(width, width, kernel_size, dilation) for _ in range(RES2NET_SCALE - 1)])

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, channels, T] -> the same shape."""
        first, *groups = x.chunk(RES2NET_SCALE, dim=1)
        results: list[Tensor] = []
        for block, group in zip(self.blocks, groups, strict=True):
            results.append(block(group + results[-1] if results else group))
        return torch.cat((first, *results), dim=1)


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation: a gate for each channel, computed from the mean over time."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, inner, 1)
        self.conv2 = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, channels, T] -> the same shape."""
        gate: Tensor = self.conv2(functional.relu(self.conv1(x.mean(dim=2, keepdim=True))))
        return x * gate.sigmoid()


class SpeakerBlock(nn.Module):
    """`x + SE(tdnn2(res2net(tdnn1(x))))`."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1 = TimeDelay(channels, channels, 1)
        self.res2net_block = Res2Net(channels, BLOCK_KERNEL, dilation)
        self.tdnn2 = TimeDelay(channels, channels, 1)
        self.se_block = SqueezeExcitation(channels, SQUEEZE_CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, channels, T] -> the same shape."""
        y: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return x + y


def moments(x: Tensor, weights: Tensor | float) -> tuple[Tensor, Tensor]:
    """Weighted mean and biased standard deviation of `x` [B, C, T] over time, [B, C, 1] each. Weights sum to 1."""
    mean = (weights * x).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=VARIANCE_FLOOR).sqrt()


class AttentivePooling(nn.Module):
    """Attentive statistics pooling: mean and standard deviation over time, weighted per channel."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay(3 * channels, inner, 1)
        self.conv = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, channels, T] -> [B, 2 * channels, 1]."""
        mean, deviation = moments(x, 1.0 / x.shape[2])
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        weights = torch.softmax(self.conv(torch.tanh(self.tdnn(context))), dim=2)
        return torch.cat(moments(x, weights), dim=1)


class SpeakerEncoder(nn.Module):
    """Log-mel frames of a reference -> its speaker vector, not normalized."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        if config.sample_rate_hz != SAMPLE_RATE_HZ:
            raise ConfigError(
                f"a speaker encoder at {config.sample_rate_hz} Hz is not supported, only at {SAMPLE_RATE_HZ} Hz",
                field="speaker_encoder_config.sample_rate",
            )
        first = TimeDelay(MEL_BANDS, CHANNELS, FIRST_KERNEL)
        blocks = [SpeakerBlock(CHANNELS, dilation) for dilation in BLOCK_DILATIONS]
        joined = CHANNELS * len(BLOCK_DILATIONS)
        self.blocks = nn.ModuleList([first, *blocks])
        self.mfa = TimeDelay(joined, joined, 1)
        self.asp = AttentivePooling(joined, ATTENTION_CHANNELS)
        self.fc = nn.Conv1d(2 * joined, config.enc_dim, 1)

    @property
    def min_frames(self) -> int:
        """Shortest reference in mel frames: the reflection padding must be shorter than the input."""
        return max(each.padding[1] for each in self.modules() if isinstance(each, TimeDelay)) + 1

    def forward(self, mel: Tensor) -> Tensor:
        """`mel` [B, T, MEL_BANDS] of equal lengths -> [B, enc_dim]. Raises ReferenceAudioError if too short."""
        if mel.shape[1] < self.min_frames:
            raise ReferenceAudioError(
                f"{mel.shape[1]} mel frames are too short for a speaker vector: at least {self.min_frames} are needed",
                field="reference",
            )
        x = mel.transpose(1, 2).to(self.fc.weight.dtype)
        outputs: list[Tensor] = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        pooled = self.asp(self.mfa(torch.cat(outputs[1:], dim=1)))
        vector: Tensor = self.fc(pooled)
        return vector[..., 0]


def speaker_vector(encoder: SpeakerEncoder, samples: Tensor) -> Tensor:
    """The speaker vector [enc_dim] of one mono reference [N] at 24 kHz."""
    vector: Tensor = encoder(log_mel(samples[None]))[0]
    return vector
