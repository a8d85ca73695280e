"""Mel spectrogram of the speaker encoder: 24 kHz samples to log-mel frames, in float32.

All constants are those of the official package.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from legato.errors import ReferenceAudioError

SAMPLE_RATE_HZ = 24_000
FFT_SAMPLES = 1_024
HOP_SAMPLES = 256
EDGE_SAMPLES = (FFT_SAMPLES - HOP_SAMPLES) // 2
"""Samples of reflection padding on each side."""
MEL_BANDS = 128
LOWEST_HZ, HIGHEST_HZ = 0.0, 12_000.0
MAGNITUDE_FLOOR = 1e-9
LOG_FLOOR = 1e-5

# Slaney's mel scale: linear below 1 kHz, logarithmic above.
_LINEAR_STEP_HZ = 200.0 / 3.0
_LOG_START_HZ = 1_000.0
_LOG_START_MEL = _LOG_START_HZ / _LINEAR_STEP_HZ
_LOG_STEP = math.log(6.4) / 27.0


def hz_to_mel(hz: float) -> float:
    """Convert hertz to mels (Slaney)."""
    if hz < _LOG_START_HZ:
        return hz / _LINEAR_STEP_HZ
    return _LOG_START_MEL + math.log(hz / _LOG_START_HZ) / _LOG_STEP


def mel_to_hz(mel: Tensor) -> Tensor:
    """Convert mels (Slaney) to hertz."""
    log_part = _LOG_START_HZ * torch.exp(_LOG_STEP * (mel - _LOG_START_MEL))
    return torch.where(mel < _LOG_START_MEL, mel * _LINEAR_STEP_HZ, log_part)


@cache
def mel_filters() -> Tensor:
    """Triangular filters of equal area, [MEL_BANDS, FFT_SAMPLES / 2 + 1], computed in float64 and cast to float32."""
    bins_hz = torch.linspace(0.0, SAMPLE_RATE_HZ / 2, FFT_SAMPLES // 2 + 1, dtype=torch.float64)
    mels = torch.linspace(hz_to_mel(LOWEST_HZ), hz_to_mel(HIGHEST_HZ), MEL_BANDS + 2, dtype=torch.float64)
    edges_hz = mel_to_hz(mels)
    widths_hz = edges_hz.diff()
    distance = edges_hz[:, None] - bins_hz[None, :]
    rising = -distance[:-2] / widths_hz[:-1, None]
    falling = distance[2:] / widths_hz[1:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0.0)
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return (triangles * area[:, None]).float()


def mel_frames(samples: int) -> int:
    """Number of frames that `log_mel` returns for `samples` samples."""
    return 1 + (samples + 2 * EDGE_SAMPLES - FFT_SAMPLES) // HOP_SAMPLES


def log_mel(samples: Tensor) -> Tensor:
    """Log-mel frames [B, T, MEL_BANDS] of mono samples [B, N] at 24 kHz, float32.

    The samples are neither normalized nor clipped. Raises `ReferenceAudioError` if N is too short for the padding.
    """
    if samples.shape[-1] <= EDGE_SAMPLES:
        raise ReferenceAudioError(
            f"{samples.shape[-1]} samples are too short for a speaker vector: more than {EDGE_SAMPLES} are needed",
            field="reference",
        )
    padded = functional.pad(samples.float()[:, None], (EDGE_SAMPLES, EDGE_SAMPLES), mode="reflect")[:, 0]
    window = torch.hann_window(FFT_SAMPLES, periodic=True, device=samples.device)
    spectrum = torch.stft(padded, FFT_SAMPLES, HOP_SAMPLES, window=window, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    mel = mel_filters().to(samples.device) @ (power + MAGNITUDE_FLOOR).sqrt()
    return mel.clamp(min=LOG_FLOOR).log().transpose(1, 2)
