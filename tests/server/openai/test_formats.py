"""Audio over HTTP equals the engine's output in every format, sample rate and streaming mode; stock clients work."""

from __future__ import annotations

import io
import json
import subprocess
import wave
from collections.abc import Iterator

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
import soundfile
import soxr

from legato.audio.aac import ffmpeg_path
from tests.server.running import Running

TEXT = "Some words to speak."
FRAMES = 7
RATE_HZ = 24_000
OPTIONS = {"seed": 3, "max_new_tokens": FRAMES, "voice": "ryan"}
DELAY_S = 0.09
"""Bound on codec padding: MP3 has 1,105 samples of delay and up to a frame of 576 at the end, AAC 1,024 and 1,024."""
LSB = 1
"""Tolerance: with other batch sizes, samples agree within one 16-bit step."""

Samples = npt.NDArray[np.int16]


@pytest.fixture(scope="module")
def expected(speaker: Running) -> Samples:
    speech = speaker.tts.say(TEXT, voice="ryan", seed=3, max_frames=FRAMES)
    return np.clip(np.rint(speech.samples * 32768), -32768, 32767).astype(np.int16)


@pytest.fixture(scope="module")
def web(speaker: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=speaker.url, timeout=60) as client:
        yield client


def post(web: httpx.Client, **fields: object) -> httpx.Response:
    answer = web.post("/v1/audio/speech", json={"model": "tiny", "input": TEXT, **OPTIONS, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def decoded(data: bytes) -> tuple[Samples, int]:
    if data[:2] == b"\xff\xf1":  # ADTS, which libsndfile does not read
        raw = ["-f", "aac", "-i", "pipe:0", "-f", "s16le", "pipe:1"]
        run = subprocess.run([ffmpeg_path(), "-loglevel", "error", *raw], input=data, capture_output=True, check=True)
        return np.frombuffer(run.stdout, "<i2"), (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000)[
            data[2] >> 2 & 15
        ]
    samples, rate_hz = soundfile.read(io.BytesIO(data), dtype="int16")
    return samples, rate_hz


MAGIC = {
    "mp3": (b"\xff\xf3", b"\xff\xfb", b"\xff\xf2", b"ID3"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1",),
    "flac": (b"fLaC",),
    "wav": (b"RIFF",),
}
MEDIA = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


@pytest.mark.parametrize("stream", [None, False])
@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_is_valid_and_has_the_generated_audio(
    web: httpx.Client, expected: Samples, kind: str, stream: bool | None
) -> None:
    answer = post(web, response_format=kind, stream=stream, unknown_field=1)
    data = answer.content
    assert answer.headers["content-type"] == MEDIA[kind]
    assert answer.headers["x-sample-rate"] == str(RATE_HZ)
    assert answer.headers["x-ignored-fields"] == "unknown_field"
    # A FLAC file needs its length in its first bytes, so that it is sent when it is complete.
    assert ("content-length" in answer.headers) == (stream is False or kind == "flac")
    if kind == "pcm":
        samples, rate_hz = np.frombuffer(data, dtype="<i2"), RATE_HZ
    else:
        assert data.startswith(MAGIC[kind])
        samples, rate_hz = decoded(data)
    assert rate_hz == RATE_HZ
    if kind in ("pcm", "wav", "flac"):
        assert len(samples) == len(expected)
        assert np.abs(samples.astype(int) - expected).max() <= LSB
    else:
        assert 0 <= len(samples) - len(expected) <= DELAY_S * RATE_HZ
        assert similarity(samples, expected) > 0.55, (
            "lossy codecs preserve noise worst; more than half of it must remain"
        )


def similarity(decoded: Samples, expected: Samples) -> float:
    """Maximum normalized correlation within the codec's delay."""
    a, b = expected.astype(float), np.pad(decoded.astype(float), (0, len(expected)))
    scores = []
    for delay in range(round(DELAY_S * RATE_HZ)):
        part = b[delay : delay + len(a)]
        scores.append(float(a @ part / np.sqrt((a @ a) * (part @ part) + 1e-9)))
    return max(scores)


def test_control_similarity_detects_other_audio(expected: Samples) -> None:
    assert similarity(expected[::-1].copy(), expected) < 0.3
    assert similarity(expected, expected) > 0.99


def test_default_format_is_mp3(web: httpx.Client) -> None:
    assert post(web).headers["content-type"] == "audio/mpeg"


def test_streamed_wav_has_unknown_size_and_whole_wav_exact_size(web: httpx.Client, expected: Samples) -> None:
    streamed, whole = (post(web, response_format="wav", stream=stream).content for stream in (None, False))
    assert streamed.count(b"RIFF") == streamed.count(b"WAVEfmt ") == 1
    assert streamed[4:8] == streamed[40:44] == b"\xff\xff\xff\xff"
    pcm = post(web, response_format="pcm").content
    assert np.abs(np.frombuffer(streamed[44:], "<i2").astype(int) - np.frombuffer(pcm, "<i2")).max() <= LSB
    with wave.open(io.BytesIO(whole)) as file:
        assert file.getnframes() == len(expected)
        assert file.getframerate() == RATE_HZ
        assert file.getnchannels() == 1
        assert len(file.readframes(10**9)) == 2 * len(expected)


def test_flac_that_is_explicitly_streamed_has_unknown_length(web: httpx.Client) -> None:
    answer = post(web, response_format="flac", stream_format="audio")
    assert "content-length" not in answer.headers
    info = int.from_bytes(answer.content[8:42], "big")  # RFC 9639, 8.2
    assert info >> 128 & (1 << 36) - 1 == 0


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
def test_resampled_stream_equals_resampling_at_once(web: httpx.Client, expected: Samples, rate_hz: int) -> None:
    answer = post(web, response_format="wav", sample_rate=rate_hz, packet_frames=[1])
    samples, decoded_hz = decoded(answer.content)
    at_once = soxr.resample(expected.astype(np.float32) / 32768, RATE_HZ, rate_hz)
    assert decoded_hz == rate_hz == int(answer.headers["x-sample-rate"])
    assert len(samples) == round(len(expected) * rate_hz / RATE_HZ)
    assert np.abs(samples / 32768 - np.clip(at_once, -1, 1)).max() < 3e-4


@pytest.mark.parametrize("kind", ["pcm", "wav", "mp3"])
def test_events_have_the_same_audio_then_usage_and_timing(speaker: Running, expected: Samples, kind: str) -> None:
    with speaker.client().speak_events(TEXT, response_format=kind, voice="ryan", seed=3, max_new_tokens=FRAMES) as body:
        assert body.headers["Content-Type"].startswith("text/event-stream")
        events = list(body.events())
    *deltas, done = events
    assert {event.type for event in deltas} == {"speech.audio.delta"}
    assert all(event.body["response_format"] == kind for event in deltas)
    data = b"".join(event.audio for event in deltas)
    samples = np.frombuffer(data, "<i2") if kind == "pcm" else decoded(data)[0]
    if kind != "mp3":
        assert np.abs(samples.astype(int) - expected).max() <= LSB
        assert len(deltas) == 3, "packets of 1, 2 and 4 frames"
    assert done.type == "speech.audio.done"
    assert done.body["finish_reason"] == "max_frames"
    usage = done.body["usage"]
    assert isinstance(usage, dict)
    assert usage["output_tokens"] == FRAMES
    assert usage["input_tokens"] > 3
    assert usage["total_tokens"] == usage["input_tokens"] + FRAMES
    timing = done.body["timing"]
    assert isinstance(timing, dict)
    assert sum(timing["stages_ms"].values()) == pytest.approx(timing["first_packet_ms"], abs=0.01)
    assert done.body["request_id"] == body.request_id


def test_stream_true_without_stream_format_means_events(web: httpx.Client) -> None:
    answer = post(web, response_format="pcm", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["type"] == "speech.audio.done"
    assert post(web, response_format="pcm", stream=True, stream_format="audio").headers["content-type"] == "audio/pcm"


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_openai_client_works_unchanged(speaker: Running, kind: str) -> None:
    with (
        openai.OpenAI(base_url=f"{speaker.url}/v1", api_key="none", max_retries=0) as client,
        client.audio.speech.with_streaming_response.create(
            model="gpt-4o-mini-tts",
            voice="alloy",
            input=TEXT,
            extra_body={"max_new_tokens": 2, "response_format": kind},
        ) as answer,
    ):
        data = b"".join(answer.iter_bytes())
    assert len(data) == 2 * 2 * 1920 if kind == "pcm" else data.startswith(MAGIC[kind])


def test_openai_client_reads_events_and_models(speaker: Running) -> None:
    with openai.OpenAI(base_url=f"{speaker.url}/v1", api_key="none", max_retries=0) as client:
        assert {"tiny", "tts-1", "gpt-4o-mini-tts"} <= {model.id for model in client.models.list()}
        with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="nova", input=TEXT, stream_format="sse", extra_body={"max_new_tokens": 1}
        ) as answer:
            kinds = [json.loads(line[6:])["type"] for line in answer.iter_lines() if line]
        with pytest.raises(openai.BadRequestError) as refused:
            client.audio.speech.create(model="tts-1", voice="unknown", input=TEXT)
    assert kinds[-1] == "speech.audio.done"
    assert (refused.value.code, refused.value.param) == ("unknown_voice", "voice")


def test_word_timestamps_are_sent_before_their_audio_ends(reader: Running) -> None:
    """Each word is sent before its audio ends. Without events the field is an error."""
    text = "One two three. Four five."
    with reader.client().speak_events(text, word_timestamps=True, packet_frames=[1]) as body:
        events = list(body.events())
    words, sent_before, sent = [], [], 0
    for event in events:
        sent += len(event.audio) // 2
        new_words = event.body.get("words", [])
        assert isinstance(new_words, list)
        words += new_words
        sent_before += [sent] * len(new_words)
    assert [word["text"].strip(".") for word in words] == ["One", "two", "three", "Four", "five"]
    assert all(text[word["text_start"] : word["text_end"]] == word["text"] for word in words)
    assert all(after / RATE_HZ <= word["end_s"] for after, word in zip(sent_before, words, strict=True))
    assert words[-1]["end_s"] <= sent / RATE_HZ
    with httpx.Client(base_url=reader.url) as client:
        answer = client.post("/v1/audio/speech", json={"input": text, "word_timestamps": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "word_timestamps")
    assert "sse" in answer.json()["error"]["message"]
