"""Clients that accept no data, or vanish without closing: their slots are released after a timeout."""

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
from legato.engine.request import SpeechRequest
from legato.server.app import create_app
from legato.server.session_runner import SessionRunner
from legato.server.session_settings import limits_of
from legato.server.wyoming.server import BUFFER_MS, WyomingConnection
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
def pinging(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server that pings its clients every 0.5 s."""
    config = ServerConfig(ping_s=0.5, warm_up=False)
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=2) as tts, running(tts, config) as server:
        yield server


@pytest.mark.parametrize("path", list(ROUTES))
def test_vanished_client_is_detected(pinging: Running, path: str) -> None:
    """Half-open connection: its utterance waits for text and holds a slot, and pings are not answered."""
    with handshake(pinging, path) as raw:
        for message in ROUTES[path]:
            raw.sendall(frame(json.dumps(message)))
        wait_for(lambda: pinging.tts.stats().streams_open == 1)
        wait_for(lambda: slots_free(pinging.tts), seconds=20)


@pytest.mark.parametrize("path", list(ROUTES))
def test_control_client_that_answers_pings_is_kept(pinging: Running, path: str) -> None:
    with connect(pinging.url.replace("http", "ws") + path) as client:
        for message in ROUTES[path]:
            client.send(json.dumps(message))
        wait_for(lambda: pinging.tts.stats().streams_open == 1)
        time.sleep(2.0)
        assert pinging.tts.stats().streams_open == 1
    wait_for(lambda: slots_free(pinging.tts))


@pytest.mark.parametrize("path", list(ROUTES))
def test_websocket_that_accepts_no_data_is_dropped(pinging: Running, path: str) -> None:
    """The client accepts JSON messages, but not the first audio."""

    async def stalled_client() -> list[str]:
        app = create_app(pinging.tts, ServerConfig(stall_s=0.3, warm_up=False))
        app.state.legato.readiness.warm = True
        sent: list[str] = []
        messages: list[Message] = [{"type": "websocket.connect"}]
        messages += [{"type": "websocket.receive", "text": json.dumps(message)} for message in ROUTES[path]]
        done = {"type": "input.done" if "speech" in path else "input_text_buffer.commit"}
        messages.append({"type": "websocket.receive", "text": json.dumps(done)})

        async def receive() -> Message:
            if messages:
                return messages.pop(0)
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            text = str(message.get("text", ""))
            sent.append(json.loads(text)["type"] if text else message["type"])
            if message.get("bytes") or "audio.delta" in text:
                await asyncio.Event().wait()

        scope: dict[str, object] = {"type": "websocket", "path": path, "headers": [], "query_string": b""}
        scope |= {"asgi": {"version": "3.0"}, "subprotocols": [], "scheme": "ws", "server": ("x", 1)}
        await asyncio.wait_for(app(scope, receive, send), 60)
        app.state.legato.bridge.close()
        return sent

    assert asyncio.run(stalled_client())[-1] == "websocket.close"
    wait_for(lambda: slots_free(pinging.tts), seconds=20)


class StalledWriter:
    """`StreamWriter` of a client that accepts no data."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: object) -> None:
        """Accept into the buffer."""

    def writelines(self, data: object) -> None:
        """Accept into the buffer."""

    async def drain(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True


def test_wyoming_client_that_accepts_no_data_is_dropped(reader: Running) -> None:
    async def stalled_client(tts: Legato) -> bool:
        app = create_app(tts, ServerConfig(stall_s=0.3, warm_up=False))
        state = app.state.legato
        incoming, writer = asyncio.StreamReader(), StalledWriter()
        event = Synthesize("A text that is never received.").event()
        incoming.feed_data(json.dumps({"type": event.type, "data": event.data}).encode() + b"\n")
        request = SpeechRequest()
        async with SessionRunner(state, "wyoming", request, limits_of(state, request, buffer_ms=BUFFER_MS)) as session:
            connection = WyomingConnection(state, session, incoming, writer)  # type: ignore[arg-type]
            await asyncio.wait_for(connection.run(), 60)
        state.bridge.close()
        return writer.closed

    assert asyncio.run(stalled_client(reader.tts))
    wait_for(lambda: slots_free(reader.tts), seconds=20)


def test_wyoming_client_that_stops_sending_text_is_dropped(reader: Running, wyoming: int) -> None:
    """Its open utterance holds a slot until `idle_s` has passed."""
    with socket.create_connection(("127.0.0.1", wyoming)) as raw:
        raw.sendall(b'{"type": "synthesize-start"}\n{"type": "synthesize-chunk", "data": {"text": "Half a"}}\n')
        wait_for(lambda: reader.tts.stats().streams_open == 1)
        wait_for(lambda: slots_free(reader.tts), seconds=30)
