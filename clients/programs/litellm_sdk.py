"""The `litellm` package: `speech`, with instructions and a tempo."""

from __future__ import annotations

import litellm
from checks import TEXT, URL, check, describe, expect_pcm


def speak(**options: object) -> bytes:
    """Speak `TEXT` as PCM."""
    answer = litellm.speech(
        model="openai/gpt-4o-mini-tts",
        input=TEXT,
        voice="alloy",
        api_base=f"{URL}/v1",
        api_key="none",
        response_format="pcm",
        **options,
    )
    return bytes(answer.content)


describe("litellm")
check("speech", lambda: expect_pcm(speak()))
check("instructions, tempo", lambda: expect_pcm(speak(instructions="Calm.", speed=1.25)))
