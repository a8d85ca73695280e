"""The `wyoming` package with the requests that Home Assistant sends: describe, whole and streamed text, a refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from checks import TEXT, WYOMING_PORT, check, describe, expect_pcm
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)


async def info() -> None:
    """Voices and streaming support, which Home Assistant reads first."""
    async with AsyncTcpClient("127.0.0.1", WYOMING_PORT) as client:
        await client.write_event(Describe().event())
        event = await client.read_event()
        assert event is not None
        program = Info.from_event(event).tts[0]
        assert program.supports_synthesize_streaming
        assert program.voices


async def read_audio(client: AsyncTcpClient, last: Callable[[str], bool]) -> bytes:
    """The audio up to the event that ends the answer."""
    audio = b""
    while (event := await client.read_event()) is not None:
        if AudioStart.is_type(event.type):
            assert AudioStart.from_event(event).rate == 24_000
        if AudioChunk.is_type(event.type):
            audio += AudioChunk.from_event(event).audio
        if last(event.type):
            return audio
    raise AssertionError("the connection closed early")


async def whole() -> None:
    """A whole text."""
    async with AsyncTcpClient("127.0.0.1", WYOMING_PORT) as client:
        await client.write_event(Synthesize(TEXT, voice=SynthesizeVoice(name="heart", language="en-US")).event())
        expect_pcm(await read_audio(client, AudioStop.is_type))


async def streamed() -> None:
    """Text as an assistant generates it; the whole text follows for servers that do not stream."""
    async with AsyncTcpClient("127.0.0.1", WYOMING_PORT) as client:
        await client.write_event(SynthesizeStart(voice=SynthesizeVoice(name="heart")).event())
        for word in TEXT.split(" "):
            await client.write_event(SynthesizeChunk(text=f"{word} ").event())
        await client.write_event(Synthesize(TEXT).event())
        await client.write_event(SynthesizeStop().event())
        expect_pcm(await read_audio(client, SynthesizeStopped.is_type))


async def refusal() -> None:
    """An unknown voice is answered to the end, so that nothing waits."""
    async with AsyncTcpClient("127.0.0.1", WYOMING_PORT) as client:
        await client.write_event(Synthesize(TEXT, voice=SynthesizeVoice(name="nobody")).event())
        event = await client.read_event()
        assert event is not None
        assert Error.is_type(event.type)
        assert await read_audio(client, AudioStop.is_type) == b""


def run(work: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """`work` with a time limit."""
    return lambda: asyncio.run(asyncio.wait_for(work(), 60))


describe("wyoming")
check("describe", run(info))
check("whole text", run(whole))
check("streamed text", run(streamed))
check("refusal", run(refusal))
