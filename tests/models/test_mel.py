"""The mel spectrogram against direct formulas: Slaney's scale, equal-area filters, and an STFT in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from legato.errors import ReferenceAudioError
from legato.models.mel import EDGE_SAMPLES, MEL_BANDS, hz_to_mel, log_mel, mel_filters, mel_frames, mel_to_hz


def test_mel_scale_is_linear_then_logarithmic() -> None:
    assert hz_to_mel(200.0 / 3.0) == pytest.approx(1.0)
    assert hz_to_mel(1000.0) == pytest.approx(15.0)
    assert hz_to_mel(6400.0) == pytest.approx(42.0)
    points = [0.0, 60.0, 999.0, 1000.0, 1001.0, 12000.0]
    mels = torch.tensor([hz_to_mel(hz) for hz in points], dtype=torch.float64)
    assert mel_to_hz(mels).tolist() == pytest.approx(points, abs=1e-9)


def test_filters_are_triangles_of_equal_area() -> None:
    """Slaney's normalization: the peak is 2 / (width in Hz), and each filter ends at the peak of the next."""
    filters = mel_filters()
    assert filters.shape == (MEL_BANDS, 513)
    edges = mel_to_hz(torch.linspace(0.0, hz_to_mel(12000.0), MEL_BANDS + 2, dtype=torch.float64)).tolist()
    bin_hz = 24000 / 1024
    for band in (0, 40, 90, 127):
        low, peak, high = edges[band : band + 3]
        expected = [
            max(0.0, min((hz - low) / (peak - low), (high - hz) / (high - peak))) for hz in np.arange(513) * bin_hz
        ]
        scaled = np.array(expected) * 2.0 / (high - low)
        assert np.allclose(filters[band].numpy(), scaled, atol=1e-8)


def test_log_mel_equals_numpy_stft() -> None:
    samples = 0.3 * torch.randn(3000, generator=torch.Generator().manual_seed(0))
    ours = log_mel(samples[None])[0].numpy()
    padded = np.pad(samples.numpy().astype(np.float64), EDGE_SAMPLES, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    count = 1 + (len(padded) - 1024) // 256
    frames = np.stack([padded[256 * index : 256 * index + 1024] * window for index in range(count)])
    magnitude = np.sqrt(np.abs(np.fft.rfft(frames, axis=1)) ** 2 + 1e-9)
    theirs = np.log(np.maximum(magnitude @ mel_filters().numpy().T.astype(np.float64), 1e-5))
    assert ours.shape == theirs.shape == (count, MEL_BANDS)
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("samples", [385, 1024, 24000, 24001])
def test_mel_frames_is_the_number_of_frames(samples: int) -> None:
    assert log_mel(torch.zeros(1, samples)).shape[1] == mel_frames(samples)


def test_tone_is_in_its_band_and_silence_is_at_the_floor() -> None:
    tone = torch.sin(2 * math.pi * 440.0 * torch.arange(12000) / 24000)
    band = int(log_mel(tone[None])[0].mean(0).argmax())
    edges = mel_to_hz(torch.linspace(0.0, hz_to_mel(12000.0), MEL_BANDS + 2, dtype=torch.float64)).tolist()
    assert edges[band] < 440.0 < edges[band + 2]
    silence = log_mel(torch.zeros(1, 4800))
    assert silence.isfinite().all()
    assert silence.max() < -9.0


def test_input_shorter_than_the_padding_is_refused() -> None:
    with pytest.raises(ReferenceAudioError, match="384 samples are too short"):
        log_mel(torch.zeros(1, EDGE_SAMPLES))
