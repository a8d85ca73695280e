"""Clients that are there and take nothing, or are gone without a word: after their time their rows are free."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator

import pytest
from starlette.types import Message
from websockets.sync.client import connect
from wyoming.tts import Synthesize

from legato.api import Legato, load
from legato.config.server import ServerConfig
from legato.engine.resolve import SpeechRequest
from legato.server.app import create_app
from legato.server.session_settings import limits_of
from legato.server.spoken import Spoken
from legato.server.wyoming import BUFFER_MS, WyomingConnection
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for
from tests.server.sockets import frame, handshake

OPEN = "Half a sentence that"
ROUTES = {
    "/v1/audio/speech/stream": [
        {"type": "session.config", "voice": "ryan", "max_new_tokens": 100},
        {"type": "input.text", "text": OPEN},
    ],
    "/api-ws/v1/realtime": [
        {"type": "session.update", "session": {"voice": "Serena", "max_new_tokens": 100}},
        {"type": "input_text_buffer.append", "text": OPEN},
    ],
}


@pytest.fixture(scope="module")
def brisk(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """It asks every half second whether its clients are there."""
    config = ServerConfig(ping_s=0.5, warm_up=False)
    with load(tiny_checkpoint("tiny-custom-voice"), slots=2) as tts, running(tts, config) as server:
        yield server


@pytest.mark.parametrize("path", list(ROUTES))
def test_a_client_that_vanished_without_a_word_is_missed(brisk: Running, path: str) -> None:
    """Half-open: the connection stands, its utterance waits for text and holds a slot, and no ping is answered."""
    with handshake(brisk, path) as raw:
        for message in ROUTES[path]:
            raw.sendall(frame(json.dumps(message)))
        wait_for(lambda: brisk.tts.stats().streams_open == 1)
        wait_for(lambda: slots_free(brisk.tts), seconds=20)


@pytest.mark.parametrize("path", list(ROUTES))
def test_control_a_client_that_answers_is_not_missed(brisk: Running, path: str) -> None:
    with connect(brisk.url.replace("http", "ws") + path) as client:
        for message in ROUTES[path]:
            client.send(json.dumps(message))
        wait_for(lambda: brisk.tts.stats().streams_open == 1)
        time.sleep(2.0)
        assert brisk.tts.stats().streams_open == 1
    wait_for(lambda: slots_free(brisk.tts))


@pytest.mark.parametrize("path", list(ROUTES))
def test_a_websocket_that_takes_nothing_is_dropped(brisk: Running, path: str) -> None:
    """It took the greetings; the first sound stays in the server's hands."""

    async def stuck() -> list[str]:
        app = create_app(brisk.tts, ServerConfig(stall_s=0.3, warm_up=False))
        app.state.legato.readiness.warm = True
        told: list[str] = []
        asked: list[Message] = [{"type": "websocket.connect"}]
        asked += [{"type": "websocket.receive", "text": json.dumps(message)} for message in ROUTES[path]]
        done = {"type": "input.done" if "speech" in path else "input_text_buffer.commit"}
        asked.append({"type": "websocket.receive", "text": json.dumps(done)})

        async def receive() -> Message:
            if asked:
                return asked.pop(0)
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            text = str(message.get("text", ""))
            told.append(json.loads(text)["type"] if text else message["type"])
            if message.get("bytes") or "audio.delta" in text:
                await asyncio.Event().wait()

        scope: dict[str, object] = {"type": "websocket", "path": path, "headers": [], "query_string": b""}
        scope |= {"asgi": {"version": "3.0"}, "subprotocols": [], "scheme": "ws", "server": ("x", 1)}
        await asyncio.wait_for(app(scope, receive, send), 60)
        app.state.legato.bridge.close()
        return told

    assert asyncio.run(stuck())[-1] == "websocket.close"
    wait_for(lambda: slots_free(brisk.tts), seconds=20)


class Deaf:
    """The writing half of a connection whose client takes nothing."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: object) -> None:
        """Into the buffer."""

    def writelines(self, data: object) -> None:
        """Into the buffer."""

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True


def test_a_wyoming_client_that_takes_nothing_is_dropped(reader: Running) -> None:
    async def stuck(tts: Legato) -> bool:
        app = create_app(tts, ServerConfig(stall_s=0.3, warm_up=False))
        state = app.state.legato
        incoming, deaf = asyncio.StreamReader(), Deaf()
        event = Synthesize("A text that nobody takes.").event()
        incoming.feed_data(json.dumps({"type": event.type, "data": event.data}).encode() + b"\n")
        request = SpeechRequest()
        async with Spoken(state, "wyoming", request, limits_of(state, request, buffer_ms=BUFFER_MS)) as spoken:
            connection = WyomingConnection(state, spoken, incoming, deaf)  # type: ignore[arg-type]
            await asyncio.wait_for(connection.run(), 60)
        state.bridge.close()
        return deaf.closed

    assert asyncio.run(stuck(reader.tts))
    wait_for(lambda: slots_free(reader.tts), seconds=20)


def test_a_wyoming_client_that_falls_silent_in_its_text_is_dropped(reader: Running, wyoming: int) -> None:
    """Its half of a sentence holds a slot until the server has waited for `idle_s`."""
    with socket.create_connection(("127.0.0.1", wyoming)) as raw:
        raw.sendall(b'{"type": "synthesize-start"}\n{"type": "synthesize-chunk", "data": {"text": "Half a"}}\n')
        wait_for(lambda: reader.tts.stats().streams_open == 1)
        wait_for(lambda: slots_free(reader.tts), seconds=30)
