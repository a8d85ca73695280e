"""AAC encoder with a real `ffmpeg`: streamed, complete, and no process left behind."""

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
from legato.audio.writer import encode_samples
from legato.errors import GenerationError, UnsupportedError
from tests.audio.packets import RATE_HZ, speechlike, split_packets

FRAME_SAMPLES = 1024
INSTALLED = shutil.which("ffmpeg")


@pytest.fixture(
    params=[
        pytest.param("installed", marks=pytest.mark.skipif(INSTALLED is None, reason="no ffmpeg on the PATH")),
        "packaged",
    ],
    autouse=True,
)
def _ffmpeg(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the system's ffmpeg and with the one from `imageio-ffmpeg`."""
    if request.param == "packaged":
        monkeypatch.setattr(shutil, "which", lambda _: None)


def decoded(data: bytes, rate_hz: int = RATE_HZ) -> npt.NDArray[np.float32]:
    """Decode ADTS with ffmpeg."""
    options = ["-f", "aac", "-i", "pipe:0", "-f", "f32le", "-ar", str(rate_hz), "-ac", "1", "pipe:1"]
    run = subprocess.run([ffmpeg_path(), "-loglevel", "error", *options], input=data, capture_output=True, check=True)
    assert not run.stderr
    return np.frombuffer(run.stdout, dtype="<f4")


@pytest.mark.parametrize("seconds", [0.3, 3.7, 10.01])
def test_streamed_encoding_is_complete(seconds: float) -> None:
    samples = speechlike(seconds)
    encoder = AacEncoder(RATE_HZ)
    data = b"".join([*(encoder.encode(packet) for packet in split_packets(samples)), encoder.finish().data])
    assert data[:2] == b"\xff\xf1"
    output = decoded(data)
    assert DELAY_SAMPLES <= len(output) - len(samples) < DELAY_SAMPLES + 2 * FRAME_SAMPLES
    error = output[DELAY_SAMPLES:][: len(samples)] - samples
    assert np.sqrt(np.mean(error**2)) < 0.2 * np.sqrt(np.mean(samples**2))
    padded = np.pad(output, (0, 2 * DELAY_SAMPLES))
    scores = [float(padded[delay:][: len(samples)] @ samples) for delay in range(2 * DELAY_SAMPLES)]
    assert abs(int(np.argmax(scores)) - DELAY_SAMPLES) <= 1, "the delay is DELAY_SAMPLES"


def test_bytes_are_available_while_streaming() -> None:
    """Only the codec's look-ahead is withheld until the end."""
    packets = split_packets(speechlike(4.0), (1920,))
    first, second = AacEncoder(RATE_HZ), AacEncoder(RATE_HZ)
    whole = len(b"".join(map(first.encode, packets)) + first.finish().data)
    early, deadline_s = b"".join(map(second.encode, packets)), time.monotonic() + 20
    while len(early) < 0.9 * whole and time.monotonic() < deadline_s:  # the process may be waiting for a core
        time.sleep(0.01)
        early += second._output.take()
    assert len(early) >= 0.9 * whole
    assert len(early + second.finish().data) == whole


def test_garbage_collected_encoder_kills_its_process() -> None:
    encoder = AacEncoder(RATE_HZ)
    encoder.encode(split_packets(speechlike(1.0))[0])
    process = encoder._process
    assert process.poll() is None
    del encoder
    assert process.poll() is not None


def test_failed_process_is_an_error_with_its_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aac, "command", lambda *_: ["sh", "-c", "echo no such codec >&2; exit 1"])
    with pytest.raises(GenerationError, match="no such codec"):
        encode_samples(speechlike(20.0), AudioFormat.AAC, RATE_HZ)


def test_error_without_ffmpeg_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert ffmpeg_path().startswith("/"), "the package includes one"
    monkeypatch.setattr(aac, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"ffmpeg.*\.\[aac\]") as refused:
        AacEncoder(RATE_HZ)
    assert refused.value.field == "format"
