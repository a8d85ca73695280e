"""The reference client of `/v1/audio/speech/stream`: text in pieces out, events and samples in, barge-in done right.

A `SpeechClient` owns one connection. It tags all audio with its utterance and sentence, and after `cancel` it drops
what was still on its way, so that nothing of the old utterance is heard again. For one task that reads; any task may
write. Knows no device.
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
from legato.errors import LegatoError

ROUTE = "/v1/audio/speech/stream"
MAX_FRAME_BYTES = 16 * 2**20


class SpeechError(LegatoError):
    """The server's `error` message; `server_code` is its code."""

    code = "server"

    def __init__(self, message: Mapping[str, object]) -> None:
        super().__init__(str(message.get("message", "")), field=str(message.get("field", "")))
        self.server_code = str(message.get("code", ""))


@dataclass(frozen=True, slots=True)
class Sound:
    """Audio of one utterance: its bytes as they came, and samples where the format is PCM."""

    utterance: int
    sentence: int
    data: bytes
    samples: npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Event:
    """Any other message of the server."""

    type: str
    message: Mapping[str, object]

    def number(self, name: str) -> int:
        """A whole number of the message."""
        value = self.message[name]
        assert isinstance(value, int)
        return value


@dataclass(slots=True)
class Heard:
    """A whole utterance as it came: its sound, its samples, its events."""

    data: bytes = b""
    events: list[Event] = field(default_factory=list)
    parts: list[npt.NDArray[np.int16]] = field(default_factory=list)

    @property
    def samples(self) -> npt.NDArray[np.int16]:
        return np.concatenate([np.zeros(0, np.int16), *self.parts])


class SpeechClient:
    """Use as `async with SpeechClient("ws://127.0.0.1:8000", {"voice": "heart"}) as speech`."""

    def __init__(self, url: str, config: Mapping[str, object] | None = None, *, api_key: str = "") -> None:
        """`config`: the fields of `session.config`."""
        self._url = url.rstrip("/") + ROUTE
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._config = dict(config or {})
        self._sockets: list[ClientConnection] = []
        self._joiner = PcmJoiner()
        self._pcm = True
        self._place = (0, 0)
        self._cancelling = 0
        self.configured: Mapping[str, object] = {}

    async def __aenter__(self) -> SpeechClient:
        self._sockets.append(await connect(self._url, additional_headers=self._headers, max_size=MAX_FRAME_BYTES))
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
        """Settings of the utterances that follow; answered by `session.configured`."""
        await self.send({**config, "type": "session.config"})

    async def write(self, text: str, *, replace: bool = False) -> None:
        """More text of the open utterance. `replace`: instead of everything that plays or waits."""
        if replace:
            self._cancelling += 1
        await self.send({"type": "input.text", "text": text, **({"replace": True} if replace else {})})

    async def done(self) -> None:
        """The open utterance has all its text."""
        await self.send({"type": "input.done"})

    async def cancel(self, *, utterance: int = -1, played_through: int = -1) -> None:
        """Barge-in. With what the device has played, if that is known."""
        self._cancelling += 1
        known = {"utterance_index": utterance, "played_through_sample": played_through}
        await self.send({"type": "input.cancel", **(known if played_through >= 0 else {})})

    async def acknowledge(self, utterance: int, played_through: int, *, sentence: int = 0) -> None:
        """Say what the device has played."""
        place = {"utterance_index": utterance, "sentence_index": sentence}
        await self.send({"type": "playback.ack", **place, "played_through_sample": played_through})

    async def send(self, message: Mapping[str, object]) -> None:
        """Any message."""
        await self.raw(json.dumps(message))

    async def raw(self, frame: str | bytes) -> None:
        """Any frame, even a wrong one."""
        await self._socket.send(frame)

    # --- from the server ----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[Event | Sound]:
        """Everything that comes, in order, until the server closes; raises `SpeechError` for its errors."""
        async for frame in self._socket:
            if isinstance(frame, bytes):
                if not self._cancelling:
                    yield self._sound(frame)
                continue
            message = json.loads(frame)
            event = Event(str(message["type"]), message)
            if event.type == "error":
                raise SpeechError(message)
            if event.type == "session.configured":
                self.configured, self._pcm = message, message["format"] == "pcm"
            if event.type == "input.cancelled":
                self._cancelling -= 1
                self._joiner.reset()
            elif self._cancelling and event.type.startswith("audio."):
                continue
            if event.type == "audio.start":
                self._place = (event.number("utterance_index"), event.number("sentence_index"))
                self._joiner.reset()
            if event.type == "audio.done":
                self._joiner.end()
            yield self._sound(base64.b64decode(message["audio_b64"])) if event.type == "audio.chunk" else event

    async def hear(self, utterance: int) -> Heard:
        """Everything of one utterance, until its `session.done` or until it was cancelled."""
        heard = Heard()
        async for event in self.events():
            if isinstance(event, Sound):
                if event.utterance == utterance:
                    heard.data += event.data
                    heard.parts.append(event.samples)
                continue
            heard.events.append(event)
            done = event.type == "session.done" and event.number("utterance_index") == utterance
            if done or event.type == "input.cancelled":
                return heard
        raise SpeechError({"message": "the server closed the connection", "code": "closed"})

    async def say(self, text: str, utterance: int) -> Heard:
        """Speak a whole text, which is utterance number `utterance` on this connection, and hear it."""
        await self.write(text)
        await self.done()
        return await self.hear(utterance)

    @property
    def _socket(self) -> ClientConnection:
        return self._sockets[0]

    def _sound(self, data: bytes) -> Sound:
        samples = self._joiner.take(data) if self._pcm else np.zeros(0, np.int16)
        return Sound(*self._place, data, samples)
