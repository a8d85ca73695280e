"""Downloads open in common readers, with their true length where the server can know it before it sends the header."""

from __future__ import annotations

import io
import subprocess
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from legato.api import Legato, load
from legato.audio.aac import ffmpeg_path
from legato.config.server import ServerConfig
from legato.engine.handle import StreamHandle
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running

RATE_HZ = 24_000
TEXTS = ["Hi.", "Some words to speak.", "One sentence. Another one, with more words in it! A third? " * 2]
WAYS: list[dict[str, object]] = [{}, {"stream": False}, {"stream_format": "audio"}]
DELAY = round(0.09 * RATE_HZ)
"""Samples that a lossy codec may add."""
Reader = Callable[[Path], int]


def soundfile_samples(path: Path) -> int:
    samples, rate_hz = soundfile.read(path)
    assert rate_hz == RATE_HZ
    assert soundfile.info(path).frames == len(samples)
    return len(samples)


def wave_samples(path: Path) -> int:
    with wave.open(str(path)) as file:
        return len(file.readframes(file.getnframes())) // 2


def ffmpeg_samples(path: Path, *, piped: bool = False) -> int:
    command = [ffmpeg_path(), "-loglevel", "error", "-i", "-" if piped else str(path)]
    command += ["-ar", str(RATE_HZ), "-f", "s16le", "-"]
    data = path.read_bytes() if piped else None
    return len(subprocess.run(command, input=data, capture_output=True, check=True, timeout=60).stdout) // 2


def piped_samples(path: Path) -> int:
    return ffmpeg_samples(path, piped=True)


READERS: dict[str, list[Reader]] = {
    "wav": [soundfile_samples, wave_samples, ffmpeg_samples, piped_samples],
    "flac": [soundfile_samples, ffmpeg_samples, piped_samples],
    "mp3": [soundfile_samples, ffmpeg_samples, piped_samples],
    "opus": [soundfile_samples, ffmpeg_samples, piped_samples],
    "aac": [ffmpeg_samples, piped_samples],
}


@pytest.fixture(scope="module")
def embedded() -> Iterator[Legato]:
    """A model whose speech ends with its text, so that the length is known early."""
    with load("embedded") as tts:
        yield tts


@pytest.fixture(scope="module")
def known(embedded: Legato) -> Iterator[Running]:
    with running(embedded, ServerConfig(warm_up=False)) as server:
        yield server


def speak(server: Running, text: str, **fields: object) -> httpx.Response:
    body = {"input": text, "seed": 3, **fields}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer


def pcm_samples(server: Running, text: str, **fields: object) -> int:
    return len(speak(server, text, response_format="pcm", **fields).content) // 2


def check_readers(answer: httpx.Response, kind: str, samples: int, folder: Path) -> None:
    path = folder / f"speech.{kind if kind != 'opus' else 'ogg'}"
    path.write_bytes(answer.content)
    allowed = 0 if kind in ("wav", "flac") else DELAY
    for reader in READERS[kind]:
        assert 0 <= reader(path) - samples <= allowed, reader.__name__


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", list(READERS))
def test_each_format_opens_in_each_reader(known: Running, kind: str, way: dict[str, object], tmp_path: Path) -> None:
    for text in TEXTS if "stream_format" not in way else TEXTS[:2]:
        answer = speak(known, text, response_format=kind, **way)
        check_readers(answer, kind, pcm_samples(known, text), tmp_path)


@pytest.mark.parametrize("kind", list(READERS))
def test_default_downloads_of_models_with_unknown_length(speaker: Running, kind: str, tmp_path: Path) -> None:
    fields: dict[str, object] = {"voice": "ryan", "max_new_tokens": 14}
    answer = speak(speaker, TEXTS[1], response_format=kind, **fields)
    check_readers(answer, kind, pcm_samples(speaker, TEXTS[1], **fields), tmp_path)


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("kind", ["wav", "flac"])
@pytest.mark.parametrize("text", TEXTS[:2])
def test_known_length_is_in_the_header_from_the_start(known: Running, kind: str, rate_hz: int, text: str) -> None:
    answer = speak(known, text, response_format=kind, stream_format="audio", sample_rate=rate_hz, packet_frames=[1])
    whole = speak(known, text, response_format=kind, stream=False, sample_rate=rate_hz)
    info = soundfile.info(io.BytesIO(answer.content))
    assert info.frames == soundfile.info(io.BytesIO(whole.content)).frames
    if kind == "wav":
        assert answer.headers["content-length"] == whole.headers["content-length"] == str(len(answer.content))
        assert answer.content[:44] == whole.content[:44]
    else:
        assert "content-length" not in answer.headers
        assert answer.content[22:26] == whole.content[22:26]


@pytest.mark.parametrize("frames", [1, 4, 1000])
@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_known_length_with_a_limit_and_a_tempo(known: Running, frames: int, speed: float, tmp_path: Path) -> None:
    fields: dict[str, object] = {"max_new_tokens": frames, "speed": speed}
    for kind in ("wav", "flac"):
        answer = speak(known, TEXTS[1], response_format=kind, stream_format="audio", **fields)
        check_readers(answer, kind, pcm_samples(known, TEXTS[1], **fields), tmp_path)


def test_speech_that_ends_early_is_filled_with_silence(known: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header is sent before the watchdog ends a stream; the file has the length that it states."""
    plain = np.frombuffer(speak(known, TEXTS[1], response_format="pcm").content, "<i2")
    frames = len(plain) // 1920 + 5
    monkeypatch.setattr(StreamHandle, "known_frames", property(lambda _: frames))
    answer = speak(known, TEXTS[1], response_format="wav")
    samples = np.frombuffer(answer.content[44:], "<i2")
    assert len(samples) == frames * 1920
    assert np.array_equal(samples[: len(plain)], plain)
    assert not samples[len(plain) :].any()


def test_default_download_of_a_long_text_has_its_length(known: Running, tmp_path: Path) -> None:
    """The server reads the text to its end before it sends the header."""
    text = "One sentence. Another one, with more words in it! A third? " * 20
    for kind in ("wav", "flac"):
        check_readers(speak(known, text, response_format=kind), kind, pcm_samples(known, text), tmp_path)


def test_held_flac_is_sent_when_it_takes_too_long(tiny_checkpoint: TinyCheckpoint) -> None:
    with load(tiny_checkpoint("tiny-custom-voice")) as tts:
        for hold_s, known_length in ((60.0, True), (1e-6, False)):
            with running(tts, ServerConfig(warm_up=False, hold_s=hold_s)) as server:
                answer = speak(server, "Some words.", response_format="flac", max_new_tokens=60, packet_frames=[1])
            assert ("content-length" in answer.headers) == known_length
            info = int.from_bytes(answer.content[8:42], "big") >> 128 & (1 << 36) - 1
            assert info == (60 * 1920 if known_length else 0)
