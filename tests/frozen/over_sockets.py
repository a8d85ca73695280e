"""Transcripts of the two WebSocket routes, including the messages that the client sends."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping
from typing import TypeVar

from websockets.asyncio.client import ClientConnection, connect

from tests.frozen.masks import Message, Transcript
from tests.frozen.subjects import Subjects

T = TypeVar("T")
STREAM = "/v1/audio/speech/stream"
REALTIME = "/api-ws/v1/realtime"
SHORT: Message = {"voice": "ryan", "seed": 3, "max_new_tokens": 6}
LONG: Message = {"voice": "ryan", "seed": 3, "max_new_tokens": 150}
READ_TOKENS = frozenset({"input_tokens", "text_tokens", "total_tokens"})
TEXT = "A long speech that somebody will break off. "


class Conversation:
    """One connection and its transcript."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._rate_hz = 24_000
        self.transcript = Transcript()

    async def send(self, kind: str, **fields: object) -> None:
        """Send a message and record it."""
        self.transcript.add({"sent": {"type": kind, **fields}})
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, *kinds: str, silent: bool = False) -> None:
        """Record messages up to one of the types `kinds` ("audio": audio data in any form).

        `silent`: do not record audio and the events of its utterance. How many follow a cancel depends on timing.
        """
        kind = ""
        while kind not in kinds:
            frame = await self._socket.recv()
            if isinstance(frame, bytes):
                kind = "audio"
                if not silent:
                    self.transcript.audio("binary", len(frame) // 2, {})
                continue
            kind = self._record(json.loads(frame), silent=silent)

    def _record(self, message: Message, *, silent: bool) -> str:
        kind = str(message["type"])
        field = next((name for name in ("audio_b64", "delta") if name in message), "")
        if silent and kind.startswith(("audio.", "response.audio.delta")):
            return "audio" if field else kind
        if field:
            samples = len(base64.b64decode(str(message.pop(field)))) // 2
            places = {name: value for name, value in message.items() if name not in ("first_sample", "samples")}
            self.transcript.audio(kind, samples, places)
            return "audio"
        if "words" in message:
            self.transcript.words(kind, message.pop("words"), message)
        else:
            # A cancelled response has read as much of its text as the engine needed by then.
            response = message.get("response")
            cancelled = isinstance(response, Mapping) and response.get("status") == "cancelled"
            self.transcript.add(message, also=READ_TOKENS if cancelled else frozenset())
        return kind

    async def closed(self) -> None:
        """Record the close code of the server."""
        async for _ in self._socket:
            raise AssertionError("unexpected message before the close")
        self.transcript.add({"closed": self._socket.close_code})


def run(work: Coroutine[None, None, T]) -> T:
    """Run one client, with a timeout."""
    return asyncio.run(asyncio.wait_for(work, 40))


# --- /v1/audio/speech/stream -----------------------------------------------------------------------------------------


def take_stream(subjects: Subjects) -> object:
    """Text in pieces, both transports, a cancel, errors, and word times."""
    speaker, reader = (url.replace("http", "ws") + STREAM for url in (subjects.voices_url(), subjects.words_url()))
    return {
        "binary": run(_spoken(speaker, SHORT)),
        "base64": run(_spoken(speaker, {**SHORT, "audio_transport": "base64"})),
        "sentences": run(_spoken(speaker, {**SHORT, "max_new_tokens": 2, "split_granularity": "sentence"})),
        "cancelled": run(_cancelled(speaker)),
        "refused": run(_refused(speaker)),
        "words": run(_spoken(reader, {"word_timestamps": True})),
    }


async def _spoken(url: str, config: Message) -> list[Message]:
    async with connect(url) as socket:
        conversation = Conversation(socket)
        await conversation.send("session.config", **config)
        await conversation.until("session.configured")
        await conversation.send("input.text", text="Some wo")
        await conversation.send("input.text", text="rds. And more.")
        await conversation.send("input.done")
        await conversation.until("session.done")
        await conversation.send("session.close")
        await conversation.closed()
    return conversation.transcript.entries


async def _cancelled(url: str) -> list[Message]:
    async with connect(url) as socket:
        conversation = Conversation(socket)
        await conversation.send("session.config", **LONG)
        await conversation.until("session.configured")
        await conversation.send("input.text", text=TEXT * 5)
        await conversation.send("input.done")
        await conversation.until("audio.start")
        await conversation.until("audio", silent=True)
        await conversation.send("input.cancel", utterance_index=0, played_through_sample=960)
        await conversation.until("input.cancelled", silent=True)
        await conversation.send("session.config", **SHORT)
        await conversation.until("session.configured")
        await conversation.send("input.text", text="New.")
        await conversation.send("input.done")
        await conversation.until("session.done")
    return conversation.transcript.entries


async def _refused(url: str) -> list[Message]:
    async with connect(url) as socket:
        conversation = Conversation(socket)
        for config in ({"voice": "nobody"}, {"response_format": "midi"}, {"seed": -1}):
            await conversation.send("session.config", **config)
            await conversation.until("error")
        await conversation.send("never.heard.of")
        await conversation.until("error")
        await conversation.send("input.text", text=5)
        await conversation.until("error")
    return conversation.transcript.entries


# --- /api-ws/v1/realtime ---------------------------------------------------------------------------------------------


def take_realtime(subjects: Subjects) -> object:
    """Both modes of the DashScope protocol, a cancel, errors, and word times."""
    speaker, reader = (url.replace("http", "ws") + REALTIME for url in (subjects.voices_url(), subjects.words_url()))
    return {
        "commit": run(_committed(speaker, {**SHORT, "mode": "commit", "response_format": "pcm"})),
        "words": run(_committed(reader, {"mode": "commit", "word_timestamps": True})),
        "server_commit": run(_finished(speaker)),
        "cancelled": run(_response_cancelled(speaker)),
        "refused": run(_realtime_refused(speaker)),
    }


async def _opened(socket: ClientConnection, session: Mapping[str, object]) -> Conversation:
    conversation = Conversation(socket)
    await conversation.until("session.created")
    await conversation.send("session.update", session=session)
    await conversation.until("session.updated")
    return conversation


async def _committed(url: str, session: Mapping[str, object]) -> list[Message]:
    async with connect(url) as socket:
        conversation = await _opened(socket, session)
        await conversation.send("input_text_buffer.append", text="Never spoken.")
        await conversation.send("input_text_buffer.clear")
        await conversation.send("input_text_buffer.append", text="Some wo")
        await conversation.send("input_text_buffer.append", text="rds.")
        await conversation.send("input_text_buffer.commit")
        await conversation.until("response.done")
        await conversation.send("session.finish")
        await conversation.until("session.finished")
        await conversation.closed()
    return conversation.transcript.entries


async def _finished(url: str) -> list[Message]:
    async with connect(url) as socket:
        conversation = await _opened(socket, {**SHORT, "voice": "Cherry", "mode": "server_commit"})
        await conversation.send("input_text_buffer.append", text="Some wo")
        await conversation.send("input_text_buffer.append", text="rds.")
        await conversation.send("session.finish")
        await conversation.until("session.finished")
        await conversation.closed()
    return conversation.transcript.entries


async def _response_cancelled(url: str) -> list[Message]:
    async with connect(url) as socket:
        conversation = await _opened(socket, {**LONG, "mode": "server_commit"})
        await conversation.send("input_text_buffer.append", text=TEXT * 5)
        await conversation.until("response.content_part.added")
        await conversation.until("audio", silent=True)
        await conversation.send("response.cancel")
        await conversation.until("response.done", silent=True)
    return conversation.transcript.entries


async def _realtime_refused(url: str) -> list[Message]:
    async with connect(url) as socket:
        conversation = await _opened(socket, SHORT)
        await conversation.send("session.update", session={"pitch_rate": 1.2})
        await conversation.until("session.updated")  # it has no effect, and the answer says so
        for session in ({"voice": "nobody"}, {"mode": "auto"}, {"volume": 101}):
            await conversation.send("session.update", session=session)
            await conversation.until("error")
        for kind in ("input_text_buffer.commit", "response.cancel", "never.heard.of"):
            await conversation.send(kind)
            await conversation.until("error")
    return conversation.transcript.entries
