"""The `openai` package: files, streams, events, models."""

from __future__ import annotations

import base64
import io
import wave

from checks import TEXT, URL, check, describe, expect_pcm
from openai import OpenAI

client = OpenAI(base_url=f"{URL}/v1", api_key="none")


def files() -> None:
    """Download a WAV and an MP3."""
    wav = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format="wav").content
    with wave.open(io.BytesIO(wav)) as file:
        expect_pcm(file.readframes(file.getnframes()))
        assert 44 + 2 * file.getnframes() == len(wav)
    mp3 = client.audio.speech.create(model="tts-1-hd", voice="nova", input=TEXT)
    assert len(mp3.content) > 5000


def stream() -> None:
    """Read a response while it is generated, with instructions that the model does not take."""
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts-2025-12-15", voice="coral", input=TEXT, instructions="Cheerful.", response_format="pcm"
    ) as answer:
        expect_pcm(b"".join(answer.iter_bytes(4096)))


def events() -> None:
    """Server-sent events."""
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse"
    ) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
    import json

    parsed = [json.loads(line.removeprefix("data: ")) for line in lines]
    deltas = [base64.b64decode(each["audio"]) for each in parsed if each["type"] == "speech.audio.delta"]
    expect_pcm(b"".join(deltas))
    assert parsed[-1]["type"] == "speech.audio.done"


def models() -> None:
    """The list of models."""
    assert "tts-1" in [model.id for model in client.models.list()]


describe("openai")
check("files", files)
check("stream", stream)
check("events", events)
check("models", models)
