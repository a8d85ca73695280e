"""Files whose headers state no length, or that hold several recordings, are read to their end."""

from __future__ import annotations

import io
import struct
import subprocess

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.audio.containers import MAX_PARTS, split_recordings
from legato.audio.mpeg import parse_frame, split_mp3
from legato.audio.reference import load_reference
from legato.errors import ReferenceAudioError

RATE_HZ = 24_000
Samples = npt.NDArray[np.float32]


def tone(pitch_hz: float, seconds: float = 2.0) -> Samples:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    return (0.3 * np.sin(2 * np.pi * pitch_hz * t)).astype(np.float32)


def encoded(samples: Samples, container: str, subtype: str | None = None, rate_hz: int = RATE_HZ) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format=container, subtype=subtype)
    return file.getvalue()


LOW, HIGH = tone(220), tone(660)
FORMATS = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("MP3", "MPEG_LAYER_III"), ("OGG", "VORBIS"), ("OGG", "OPUS")]


def pitch_hz(samples: Samples) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * RATE_HZ / len(samples))


def without_info(mp3: bytes) -> bytes:
    frame = parse_frame(mp3)
    assert frame is not None
    assert frame.info
    return mp3[frame.end :]


def with_wav_sizes(riff: int, data: int, extra: bytes = b"") -> bytes:
    wav = bytearray(encoded(LOW, "WAV", "PCM_16"))
    wav[4:8], wav[40:44] = struct.pack("<I", riff), struct.pack("<I", data)
    return bytes(wav) + extra


def with_flac_total(total: int) -> bytes:
    flac = encoded(LOW, "FLAC", "PCM_16")
    info = int.from_bytes(flac[8:42], "big")
    info = info & ~(((1 << 36) - 1) << 128) | total << 128
    return flac[:8] + info.to_bytes(34, "big") + flac[42:]


@pytest.mark.parametrize(
    "sizes", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (36, 0), (0, 0xFFFFFFFF), (0x7FFFFFFF, 0x7FFFFFFF), (0xFFFFFFFF, 0)]
)
def test_wav_of_unknown_size_is_read_to_its_end(sizes: tuple[int, int]) -> None:
    assert len(load_reference(with_wav_sizes(*sizes), RATE_HZ)) == len(LOW)


def test_empty_wav_stays_empty() -> None:
    wav = encoded(np.zeros(0, np.float32), "WAV", "PCM_16")
    listed = wav + struct.pack("<4sI", b"LIST", 4) + b"INFO"
    for data in (wav, listed):
        with pytest.raises(ReferenceAudioError):
            load_reference(data, RATE_HZ)


def test_chunks_after_the_samples_are_no_audio() -> None:
    wav = encoded(LOW, "WAV", "PCM_16") + struct.pack("<4sI", b"LIST", 4) + b"INFO"
    assert len(load_reference(wav, RATE_HZ)) == len(LOW)


def test_other_files_of_unknown_length() -> None:
    assert len(load_reference(with_flac_total(0), RATE_HZ)) == len(LOW)
    au = encoded(LOW, "AU", "PCM_16")
    for size in (0, 0xFFFFFFFF):
        unknown = au[:8] + struct.pack(">I", size) + au[12:]
        assert len(load_reference(unknown, RATE_HZ)) == len(LOW)
    mp3 = without_info(encoded(LOW, "MP3", "MPEG_LAYER_III"))
    assert 0 <= len(load_reference(mp3, RATE_HZ)) - len(LOW) < 4 * 576  # with the delay of the encoder


@pytest.mark.parametrize(("container", "subtype"), FORMATS)
def test_joined_recordings_are_read_to_the_end(container: str, subtype: str) -> None:
    joined = encoded(LOW, container, subtype) + encoded(HIGH, container, subtype)
    samples = load_reference(joined, RATE_HZ)
    assert abs(len(samples) - 2 * len(LOW)) <= 2
    assert pitch_hz(samples[: len(LOW)]) == pytest.approx(220, abs=2)
    assert pitch_hz(samples[-len(HIGH) :]) == pytest.approx(660, abs=2)


