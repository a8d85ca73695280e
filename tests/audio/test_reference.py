"""References of any rate, width, channel count, level and container are one recording; unusable ones are refused."""

from __future__ import annotations

import io
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


def stored(
    samples: npt.NDArray[np.float32], rate_hz: int, container: str, subtype: str | None, channels: int = 1
) -> bytes:
    at_rate = soxr.resample(samples, RATE_HZ, rate_hz, quality="VHQ") if rate_hz != RATE_HZ else samples
    buffer = io.BytesIO()
    wide = np.repeat(at_rate[:, None], channels, axis=1)
    soundfile.write(buffer, wide, rate_hz, format=container, subtype=subtype)
    return buffer.getvalue()


def likeness(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """Cosine of the two over their common length: 1 for the same wave in the same place."""
    count = min(len(one), len(other))
    a, b = one[:count].astype(np.float64), other[:count].astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_wav_of_any_kind_is_the_same_recording(rate_hz: int, channels: int, subtype: str) -> None:
    """CASES R59."""
    samples = load_reference(stored(CLIP, rate_hz, "WAV", subtype, channels), RATE_HZ)
    assert samples.dtype == np.float32
    assert samples.flags.c_contiguous
    assert abs(len(samples) - len(CLIP)) <= 1
    assert likeness(samples, CLIP) > 0.98


@pytest.mark.parametrize("rate_hz", [16_000, 24_000, 48_000])
@pytest.mark.parametrize(
    ("container", "subtype"),
    [("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("MP3", None), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("AIFF", "PCM_16")],
)
def test_other_containers_are_the_same_recording(container: str, subtype: str | None, rate_hz: int) -> None:
    samples = load_reference(stored(CLIP, rate_hz, container, subtype, 2), RATE_HZ)
    assert abs(len(samples) - len(CLIP)) <= 2
    assert likeness(samples, CLIP) > 0.98


def test_a_clip_that_is_not_resampled_fails_the_check() -> None:
    """Negative control: 48 kHz samples taken for 24 kHz ones, as in the report."""
    wrong = np.asarray(soxr.resample(CLIP, RATE_HZ, 48_000), dtype=np.float32)
    assert likeness(wrong, CLIP) < 0.9


def test_paths_bytes_and_samples_are_alike(tmp_path: Path) -> None:
    data = stored(CLIP, RATE_HZ, "WAV", "FLOAT")
    (tmp_path / "ref.wav").write_bytes(data)
    for source in (tmp_path / "ref.wav", str(tmp_path / "ref.wav"), data, CLIP):
        assert np.array_equal(load_reference(source, RATE_HZ), CLIP)


@pytest.mark.parametrize(("gain", "peak"), [(30.0, 1.0), (0.01, 0.25), (1.0, None), (0.5, None)])
def test_only_a_level_out_of_range_is_changed(gain: float, peak: float | None) -> None:
    loud = (CLIP * np.float32(gain)).astype(np.float32)
    samples = load_reference(stored(loud, RATE_HZ, "WAV", "FLOAT"), RATE_HZ)
    expected = float(np.abs(loud).max()) if peak is None else peak
    assert float(np.abs(samples).max()) == pytest.approx(expected, rel=1e-5)
    assert likeness(samples, CLIP) > 0.999


def test_channels_that_cancel_out_are_not_averaged() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([CLIP, -CLIP], axis=1), RATE_HZ, format="WAV", subtype="FLOAT")
    assert abs(likeness(load_reference(buffer.getvalue(), RATE_HZ), CLIP)) > 0.99


def test_one_silent_channel_is_no_harm() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack([0 * CLIP, CLIP], axis=1), RATE_HZ, format="WAV", subtype="FLOAT")
    assert likeness(load_reference(buffer.getvalue(), RATE_HZ), CLIP) > 0.99


def refused(source: str | Path | bytes | npt.NDArray[np.float32]) -> str:
    with pytest.raises(ReferenceAudioError) as caught:
        load_reference(source, RATE_HZ)
    assert caught.value.field == "clone"
    return str(caught.value)


def test_what_cannot_serve_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert "silent" in refused(np.zeros(2 * RATE_HZ, dtype=np.float32))
    assert "silent" in refused(CLIP * np.float32(1e-4))
    assert "0.50 s" in refused(CLIP[: RATE_HZ // 2])
    assert "longer than 60 s" in refused(np.tile(CLIP, 31))
    assert "no samples" in refused(stored(CLIP[:0], RATE_HZ, "WAV", "PCM_16"))
    assert "not finite" in refused(np.where(np.arange(len(CLIP)) == 9, np.nan, CLIP).astype(np.float32))
    assert "cannot be read" in refused(b"RIFF is no sound")
    assert "cannot be read" in refused(b"")
    assert "no reference audio file" in refused(tmp_path / "absent.wav")
    assert "no reference audio file" in refused(tmp_path)
    (tmp_path / "text.wav").write_text("hello")
    assert "text.wav" in refused(tmp_path / "text.wav")
    assert "2000 Hz" in refused(stored(CLIP, 2_000, "WAV", "PCM_16"))


def test_a_very_long_file_is_not_decoded_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading stops a second after the limit: a small file of hours costs no memory."""
    data = stored(np.zeros(300 * RATE_HZ, dtype=np.float32), RATE_HZ, "FLAC", "PCM_16")
    read, asked = soundfile.SoundFile.read, []

    def counted(self: soundfile.SoundFile, frames: int, **how: object) -> object:
        asked.append(frames)
        return read(self, frames, **how)

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    with pytest.raises(ReferenceAudioError, match="longer than 5 s"):
        load_reference(data, RATE_HZ, limits=ReferenceLimits(longest_s=5.0))
    assert sum(asked) == 6 * RATE_HZ
