"""The speaker encoder against a second implementation, and on one voice in files of different formats."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
import torch
from torch import Tensor
from torch.nn import functional

from legato.config.model import SpeakerEncoderConfig
from legato.errors import ConfigError, ReferenceAudioError
from legato.models.speaker import SpeakerEncoder, speaker_vector
from tests.models.codec.tiny_codec import randomize

WIDTH = 24


@pytest.fixture(scope="module")
def encoder() -> SpeakerEncoder:
    return randomize(SpeakerEncoder(SpeakerEncoderConfig(enc_dim=WIDTH, sample_rate_hz=24_000)), 0).requires_grad_(
        False
    )


def voice_like(rate_hz: int, seconds: float = 1.5, pitch_hz: float = 120.0) -> npt.NDArray[np.float64]:
    """A harmonic tone with vibrato and a formant: the same sound at any sample rate."""
    time = np.arange(int(rate_hz * seconds)) / rate_hz
    phase = 2 * np.pi * (pitch_hz * time + 8.0 * np.sin(2 * np.pi * 1.5 * time))
    harmonics = [np.exp(-(((k * pitch_hz - 700.0) / 500.0) ** 2)) + 0.3 / k for k in range(1, 25)]
    tone = sum(weight * np.sin((k + 1) * phase) for k, weight in enumerate(harmonics))
    return np.asarray(0.2 * tone / np.abs(tone).max() * (0.6 + 0.4 * np.sin(2 * np.pi * 3.0 * time)))


def test_equals_the_reference(encoder: SpeakerEncoder) -> None:
    weights = encoder.state_dict()

    def conv(x: Tensor, name: str, dilation: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        edge = dilation * (weight.shape[2] - 1) // 2
        x = functional.pad(x, (edge, edge), mode="reflect") if edge else x
        return functional.conv1d(x, weight, weights[f"{name}.bias"], dilation=dilation)

    mel = torch.randn(1, 40, 128, generator=torch.Generator().manual_seed(1))
    x = conv(mel.transpose(1, 2), "blocks.0.conv").relu()
    outputs = []
    for block, dilation in ((1, 2), (2, 3), (3, 4)):
        name = f"blocks.{block}"
        parts = list(conv(x, f"{name}.tdnn1.conv").relu().chunk(8, dim=1))
        for index in range(1, 8):
            given = parts[index] if index == 1 else parts[index] + parts[index - 1]
            parts[index] = conv(given, f"{name}.res2net_block.blocks.{index - 1}.conv", dilation).relu()
        y = conv(torch.cat(parts, dim=1), f"{name}.tdnn2.conv").relu()
        gate = conv(y.mean(2, keepdim=True), f"{name}.se_block.conv1").relu()
        x = x + y * conv(gate, f"{name}.se_block.conv2").sigmoid()
        outputs.append(x)
    h = conv(torch.cat(outputs, dim=1), "mfa.conv").relu()
    mean, deviation = h.mean(2, keepdim=True), h.var(2, correction=0, keepdim=True).clamp(min=1e-12).sqrt()
    context = torch.cat((h, mean.expand_as(h), deviation.expand_as(h)), dim=1)
    attention = conv(conv(context, "asp.tdnn.conv").relu().tanh(), "asp.conv").softmax(2)
    centre = (attention * h).sum(2, keepdim=True)
    spread = (attention * (h - centre) ** 2).sum(2, keepdim=True).clamp(min=1e-12).sqrt()
    expected = conv(torch.cat((centre, spread), dim=1), "fc")[0, :, 0]
    assert encoder(mel).shape == (1, WIDTH)
    assert (encoder(mel)[0] - expected).abs().max() < 1e-4 * expected.abs().max()


def through_file(samples: npt.NDArray[np.float64], rate_hz: int, kind: str) -> npt.NDArray[np.float32]:
    """Write `samples` to a stereo file of `kind`, read it back, mix it down and resample it to 24 kHz."""
    container, subtype = {"int16": ("WAV", "PCM_16"), "int24": ("WAV", "PCM_24"), "float32": ("WAV", "FLOAT")}.get(
        kind, (kind.upper(), None)
    )
    file = io.BytesIO()
    soundfile.write(file, np.stack((samples, samples), axis=1), rate_hz, format=container, subtype=subtype)
    file.seek(0)
    read, rate = soundfile.read(file, dtype="float32", always_2d=True)
    return np.asarray(soxr.resample(read.mean(axis=1), rate, 24_000), dtype=np.float32)


@pytest.mark.parametrize(
    ("rate_hz", "kind"),
    [(8_000, "int16"), (16_000, "int24"), (44_100, "float32"), (48_000, "int16"), (44_100, "flac"), (48_000, "mp3")],
)
def test_vector_does_not_depend_on_the_file_format(encoder: SpeakerEncoder, rate_hz: int, kind: str) -> None:
    """The vectors of one voice at other sample rates, bit depths and containers are similar (R59)."""
    original = speaker_vector(encoder, torch.from_numpy(voice_like(24_000).astype(np.float32)))
    other = speaker_vector(encoder, torch.from_numpy(through_file(voice_like(rate_hz), rate_hz, kind)))
    assert functional.cosine_similarity(original, other, dim=0) > 0.98


def test_control_wrong_sample_rate_and_noise(encoder: SpeakerEncoder) -> None:
    """8 kHz samples taken as 24 kHz, and noise, are less similar than the test above allows."""
    right = speaker_vector(encoder, torch.from_numpy(voice_like(24_000).astype(np.float32)))
    wrong = speaker_vector(encoder, torch.from_numpy(voice_like(8_000).astype(np.float32)))
    noise = speaker_vector(encoder, 0.2 * torch.randn(36_000, generator=torch.Generator().manual_seed(2)))
    assert functional.cosine_similarity(right, wrong, dim=0) < 0.98
    assert functional.cosine_similarity(right, noise, dim=0) < 0.98


def test_shortest_reference(encoder: SpeakerEncoder) -> None:
    assert speaker_vector(encoder, torch.zeros(1_280)).isfinite().all()
    with pytest.raises(ReferenceAudioError, match="4 mel frames are too short"):
        speaker_vector(encoder, torch.zeros(1_279))


def test_other_sample_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="16000 Hz is not supported"):
        SpeakerEncoder(SpeakerEncoderConfig(enc_dim=WIDTH, sample_rate_hz=16_000))