@pytest.mark.parametrize("between", [b"ID3\x03\0\0\0\0\0\x0a" + bytes(10), b"TAG" + bytes(125), b"", bytes(100)])
@pytest.mark.parametrize("info", [True, False])
def test_joined_mp3_with_tags_between(between: bytes, info: bool) -> None:
    one, other = encoded(LOW, "MP3", "MPEG_LAYER_III"), encoded(HIGH, "MP3", "MPEG_LAYER_III")
    joined = one + between + other if info else without_info(one) + between + without_info(other)
    samples = load_reference(joined, RATE_HZ)
    assert 0 <= len(samples) - 2 * len(LOW) < 8 * 576
    assert pitch_hz(samples[-len(HIGH) // 2 :]) == pytest.approx(660, abs=3)


def test_mp3_of_ffmpeg_in_stereo_at_other_rates() -> None:
    for rate_hz in (16_000, 44_100, 48_000):
        command = [
            imageio_ffmpeg.get_ffmpeg_exe(),
            "-v",
            "error",
            "-f",
            "wav",
            "-i",
            "-",
            "-ac",
            "2",
            "-ar",
            str(rate_hz),
        ]
        command += ["-write_xing", "0", "-id3v2_version", "0", "-f", "mp3", "-"]
        mp3 = subprocess.run(command, input=encoded(LOW, "WAV"), capture_output=True, check=True, timeout=60).stdout
        assert len(split_recordings(mp3 + mp3)) == 1  # without tags and info frames, nothing tells them apart
        assert len(load_reference(mp3, RATE_HZ)) == pytest.approx(len(LOW), abs=3000)
        assert len(load_reference(mp3 + mp3, RATE_HZ)) == pytest.approx(2 * len(LOW), abs=6000)


def test_joined_recordings_of_other_rates_are_refused() -> None:
    joined = encoded(LOW, "MP3", "MPEG_LAYER_III") + encoded(HIGH, "MP3", "MPEG_LAYER_III", rate_hz=16_000)
    with pytest.raises(ReferenceAudioError, match="different sample rates"):
        load_reference(joined, RATE_HZ)


def test_joined_recordings_count_together_against_the_limit() -> None:
    part = encoded(tone(220, 10.0), "FLAC", "PCM_16")
    with pytest.raises(ReferenceAudioError, match="longer than 60 s"):
        load_reference(part * 7, RATE_HZ)


@pytest.mark.parametrize(("container", "subtype"), FORMATS)
def test_plain_files_are_unchanged(container: str, subtype: str) -> None:
    data = encoded(LOW, container, subtype)
    assert split_recordings(data) == [data]


@pytest.mark.parametrize(
    "level",
    [
        np.full(48_000, 0.3),
        np.linspace(-0.5, 0.5, 48_000),
        0.3 * np.sin(2 * np.pi * 5 * np.arange(48_000) / RATE_HZ),
        0.3 + 0.0002 * np.random.default_rng(1).standard_normal(48_000),
    ],
    ids=["constant", "ramp", "5 Hz", "constant with faint noise"],
)
def test_levels_without_sound_are_silent(level: npt.NDArray[np.float64]) -> None:
    with pytest.raises(ReferenceAudioError, match="is silent"):
        load_reference(level.astype(np.float32), RATE_HZ)


def test_a_voice_on_a_constant_level_is_no_silence() -> None:
    samples = load_reference((0.3 + 0.01 * LOW).astype(np.float32), RATE_HZ)
    assert len(samples) == len(LOW)


def test_number_of_parts_is_bounded() -> None:
    header = encoded(np.zeros(0, np.float32), "WAV", "PCM_16")
    for data in (header * 5000, b"fLaC\0\0\0\x22" * 5000, b"OggS\0\x02" + bytes(5000), (b"ID3" + bytes(7)) * 5000):
        assert 1 <= len(split_recordings(data)) <= MAX_PARTS + 1


@given(
    data=st.binary(max_size=400),
    magic=st.sampled_from([b"RIFF\0\0\0\0WAVE", b"fLaC", b"OggS", b".snd", b"ID3", b"\xff\xfb"]),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_split_without_an_error(magic: bytes, data: bytes) -> None:
    parts = split_recordings(magic + data)
    assert parts
    assert all(parts)


@given(cut=st.integers(0, 4000), noise=st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_damaged_mp3_is_split_without_an_error(cut: int, noise: bytes) -> None:
    mp3 = encoded(LOW, "MP3", "MPEG_LAYER_III")
    assert split_mp3(mp3[:cut] + noise + mp3[cut:])
