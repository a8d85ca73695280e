"""Loading references of any rate, width, channel count, level and container; unusable recordings are rejected."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr

from legato.audio.reference import ReferenceLimits, load_reference
from legato.errors import ReferenceAudioError
from tests.audio.packets import RATE_HZ, speechlike

CLIP = speechlike(2.0)


def encoded(
    samples: npt.NDArray[np.float32], rate_hz: int, container: str, subtype: str | None, channels: int = 1
) -> bytes:
    at_rate = soxr.resample(samples, RATE_HZ, rate_hz, quality="VHQ") if rate_hz != RATE_HZ else samples
    buffer = io.BytesIO()
    wide = np.repeat(at_rate[:, None], channels, axis=1)
    soundfile.write(buffer, wide, rate_hz, format=container, subtype=subtype)
    return buffer.getvalue()


def similarity(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Cosine similarity over the common length."""
    count = min(len(one), len(other))
    a, b = one[:count].astype(np.float64), other[:count].astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_wav_of_any_rate_width_and_channels(rate_hz: int, channels: int, subtype: str) -> None:
    """CASES R59."""
    samples = load_reference(encoded(CLIP, rate_hz, "WAV", subtype, channels), RATE_HZ)
    assert samples.dtype == np.float32
    assert samples.flags.c_contiguous
    assert abs(len(samples) - len(CLIP)) <= 1
    assert similarity(samples, CLIP) > 0.98


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize(
    ("container", "subtype"),
    [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("MP3", None), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("AIFF", "PCM_16")],
)
def test_other_containers(container: str, subtype: str | None, rate_hz: int) -> None:
    samples = load_reference(encoded(CLIP, rate_hz, container, subtype, 2), RATE_HZ)
    assert abs(len(samples) - len(CLIP)) <= 2
    assert similarity(samples, CLIP) > 0.98


def test_control_wrong_sample_rate_is_detected() -> None:
    """Negative control: 48 kHz samples interpreted as 24 kHz, as in the report."""
    wrong = np.asarray(soxr.resample(CLIP, RATE_HZ, 48_000), dtype=np.float32)
    assert similarity(wrong, CLIP) < 0.9


def test_paths_bytes_and_samples_are_equivalent(tmp_path: Path) -> None:
    data = encoded(CLIP, RATE_HZ, "WAV", "FLOAT")
    (tmp_path / "ref.wav").write_bytes(data)
    for source in (tmp_path / "ref.wav", str(tmp_path / "ref.wav"), data, CLIP):
        assert np.array_equal(load_reference(source, RATE_HZ), CLIP)


@pytest.mark.parametrize(("gain", "peak"), [(30.0, 1.0), (0.01, 0.25), (1.0, None), (0.5, None)])
def test_only_levels_out_of_range_are_adjusted(gain: float, peak: float | None) -> None:
    loud = (CLIP * np.float32(gain)).astype(np.float32)
    samples = load_reference(encoded(loud, RATE_HZ, "WAV", "FLOAT"), RATE_HZ)
    expected = float(np.abs(loud).max()) if peak is None else peak
    assert float(np.abs(samples).max()) == pytest.approx(expected, rel=1e-5)
    assert similarity(samples, CLIP) > 0.999


def test_channels_that_cancel_out_are_not_averaged() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([CLIP, -CLIP], axis=1), RATE_HZ, format="WAV", subtype="FLOAT")
    assert abs(similarity(load_reference(buffer.getvalue(), RATE_HZ), CLIP)) > 0.99


def test_one_silent_channel() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([0 * CLIP, CLIP], axis=1), RATE_HZ, format="WAV", subtype="FLOAT")
    assert similarity(load_reference(buffer.getvalue(), RATE_HZ), CLIP) > 0.99


def error_message(source: str | Path | bytes | npt.NDArray[np.float32]) -> str:
    with pytest.raises(ReferenceAudioError) as caught:
        load_reference(source, RATE_HZ)
    assert caught.value.field == "clone"
    return str(caught.value)


def test_unusable_recordings_are_rejected_with_the_reason(tmp_path: Path) -> None:
    assert "silent" in error_message(np.zeros(2 * RATE_HZ, dtype=np.float32))
    assert "silent" in error_message(CLIP * np.float32(1e-4))
    assert "0.50 s" in error_message(CLIP[: RATE_HZ // 2])
    assert "longer than 60 s" in error_message(np.tile(CLIP, 31))
    assert "no samples" in error_message(encoded(CLIP[:0], RATE_HZ, "WAV", "PCM_16"))
    assert "not finite" in error_message(np.where(np.arange(len(CLIP)) == 9, np.nan, CLIP).astype(np.float32))
    assert "cannot be decoded" in error_message(b"RIFF is no sound")
    assert "cannot be decoded" in error_message(b"")
    assert "no reference audio file" in error_message(tmp_path / "absent.wav")
    assert "no reference audio file" in error_message(tmp_path)
    (tmp_path / "text.wav").write_text("hello")
    assert "text.wav" in error_message(tmp_path / "text.wav")
    assert "2000 Hz" in error_message(encoded(CLIP, 2_000, "WAV", "PCM_16"))


def test_long_file_is_not_decoded_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding stops one second after the limit, so a small file with hours of audio costs no memory."""
    data = encoded(np.zeros(300 * RATE_HZ, dtype=np.float32), RATE_HZ, "FLAC", "PCM_16")
    read = soundfile.SoundFile.read
    requested: list[int] = []

    def counted(self: soundfile.SoundFile, frames: int, **how: object) -> object:
        requested.append(frames)
        return read(self, frames, **how)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    with pytest.raises(ReferenceAudioError, match="longer than 5 s"):
        load_reference(data, RATE_HZ, limits=ReferenceLimits(max_s=5.0))
    assert sum(requested) == 6 * RATE_HZ


def flac_of_silence(seconds: float, rate_hz: int, channels: int) -> bytes:
    """A FLAC file that is small for any length."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate_hz, channels, format="FLAC", subtype="PCM_16") as file:
        for _ in range(round(seconds * 10)):
            file.write(np.zeros((rate_hz // 10, channels), dtype=np.int16))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("rate_hz", "channels", "message"),
    [(655_350, 1, "655350 Hz"), (192_001, 1, "192001 Hz"), (655_350, 8, "655350 Hz"), (48_000, 9, "9 channels")],
)
def test_rate_and_channels_are_checked_before_decoding(
    monkeypatch: pytest.MonkeyPatch, rate_hz: int, channels: int, message: str
) -> None:
    wav = io.BytesIO()
    soundfile.write(wav, np.zeros((2 * rate_hz, channels), dtype=np.int16), rate_hz, format="WAV", subtype="PCM_16")
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_args, **_how: pytest.fail("the file was decoded"))
    assert message in error_message(wav.getvalue())


@pytest.mark.parametrize("channels", [1, 2, 8])
def test_decoding_memory_is_bounded(channels: int) -> None:
    """Memory is limited to one channel of `max_s`, whatever a small file expands to."""
    data = flac_of_silence(12.0, 192_000, channels)
    assert len(data) < 400_000
    mono_bytes = 4 * 11 * 192_000
    tracemalloc.start()
    try:
        with pytest.raises(ReferenceAudioError):
            load_reference(data, RATE_HZ, limits=ReferenceLimits(max_s=10.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * mono_bytes
