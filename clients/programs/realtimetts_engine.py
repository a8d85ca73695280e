"""The `RealtimeTTS` package with its OpenAI engine, which reads the address from `OPENAI_BASE_URL`."""

from __future__ import annotations

import os

from checks import TEXT, URL, check, describe, expect_pcm

os.environ["OPENAI_BASE_URL"] = f"{URL}/v1"


def speak() -> None:
    """Text in pieces, without a sound device."""
    from RealtimeTTS import OpenAIEngine, TextToAudioStream

    audio: list[bytes] = []
    engine = OpenAIEngine(api_key="none", voice="nova", response_format="pcm")
    stream = TextToAudioStream(engine, muted=True)
    stream.feed(f"{word} " for word in TEXT.split(" "))
    stream.play(muted=True, on_audio_chunk=audio.append)
    expect_pcm(b"".join(audio))


describe("RealtimeTTS")
check("OpenAIEngine", speak)
