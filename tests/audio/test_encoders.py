"""Encoders: exact sizes in files, no lost samples, clipping, and packet order."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.audio.encoders import UNKNOWN_SIZE, make_encoder, mp3_frame_bytes
from legato.audio.formats import AudioFormat, format_from_path, parse_format
from legato.audio.writer import encode_samples, open_file
from legato.errors import NonFiniteError, StateError, UnsupportedError
from tests.audio.packets import RATE_HZ, speechlike, split_packets

LENGTHS_S = (0.3, 3.7, 10.01)
CODEC_DELAY_SAMPLES = round(0.06 * RATE_HZ)
MAGIC = {AudioFormat.WAV: b"RIFF", AudioFormat.FLAC: b"fLaC", AudioFormat.OPUS: b"OggS", AudioFormat.MP3: b"\xff\xf3"}
IN_FILES = tuple(MAGIC)
MP3_FRAME_SAMPLES = 576


def lag_of(decoded: npt.NDArray[np.float32], samples: npt.NDArray[np.float32]) -> int:
    """Delay of `decoded` in samples, by correlation with a section of `samples`."""
    max_lag = 2400
    section = samples[max_lag : min(len(samples) - max_lag, max_lag + 4800)]
    correlation = np.correlate(np.pad(decoded, (0, max_lag))[: 2 * max_lag + len(section)], section, "valid")
    return int(np.argmax(correlation)) - max_lag


def streamed(kind: AudioFormat, samples: npt.NDArray[np.float32], sizes: tuple[int, ...] = (1920, 3840)) -> list[bytes]:
    """Encode as for a socket: patches are not applied."""
    encoder = make_encoder(kind, RATE_HZ, patchable=False)
    return [*(encoder.encode(packet) for packet in split_packets(samples, sizes)), encoder.finish().data]


def written(path: Path, samples: npt.NDArray[np.float32]) -> bytes:
    with open_file(path, RATE_HZ) as writer:
        for packet in split_packets(samples):
            writer.write(packet)
    return path.read_bytes()


@pytest.mark.parametrize("seconds", LENGTHS_S)
@pytest.mark.parametrize("kind", IN_FILES)
def test_finished_file_has_the_exact_length(kind: AudioFormat, seconds: float, tmp_path: Path) -> None:
    """CASES R43, R45, R48, R49: exact length, sample rate and format."""
    samples = speechlike(seconds)
    data = written(tmp_path / f"out.{kind.value}", samples)
    assert data.startswith(MAGIC[kind])
    decoded, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32")
    assert rate_hz == RATE_HZ
    assert len(decoded) == len(samples)
    error = decoded - samples
    limit = 1e-4 if kind in (AudioFormat.WAV, AudioFormat.FLAC) else 0.25
    assert np.sqrt(np.mean(error**2)) < limit * np.sqrt(np.mean(samples**2))


def test_finished_wav_is_exact_for_the_wave_module(tmp_path: Path) -> None:
    samples = speechlike(1.0)
    written(tmp_path / "out.wav", samples)
    with wave.open(str(tmp_path / "out.wav")) as reader:
        assert (reader.getnframes(), reader.getframerate()) == (len(samples), RATE_HZ)
        assert (reader.getnchannels(), reader.getsampwidth()) == (1, 2)
        assert reader.readframes(len(samples)) == b"".join(
            packet.int16().tobytes() for packet in split_packets(samples)
        )
    assert (tmp_path / "out.wav").stat().st_size == 44 + 2 * len(samples)


def test_streamed_wav_has_one_header_with_unknown_size() -> None:
    samples = speechlike(0.5)
    body = b"".join(streamed(AudioFormat.WAV, samples))
    assert struct.unpack("<I", body[4:8]) == struct.unpack("<I", body[40:44]) == (UNKNOWN_SIZE,)
    assert body.count(b"RIFF") == 1
    assert body[44:] == b"".join(streamed(AudioFormat.PCM, samples))


@pytest.mark.parametrize("seconds", LENGTHS_S)
@pytest.mark.parametrize("kind", [AudioFormat.MP3, AudioFormat.OPUS])
def test_streamed_encoding_is_complete(kind: AudioFormat, seconds: float) -> None:
    samples = speechlike(seconds)
    decoded, _ = soundfile.read(io.BytesIO(b"".join(streamed(kind, samples))), dtype="float32")
    assert 0 <= len(decoded) - len(samples) <= CODEC_DELAY_SAMPLES + MP3_FRAME_SAMPLES
    assert abs(lag_of(decoded, samples)) <= CODEC_DELAY_SAMPLES


def test_control_info_frame_of_a_streamed_mp3_adds_delay() -> None:
    """Negative control: the unpatched info frame is decoded as an extra frame of delay."""
    encoder = make_encoder(AudioFormat.MP3, RATE_HZ, patchable=True)
    samples = speechlike(3.7)
    body = b"".join([*(encoder.encode(packet) for packet in split_packets(samples)), encoder.finish().data])
    info_frame = mp3_frame_bytes(body)
    assert body[info_frame:] == b"".join(streamed(AudioFormat.MP3, samples))
    decoded, _ = soundfile.read(io.BytesIO(body), dtype="float32")
    assert lag_of(decoded, samples) > CODEC_DELAY_SAMPLES


def test_control_without_finish_the_end_is_missing() -> None:
    """Negative control of R45: without `finish`, the end of an Opus file is missing."""
    samples = speechlike(3.7)
    unfinished = b"".join(streamed(AudioFormat.OPUS, samples)[:-1])
    decoded, _ = soundfile.read(io.BytesIO(unfinished))
    assert len(decoded) < len(samples) - CODEC_DELAY_SAMPLES


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5).map(tuple),
    kind=st.sampled_from([AudioFormat.PCM, AudioFormat.WAV, AudioFormat.FLAC]),
)
def test_output_is_independent_of_packet_sizes(sizes: tuple[int, ...], kind: AudioFormat) -> None:
    """CASES R46. Every PCM output is a whole number of samples."""
    samples = speechlike(0.4)
    parts = streamed(kind, samples, sizes)
    assert b"".join(parts) == b"".join(streamed(kind, samples, (len(samples),)))
    if kind is AudioFormat.PCM:
        assert all(len(part) % 2 == 0 for part in parts)


def test_loud_samples_are_clipped_not_wrapped() -> None:
    """CASES R52."""
    loud = np.array([1.0, 1.2, -1.3, -1.0, 0.0], dtype=np.float32)
    pcm = np.frombuffer(b"".join(streamed(AudioFormat.PCM, loud)), dtype="<i2")
    assert pcm.tolist() == [32767, 32767, -32768, -32768, 0]
    buzz = 4 * speechlike(0.5)
    for kind in IN_FILES:
        decoded, _ = soundfile.read(io.BytesIO(encode_samples(buzz, kind, RATE_HZ)))
        assert decoded[buzz > 1.1].min() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", list(AudioFormat))
def test_non_finite_samples_are_an_error(kind: AudioFormat, bad: float) -> None:
    with pytest.raises(NonFiniteError):
        encode_samples(np.array([0.0, bad], dtype=np.float32), kind, RATE_HZ)


@pytest.mark.parametrize("kind", list(AudioFormat))
def test_invalid_packet_sequences_are_errors(kind: AudioFormat) -> None:
    first, second, *_ = split_packets(speechlike(0.5))
    encoder = make_encoder(kind, RATE_HZ, patchable=True)
    with pytest.raises(StateError, match="starts at 1920"):
        encoder.encode(second)
    encoder.encode(first)
    with pytest.raises(StateError, match="starts at 0"):
        encoder.encode(first)
    encoder.finish()
    with pytest.raises(StateError):
        encoder.encode(second)
    with pytest.raises(StateError):
        encoder.finish()
    with pytest.raises(StateError, match="12000"):
        make_encoder(kind, 12_000, patchable=True).encode(first)


@pytest.mark.parametrize("kind", [AudioFormat.PCM, AudioFormat.WAV])
def test_empty_stream_can_be_finished(kind: AudioFormat) -> None:
    trailer = make_encoder(kind, RATE_HZ, patchable=True).finish()
    assert len(trailer.data) == (44 if kind is AudioFormat.WAV else 0)


def test_file_is_finished_after_an_error(tmp_path: Path) -> None:
    samples = speechlike(1.0)

    def interrupted() -> None:
        with open_file(tmp_path / "out.wav", RATE_HZ) as writer:
            writer.write(split_packets(samples)[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert soundfile.info(str(tmp_path / "out.wav")).frames == 1920


def test_formats_by_name_and_by_extension() -> None:
    assert parse_format("MP3") is AudioFormat.MP3
    assert format_from_path(Path("a.b.OGG")) is AudioFormat.OPUS
    with pytest.raises(UnsupportedError, match="aac"):
        parse_format("midi")
    with pytest.raises(UnsupportedError, match=r"\.wav"):
        format_from_path(Path("speech"))


@pytest.mark.parametrize("samples", [0, 1, 1920, 24_001])
def test_both_sizes_of_a_finished_wav_are_exact(samples: int) -> None:
    """The RIFF size counts everything after itself; the `wave` module does not check it."""
    data = encode_samples(np.zeros(samples, np.float32), AudioFormat.WAV, RATE_HZ)
    riff_bytes, data_bytes = (struct.unpack("<I", data[index : index + 4])[0] for index in (4, 40))
    assert len(data) == 44 + 2 * samples
    assert (riff_bytes, data_bytes) == (len(data) - 8, len(data) - 44)


@pytest.mark.parametrize("gain", [3.0, 5.0, 30.0])
@pytest.mark.parametrize("kind", list(AudioFormat))
def test_every_format_encodes_clipped_samples(kind: AudioFormat, gain: float) -> None:
    """A lossy encoder accepts samples above full scale, and decoders return them, even louder."""
    loud = gain * speechlike(0.7)
    assert np.abs(loud).max() > 1.0
    data, clipped = (encode_samples(each, kind, RATE_HZ) for each in (loud, np.clip(loud, -1.0, 1.0)))
    if kind in IN_FILES:
        samples, expected = (soundfile.read(io.BytesIO(each), dtype="float32")[0] for each in (data, clipped))
        assert np.array_equal(samples, expected)
        quiet, _ = soundfile.read(io.BytesIO(encode_samples(0.2 * loud / gain, kind, RATE_HZ)), dtype="float32")
        assert not np.array_equal(samples, quiet)
    else:
        assert data == clipped
