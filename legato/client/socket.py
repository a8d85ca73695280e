"""WebSocket client for `/v1/audio/speech/stream`: send text incrementally, receive events and audio, support barge-in.

A `SpeechClient` owns one connection. It labels all audio with its utterance and sentence. After `cancel` it drops audio
that is still in flight, so that none of the old utterance is played. One task reads; any task may write.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import numpy.typing as npt
from websockets.asyncio.client import ClientConnection, connect

from legato.client.pcm import PcmJoiner
from legato.errors import LegatoError, StateError

ROUTE = "/v1/audio/speech/stream"
MAX_FRAME_BYTES = 16 * 2**20


class SpeechError(LegatoError):
    """An `error` message from the server; `server_code` is its code."""

    code = "server"

    def __init__(self, message: Mapping[str, object]) -> None:
        super().__init__(str(message.get("message", "")), field=str(message.get("field", "")))
        self.server_code = str(message.get("code", ""))


@dataclass(frozen=True, slots=True)
class AudioData:
    """Audio of one utterance: the received bytes, and for PCM the samples (else empty)."""

    utterance: int
    sentence: int
    data: bytes
    samples: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Event:
    """Any other server message."""

    type: str
    message: Mapping[str, object]

    def number(self, name: str) -> int:
        """An integer field of the message."""
        value = self.message[name]
        assert isinstance(value, int)
        return value


@dataclass(slots=True)
class ReceivedUtterance:
    """A whole utterance: its bytes, its samples (PCM only) and its events."""

    data: bytes = b""
    events: list[Event] = field(default_factory=list)
    parts: list[npt.NDArray[np.int16]] = field(default_factory=list)

    @property
    def samples(self) -> npt.NDArray[np.int16]:
        return np.concatenate([np.zeros(0, np.int16), *self.parts])


class SpeechClient:
    """Client of one WebSocket session.

    Example: `async with SpeechClient("ws://127.0.0.1:8000", {"voice": "heart"}) as speech`.
    """

    def __init__(self, url: str, config: Mapping[str, object] | None = None, *, api_key: str = "") -> None:
        """`config`: fields of the message `session.config`."""
        self._url = url.rstrip("/") + ROUTE
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._config = dict(config or {})
        self._connection: ClientConnection | None = None
        self._joiner = PcmJoiner()
        self._pcm = True
        self._utterance, self._sentence = 0, 0
        self._pending_cancels = 0
        """Cancels not yet confirmed by `input.cancelled`; meanwhile all received audio is stale."""
        self.configured: Mapping[str, object] = {}

    async def __aenter__(self) -> SpeechClient:
        self._connection = await connect(self._url, additional_headers=self._headers, max_size=MAX_FRAME_BYTES)
        await self.configure(self._config)
        async for event in self.events():
            if isinstance(event, Event) and event.type == "session.configured":
                return self
        raise SpeechError({"message": "the server closed the connection", "code": "closed"})

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._socket.close()

    # --- to the server ------------------------------------------------------------------------------------------------

    async def configure(self, config: Mapping[str, object]) -> None:
        """Set the options of the next utterances. The server replies with `session.configured`."""
        await self.send({**config, "type": "session.config"})

    async def write(self, text: str, *, replace: bool = False) -> None:
        """Append text to the open utterance. `replace`: first cancel everything that is playing or queued."""
        if replace:
            self._pending_cancels += 1
        await self.send({"type": "input.text", "text": text, **({"replace": True} if replace else {})})

    async def done(self) -> None:
        """End the text of the open utterance."""
        await self.send({"type": "input.done"})

    async def cancel(self, *, utterance: int = -1, played_through: int = -1) -> None:
        """Cancel everything (barge-in). `played_through`: last sample of `utterance` played by the device, if known."""
        self._pending_cancels += 1
        position = {"utterance_index": utterance, "played_through_sample": played_through}
        await self.send({"type": "input.cancel", **(position if played_through >= 0 else {})})

    async def acknowledge(self, utterance: int, played_through: int, *, sentence: int = 0) -> None:
        """Report how far the device has played."""
        message = {
            "type": "playback.ack",
            "utterance_index": utterance,
            "sentence_index": sentence,
            "played_through_sample": played_through,
        }
        await self.send(message)

    async def send(self, message: Mapping[str, object]) -> None:
        """Send any message."""
        await self.send_frame(json.dumps(message))

    async def send_frame(self, frame: str | bytes) -> None:
        """Send any frame, even an invalid one."""
        await self._socket.send(frame)

    # --- from the server ----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Event | AudioData]:
        """Yield events and audio in order until the server closes. Raises `SpeechError` for `error` messages."""
        async for frame in self._socket:
            if isinstance(frame, bytes):
                if not self._pending_cancels:
                    yield self._audio_data(frame)
                continue
            message = json.loads(frame)
            event = Event(str(message["type"]), message)
            if event.type == "error":
                raise SpeechError(message)
            if event.type == "session.configured":
                self.configured, self._pcm = message, message["format"] == "pcm"
            if event.type == "input.cancelled":
                self._pending_cancels -= 1
                self._joiner.reset()
            elif self._pending_cancels and event.type.startswith("audio."):
                continue
            if event.type == "audio.start":
                self._utterance = event.number("utterance_index")
                self._sentence = event.number("sentence_index")
                self._joiner.reset()
            if event.type == "audio.done":
                self._joiner.end()
            if event.type == "audio.chunk":
                yield self._audio_data(base64.b64decode(message["audio_b64"]))
            else:
                yield event

    async def receive(self, utterance: int) -> ReceivedUtterance:
        """Receive one utterance until its `session.done` or until it is cancelled."""
        received = ReceivedUtterance()
        async for event in self.events():
            if isinstance(event, AudioData):
                if event.utterance == utterance:
                    received.data += event.data
                    received.parts.append(event.samples)
                continue
            received.events.append(event)
            done = event.type == "session.done" and event.number("utterance_index") == utterance
            if done or event.type == "input.cancelled":
                return received
        raise SpeechError({"message": "the server closed the connection", "code": "closed"})

    async def say(self, text: str, utterance: int) -> ReceivedUtterance:
        """Send a whole text and receive its audio. `utterance`: its index on this connection."""
        await self.write(text)
        await self.done()
        return await self.receive(utterance)

    @property
    def _socket(self) -> ClientConnection:
        if self._connection is None:
            raise StateError("the client is not connected: use it with `async with`")
        return self._connection

    def _audio_data(self, data: bytes) -> AudioData:
        samples = self._joiner.decode(data) if self._pcm else np.zeros(0, np.int16)
        return AudioData(self._utterance, self._sentence, data, samples)
