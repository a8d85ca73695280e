"""AAC through a real `ffmpeg`: streamed, whole to the last sample, and no process left behind in any case."""

from __future__ import annotations

import shutil
import subprocess
import time

import numpy as np
import numpy.typing as npt
import pytest

from legato.audio import aac
from legato.audio.aac import DELAY_SAMPLES, AacEncoder, ffmpeg_path
from legato.audio.formats import AudioFormat
from legato.audio.writer import encode_whole
from legato.errors import GenerationError, UnsupportedError
from tests.audio.packets import RATE_HZ, cut, speechlike

FRAME_SAMPLES = 1024


def decoded(data: bytes, rate_hz: int = RATE_HZ) -> npt.NDArray[np.float32]:
    """What another decoder than the encoder's own process makes of it."""
    asked = ["-f", "aac", "-i", "pipe:0", "-f", "f32le", "-ar", str(rate_hz), "-ac", "1", "pipe:1"]
    run = subprocess.run([ffmpeg_path(), "-loglevel", "error", *asked], input=data, capture_output=True, check=True)
    assert not run.stderr
    return np.frombuffer(run.stdout, dtype="<f4")


@pytest.mark.parametrize("seconds", [0.3, 3.7, 10.01])
def test_a_streamed_encoding_loses_nothing(seconds: float) -> None:
    samples = speechlike(seconds)
    encoder = AacEncoder(RATE_HZ)
    data = b"".join([*(encoder.encode(packet) for packet in cut(samples)), encoder.finish().tail])
    assert data[:2] == b"\xff\xf1"
    heard = decoded(data)
    assert DELAY_SAMPLES <= len(heard) - len(samples) < DELAY_SAMPLES + 2 * FRAME_SAMPLES
    error = heard[DELAY_SAMPLES:][: len(samples)] - samples
    assert np.sqrt(np.mean(error**2)) < 0.2 * np.sqrt(np.mean(samples**2))
    padded = np.pad(heard, (0, 2 * DELAY_SAMPLES))
    scores = [float(padded[late:][: len(samples)] @ samples) for late in range(2 * DELAY_SAMPLES)]
    assert abs(int(np.argmax(scores)) - DELAY_SAMPLES) <= 1, "the delay is what it is said to be"


def test_bytes_come_while_the_sound_is_made() -> None:
    """What stays inside until the end is the codec's look-ahead, not the utterance."""
    packets = cut(speechlike(4.0), (1920,))
    first, second = AacEncoder(RATE_HZ), AacEncoder(RATE_HZ)
    whole = len(b"".join(map(first.encode, packets)) + first.finish().tail)
    early, until_s = b"".join(map(second.encode, packets)), time.monotonic() + 20
    while len(early) < 0.9 * whole and time.monotonic() < until_s:  # the process may be waiting for a core
        time.sleep(0.01)
        early += second._coded.take()
    assert len(early) >= 0.9 * whole
    assert len(early + second.finish().tail) == whole


def test_a_dropped_encoder_takes_its_process_with_it() -> None:
    encoder = AacEncoder(RATE_HZ)
    encoder.encode(cut(speechlike(1.0))[0])
    process = encoder._process
    assert process.poll() is None
    del encoder
    assert process.poll() is not None


def test_a_process_that_dies_is_an_error_that_repeats_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aac, "command", lambda *_: ["sh", "-c", "echo no such codec >&2; exit 1"])
    with pytest.raises(GenerationError, match="no such codec"):
        encode_whole(speechlike(20.0), AudioFormat.AAC, RATE_HZ)


def test_without_the_program_the_refusal_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert ffmpeg_path().startswith("/"), "the package brings one"
    monkeypatch.setattr(aac, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"ffmpeg.*legato-tts\[aac\]") as refused:
        AacEncoder(RATE_HZ)
    assert refused.value.field == "format"
