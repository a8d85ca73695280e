"""The `livekit-agents` plugins: OpenAI over HTTP, and Baseten's Qwen3-TTS over a socket."""

from __future__ import annotations

import asyncio

import aiohttp
from checks import TEXT, URL, check, describe, expect_pcm
from livekit.plugins import baseten, openai


async def over_http() -> bytes:
    """The OpenAI plugin."""
    tts = openai.TTS(model="gpt-4o-mini-tts", voice="ash", instructions="Warm.", base_url=f"{URL}/v1", api_key="none")
    try:
        return b"".join([bytes(event.frame.data) async for event in tts.synthesize(TEXT)])
    finally:
        await tts.aclose()


async def over_socket() -> bytes:
    """The Baseten plugin, with its default task type."""
    async with aiohttp.ClientSession() as session:
        endpoint = URL.replace("http", "ws", 1) + "/v1/audio/speech/stream"
        tts = baseten.TTS(
            model="qwen3-tts", api_key="none", model_endpoint=endpoint, voice="heart", http_session=session
        )
        stream = tts.stream()
        for word in TEXT.split(" "):
            stream.push_text(f"{word} ")
        stream.flush()
        stream.end_input()
        audio = b"".join([bytes(event.frame.data) async for event in stream])
        await stream.aclose()
        await tts.aclose()
        return audio


describe("livekit-agents")
check("livekit-plugins-openai", lambda: expect_pcm(asyncio.run(asyncio.wait_for(over_http(), 90))))
check("livekit-plugins-baseten", lambda: expect_pcm(asyncio.run(asyncio.wait_for(over_socket(), 90))))
