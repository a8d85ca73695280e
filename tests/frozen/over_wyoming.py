"""A transcript of the Wyoming protocol: service description, whole and streamed text, errors."""

from __future__ import annotations

from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.event import Event, Eventable
from wyoming.info import Describe
from wyoming.ping import Ping
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeVoice

from tests.frozen.masks import Message, Transcript, masked
from tests.frozen.over_sockets import run
from tests.frozen.subjects import Subjects

TEXT = "One two three."
PIECES = ("One tw", "o thr", "ee.")
ENGLISH = SynthesizeVoice(language="en-GB")
NOBODY = SynthesizeVoice(name="nobody")
ERROR_TEXT = frozenset({"text"})


def take(subjects: Subjects) -> object:
    """The types of the sent events, and all received events."""
    return run(_conversation(subjects.wyoming_port()))


async def _conversation(port: int) -> list[Message]:
    transcript = Transcript()
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await _exchange(client, transcript, "info", Describe())
        await _exchange(client, transcript, "audio-stop", Synthesize(TEXT, voice=ENGLISH))
        pieces = [SynthesizeChunk(piece) for piece in PIECES]
        streamed = [SynthesizeStart(), *pieces, Synthesize(TEXT), SynthesizeStop()]
        await _exchange(client, transcript, "synthesize-stopped", *streamed)
        await _exchange(client, transcript, "audio-stop", Synthesize("x", voice=NOBODY))
        await _exchange(client, transcript, "audio-stop", Synthesize("..."))
        await _exchange(client, transcript, "error", SynthesizeChunk("x"))
        await _exchange(client, transcript, "pong", Ping())
    return transcript.entries


async def _exchange(client: AsyncTcpClient, transcript: Transcript, end: str, *events: Eventable) -> None:
    transcript.add({"sent": [event.event().type for event in events]})
    for event in events:
        await client.write_event(event.event())
    kind = ""
    while kind != end:
        got = await client.read_event()
        assert got is not None, f"closed before {end}"
        kind = got.type
        _record(transcript, got)


def _record(transcript: Transcript, event: Event) -> None:
    if AudioChunk.is_type(event.type):
        samples = len(AudioChunk.from_event(event).audio) // 2
        transcript.audio(event.type, samples, {name: each for name, each in event.data.items() if name != "timestamp"})
        return
    data = masked(event.data, also=ERROR_TEXT) if event.type == "error" else event.data
    transcript.add({"type": event.type, "data": data})
