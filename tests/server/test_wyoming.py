"""Wyoming through its own client: described, whole texts, text that streams in, voices, errors, and hostile bytes."""

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

from legato.server.wyoming import MAX_EVENT_BYTES
from tests.server.running import Running, slots_free, wait_for
from tests.server.sockets import go

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


def truth(reader: Running, text: str, *, streamed: bool) -> np.ndarray:
    said = reader.tts.say(iter([text]) if streamed else text).samples
    return np.clip(np.rint(said * 32768), -32768, 32767)


def test_whole_texts_streams_of_text_and_voices(wyoming: int, reader: Running) -> None:
    at_once, in_pieces = truth(reader, TEXT, streamed=False), truth(reader, TEXT, streamed=True)

    async def work() -> None:
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
            assert np.abs(samples(events) - at_once).max() <= 1
            voice = SynthesizeVoice(name=program.voices[0].name)
            pieces = [SynthesizeChunk(piece) for piece in ("One tw", "o thr", "ee.")]
            await send(client, SynthesizeStart(voice=voice), *pieces, Synthesize(TEXT), SynthesizeStop())
            events = await until(client, "synthesize-stopped")
            kinds = [event.type for event in events if event.type != "audio-chunk"]
            assert kinds == ["audio-start", "audio-stop", "synthesize-stopped"]
            assert np.abs(samples(events) - in_pieces).max() <= 1
            await send(client, SynthesizeStart(), SynthesizeStop(), Ping())
            assert [event.type for event in await until(client, "pong")] == ["synthesize-stopped", "pong"]

    go(work())


def test_errors_are_told_and_the_connection_lives(wyoming: int, reader: Running) -> None:
    async def work() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            for event, part in (
                (Synthesize("x", voice=SynthesizeVoice(name="nobody")), "nobody"),
                (Synthesize("x", text_format="ssml"), "plain text"),
                (Synthesize("..."), "nothing to speak"),
                (SynthesizeChunk("x"), "before synthesize-start"),
            ):
                await send(client, event)
                assert part in Error.from_event((await until(client, "error"))[-1]).text
            await client.write_event(Event("synthesize", {"text": 5}))
            await until(client, "error")
            await client.write_event(Event("never-heard-of", {}))
            await send(client, SynthesizeStart(), SynthesizeChunk("!!"), SynthesizeStop())
            assert (await until(client, "synthesize-stopped"))[0].type == "error"
            await send(client, Synthesize("On."))
            await until(client, "audio-stop")

    go(work())
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
def test_bytes_that_are_no_event_end_the_connection_and_nothing_else(wyoming: int, data: bytes) -> None:
    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", wyoming)
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        assert answer == b"" or b"error" in answer
        writer.close()

    go(work())


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
def test_fuzzed_events_never_break_the_connection(wyoming: int, reader: Running, events: list[Event]) -> None:
    """Each has the form of an event, so whatever it says, the next one is answered."""

    async def work() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            for event in events:
                await client.write_event(event)
            await send(client, Describe())
            await until(client, "info")

    go(work())
    wait_for(lambda: slots_free(reader.tts), seconds=20)


def test_a_client_that_leaves_frees_its_slots(wyoming: int, reader: Running) -> None:
    async def work() -> None:
        async with AsyncTcpClient("127.0.0.1", wyoming) as client:
            await send(client, Synthesize("A text that nobody will hear to its end. " * 5))
            await until(client, "audio-chunk")

    go(work())
    wait_for(lambda: slots_free(reader.tts), seconds=20)
