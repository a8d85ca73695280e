"""Losses of the codec decoder: spectral losses and discriminators.

The discriminators are a multi-period discriminator (after HiFi-GAN) and a complex multi-resolution STFT discriminator
(after EnCodec), both much smaller than the originals because they are trained on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import librosa
import torch
from torch import Tensor, nn
from torch.nn import functional

SAMPLE_RATE_HZ = 24_000
SCALES = ((2_048, 480, 128), (1_024, 240, 80), (512, 120, 64), (256, 60, 32))
"""Window, hop and mel bands of each spectral scale."""
MEL_FLOOR, LINEAR_FLOOR = 5e-5, 3e-4


@cache
def _bank(window: int, bands: int, device: str) -> Tensor:
    top_hz = SAMPLE_RATE_HZ / 2
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=window, n_mels=bands, fmin=0.0, fmax=top_hz, norm=None)
    return torch.from_numpy(bank / bank.sum(1, keepdims=True)).float().to(device)


@cache
def _window(length: int, device: str) -> Tensor:
    return torch.hann_window(length, device=device)


def spectrum(wave: Tensor, window: int, hop: int) -> Tensor:
    """STFT: [B, samples] -> complex [B, window / 2 + 1, hops]. A full-scale sine has a magnitude of about 1."""
    taper = _window(window, str(wave.device))
    return torch.stft(wave, window, hop, window, taper, center=True, return_complex=True) * (4.0 / window)


def _magnitude(value: Tensor) -> Tensor:
    return (value.real.square() + value.imag.square() + 1e-10).sqrt()


def spectral_loss(made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over scales of log-mel L1 + 0.3 log-magnitude L1 + 0.3 spectral convergence; also the log-mel term."""
    total = made.new_zeros(())
    mel_total = made.new_zeros(())
    for window, hop, bands in SCALES:
        bank = _bank(window, bands, str(made.device))
        ours = _magnitude(spectrum(made, window, hop))
        with torch.no_grad():
            theirs = _magnitude(spectrum(wanted, window, hop))
            log_mel = torch.log(bank @ theirs + MEL_FLOOR)
            log_linear = torch.log(theirs + LINEAR_FLOOR)
        mel = (torch.log(bank @ ours + MEL_FLOOR) - log_mel).abs().mean()
        linear = (torch.log(ours + LINEAR_FLOOR) - log_linear).abs().mean()
        convergence = (ours - theirs).norm() / theirs.norm().clamp(min=1e-3)
        total = total + mel + 0.3 * linear + 0.3 * convergence
        mel_total = mel_total + mel.detach()
    return total / len(SCALES), mel_total / len(SCALES)


class PeriodDiscriminator(nn.Module):
    """Period discriminator: the wave is folded so that each of the `period` phases becomes a row."""

    def __init__(self, period: int, widths: tuple[int, ...] = (8, 16, 32, 64)) -> None:
        super().__init__()
        self.period = period
        steps = zip((1, *widths[:-1]), widths, strict=True)
        self.layers = nn.ModuleList(nn.Conv1d(narrow, wide, 5, 3, 2) for narrow, wide in steps)
        self.last = nn.Conv1d(widths[-1], 1, 3, padding=1)

    def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[B, samples] -> scores, and what every layer saw."""
        whole = wave.shape[-1] // self.period * self.period
        x = wave[:, :whole].view(len(wave), -1, self.period).transpose(1, 2).reshape(-1, 1, whole // self.period)
        return _run_layers(x, self.layers, self.last)


class SpectrumDiscriminator(nn.Module):
    """STFT discriminator on real and imaginary parts at one resolution, with compressed magnitudes."""

    def __init__(self, window: int, widths: tuple[int, ...] = (16, 32, 32)) -> None:
        super().__init__()
        self.window = window
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(2, widths[0], (8, 3), (4, 1), (2, 1)),
                nn.Conv2d(widths[0], widths[1], (4, 3), (2, 1), (1, 1)),
                nn.Conv2d(widths[1], widths[2], (4, 3), (2, 1), (1, 1)),
            ]
        )
        self.last = nn.Conv2d(widths[2], 1, 3, padding=1)

    def forward(self, wave: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[B, samples] -> scores, and what every layer saw."""
        value = spectrum(wave.float(), self.window, self.window // 4)
        parts = torch.stack([value.real, value.imag], dim=1) * _magnitude(value).pow(-0.7)[:, None]
        return _run_layers(parts, self.layers, self.last)


def _run_layers(x: Tensor, layers: nn.ModuleList, last: nn.Module) -> tuple[Tensor, list[Tensor]]:
    seen = []
    for layer in layers:
        x = functional.leaky_relu(layer(x), 0.1)
        seen.append(x)
    return last(x), seen


class Discriminators(nn.Module):
    """All discriminators. Returns a list of (scores, layer activations)."""

    def __init__(self, periods: Iterable[int] = (3, 5, 7, 11), windows: Iterable[int] = (2_048, 1_024, 512)) -> None:
        super().__init__()
        self.members = nn.ModuleList([*map(PeriodDiscriminator, periods), *map(SpectrumDiscriminator, windows)])

    def forward(self, wave: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        return [member(wave) for member in self.members]


DiscriminatorOutput = list[tuple[Tensor, list[Tensor]]]


def discriminator_loss(of_real: DiscriminatorOutput, of_made: DiscriminatorOutput) -> Tensor:
    """Least-squares GAN loss: targets are 1 for real and 0 for generated waves."""
    terms = [
        (1 - real.float()).square().mean() + made.float().square().mean()
        for (real, _), (made, _) in zip(of_real, of_made, strict=True)
    ]
    return torch.stack(terms).mean()


def generator_loss(of_made: DiscriminatorOutput) -> Tensor:
    return torch.stack([(1 - made.float()).square().mean() for made, _ in of_made]).mean()


def feature_loss(of_real: DiscriminatorOutput, of_made: DiscriminatorOutput) -> Tensor:
    """Feature matching: L1 between layer activations, relative to the mean magnitude of the real ones."""
    terms = []
    for (_, real_layers), (_, made_layers) in zip(of_real, of_made, strict=True):
        for real, made in zip(real_layers, made_layers, strict=True):
            real = real.detach().float()
            terms.append((real - made.float()).abs().mean() / real.abs().mean().clamp(min=1e-4))
    return torch.stack(terms).mean()
