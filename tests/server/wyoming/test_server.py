"""Wyoming through its reference client: info, complete texts, streaming text, voices, errors and malformed bytes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.audio import AudioChunk, AudioStart
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.info import Describe, Info
from wyoming.ping import Ping
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from legato.server.wyoming.server import MAX_EVENT_BYTES
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import run_client

TEXT = "One two three."


async def until(client: AsyncTcpClient, kind: str) -> list[Event]:
    seen: list[Event] = []
    while not seen or seen[-1].type != kind:
        event = await client.read_event()
        assert event is not None, f"closed before {kind}: {[each.type for each in seen]}"
        seen.append(event)
    return seen


async def send(client: AsyncTcpClient, *events: Eventable) -> None:
    for event in events:
        await client.write_event(event.event())


def samples(events: list[Event]) -> np.ndarray:
    data = b"".join(AudioChunk.from_event(event).audio for event in events if AudioChunk.is_type(event.type))
    return np.frombuffer(data, dtype="<i2")


def expected_samples(reader: Running, text: str, *, streamed: bool) -> np.ndarray:
    samples = reader.tts.say(iter([text]) if streamed else text).samples
    return np.clip(np.rint(samples * 32768), -32768, 32767)


def test_complete_text_streaming_text_and_voices(wyoming: int, reader: Running) -> None:
    complete, streamed = expected_samples(reader, TEXT, streamed=False), expected_samples(reader, TEXT, streamed=True)

    async def session() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            await send(client, Describe())
            info = Info.from_event((await until(client, "info"))[-1])
            (program,) = info.tts
            assert program.supports_synthesize_streaming
            assert [voice.name for voice in program.voices] == [voice.name for voice in reader.tts.voices()]
            assert program.voices[0].languages == ["en"]
            await send(client, Synthesize(TEXT, voice=SynthesizeVoice(language="en-GB")))
            events = await until(client, "audio-stop")
            start = AudioStart.from_event(events[0])
            assert (start.rate, start.width, start.channels) == (reader.tts.sample_rate_hz, 2, 1)
            assert np.abs(samples(events) - complete).max() <= 1
            voice = SynthesizeVoice(name=program.voices[0].name)
            pieces = [SynthesizeChunk(piece) for piece in ("One tw", "o thr", "ee.")]
            await send(client, SynthesizeStart(voice=voice), *pieces, Synthesize(TEXT), SynthesizeStop())
            events = await until(client, "synthesize-stopped")
            kinds = [event.type for event in events if event.type != "audio-chunk"]
            assert kinds == ["audio-start", "audio-stop", "synthesize-stopped"]
            assert np.abs(samples(events) - streamed).max() <= 1
            await send(client, SynthesizeStart(), SynthesizeStop(), Ping())
            assert [event.type for event in await until(client, "pong")] == ["synthesize-stopped", "pong"]

    run_client(session())


def test_errors_are_reported_and_connection_stays_open(wyoming: int, reader: Running) -> None:
    async def session() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            for event, part in (
                (Synthesize("x", voice=SynthesizeVoice(name="nobody")), "nobody"),
                (Synthesize("x", text_format="ssml"), "plain text"),
                (Synthesize("..."), "nothing to speak"),
            ):
                await send(client, event)
                refused = await until(client, "audio-stop")
                assert [each.type for each in refused] == ["error", "audio-start", "audio-stop"]
                assert part in Error.from_event(refused[0]).text
            await send(client, SynthesizeChunk("x"))
            assert "before synthesize-start" in Error.from_event((await until(client, "error"))[-1]).text
            await client.write_event(Event("synthesize", {"text": 5}))
            assert (await until(client, "audio-stop"))[0].type == "error"
            await client.write_event(Event("never-heard-of", {}))
            for start, piece in (
                (SynthesizeStart(), "!!"),
                (SynthesizeStart(voice=SynthesizeVoice(name="nobody")), "ignored, as the start was refused"),
            ):
                await send(client, start, SynthesizeChunk(piece), Synthesize(piece), SynthesizeStop())
                kinds = [each.type for each in await until(client, "synthesize-stopped")]
                assert kinds == ["error", "audio-start", "audio-stop", "synthesize-stopped"]
            await send(client, Synthesize("On."))
            await until(client, "audio-stop")

    run_client(session())
    wait_for(lambda: slots_free(reader.tts))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100 + b"\n",
        b"[]\n",
        b'{"type": 5}\n',
        b'{"type": "synthesize", "data": [1]}\n',
        b'{"type": "synthesize", "data_length": -1}\n',
        b'{"type": "synthesize", "payload_length": 99999999999}\n',
        b'{"type": "synthesize", "data_length": 3}\nabc',
        b"[" * 50_000 + b"\n",
        b"x" * (MAX_EVENT_BYTES + 10),
        b'{"type": "synthesize"',
    ],
)
def test_malformed_bytes_close_only_their_connection(wyoming: int, data: bytes) -> None:
    async def session() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", wyoming)
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        assert answer == b"" or b"error" in answer
        writer.close()

    run_client(session())


ANY = (
    st.none() | st.booleans() | st.integers() | st.text("a .é\u4f60", max_size=3) | st.lists(st.integers(), max_size=2)
)
DATA = st.dictionaries(
    st.sampled_from(["text", "voice", "text_format", "context", "name"]),
    ANY | st.dictionaries(st.sampled_from(["name", "language", "speaker"]), ANY, max_size=2),
    max_size=3,
)
KINDS = ["synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop", "ping", "transcribe"]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.builds(Event, st.sampled_from(KINDS), DATA), max_size=8))
def test_fuzzed_events_do_not_break_the_connection(wyoming: int, reader: Running, events: list[Event]) -> None:
    """The events are well-formed, so the next event is answered whatever they contain."""

    async def session() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            for event in events:
                await client.write_event(event)
            await send(client, Describe())
            await until(client, "info")

    run_client(session())
    wait_for(lambda: slots_free(reader.tts), seconds=20)


def test_disconnect_releases_slots(wyoming: int, reader: Running) -> None:
    async def session() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            await send(client, Synthesize("A text that is never received completely. " * 5))
            await until(client, "audio-chunk")

    run_client(session())
    wait_for(lambda: slots_free(reader.tts), seconds=20)
