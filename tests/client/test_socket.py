"""The reference client of `/v1/audio/speech/stream`, fed with frames: no sound of an utterance after its cancel."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator

from legato.client.socket import AudioData, SpeechClient

START = {"type": "audio.start", "sentence_index": 0, "format": "pcm"}


class Frames:
    """A connection that delivers the given frames."""

    def __init__(self, *frames: dict[str, object] | bytes) -> None:
        self._frames = frames
        self.sent: list[dict[str, object]] = []

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        for frame in self._frames:
            yield frame if isinstance(frame, bytes) else json.dumps(frame)

    async def send(self, frame: str) -> None:
        self.sent.append(json.loads(frame))


def heard(*frames: dict[str, object] | bytes, cancels: int) -> list[tuple[int, bytes]]:
    """The audio that a client gets to play after it has sent `cancels` cancels."""

    async def run() -> list[tuple[int, bytes]]:
        client = SpeechClient("ws://none")
        client._connection = Frames(*frames)  # type: ignore[assignment]
        for _ in range(cancels):
            await client.cancel()
        return [(event.utterance, event.data) async for event in client.events() if isinstance(event, AudioData)]

    return asyncio.run(run())


def test_audio_between_a_cancel_and_its_confirmation_is_dropped() -> None:
    chunk = {"type": "audio.chunk", "audio_b64": base64.b64encode(b"\1\1").decode()}
    old: list[dict[str, object] | bytes] = [{**START, "utterance_index": 0}, b"\1\1", dict(chunk)]
    new: list[dict[str, object] | bytes] = [{**START, "utterance_index": 1}, b"\2\2"]
    confirmed: dict[str, object] = {"type": "input.cancelled", "utterances": []}
    assert heard(*old, confirmed, *new, cancels=1) == [(1, b"\2\2")]
    assert heard(*old, confirmed, *old, confirmed, *new, cancels=2) == [(1, b"\2\2")]
    assert [data for _, data in heard(*old, cancels=0)] == [b"\1\1", b"\1\1"]
