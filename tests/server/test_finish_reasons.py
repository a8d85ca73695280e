"""The finish reason is visible on every route, so that a client can tell a whole text from one that was cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from wyoming.event import async_read_event

from legato.server.dashscope.socket import RealtimeSocket
from legato.server.speech_ws.socket import SpeechSocket
from legato.server.wyoming.server import WyomingConnection
from legato.session.playback import PlaybackLimits
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, wait_for
from tests.server.simulation import Faults, SimulatedSocket, Simulation
from tests.server.test_utterance_ends import Writer, wyoming_bytes, wyoming_event

LIMITS = {"max_frames": 5, "budget": 0, "silence": 0}
"""Finish reason -> `max_new_tokens` with which the simulated model, which never stops by itself, ends so."""


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("tiny-custom-voice")


TEXT = "Hello there, this is a text of some length."


def simulated(checkpoint: Path, reason: str) -> Simulation:
    return Simulation(checkpoint, faults=Faults(level=0.0 if reason == "silence" else 0.1))


def talk(
    checkpoint: Path, reason: str, protocol: Callable[..., object], *messages: dict[str, object]
) -> SimulatedSocket:
    simulation = simulated(checkpoint, reason)

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(protocol)  # type: ignore[arg-type]
        for message in messages:
            socket.put(message)
        await closed
        return socket

    return simulation.run(client())


@pytest.mark.parametrize("reason", LIMITS)
def test_speech_socket(checkpoint: Path, reason: str) -> None:
    config = {"type": "session.config", "voice": "ryan", "max_new_tokens": LIMITS[reason]}
    text: dict[str, object] = {"type": "input.text", "text": TEXT}
    socket = talk(checkpoint, reason, SpeechSocket, config, text, {"type": "session.close"})
    assert [message["finish_reason"] for message in socket.of("audio.done")] == [reason]


@pytest.mark.parametrize("reason", LIMITS)
@pytest.mark.parametrize("mode", ["commit", "server_commit"])
def test_realtime_socket_says_incomplete(checkpoint: Path, reason: str, mode: str) -> None:
    session = {"voice": "ryan", "mode": mode, "max_new_tokens": LIMITS[reason]}
    socket = talk(
        checkpoint,
        reason,
        RealtimeSocket,
        {"type": "session.update", "session": session},
        {"type": "input_text_buffer.append", "text": TEXT},
        {"type": "session.finish"},
    )
    (done,) = socket.of("response.done")
    response = done["response"]
    assert (response["status"], response["finish_reason"]) == ("incomplete", reason)
    assert response["status_details"] == {"type": "incomplete", "reason": reason}
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    (item,) = socket.of("response.output_item.done")
    assert item["item"]["status"] == "incomplete"


@pytest.mark.parametrize(("text", "reason"), [(TEXT, "budget"), (TEXT, "silence"), ("!!", "failed")])
@pytest.mark.parametrize("streamed", [False, True])
def test_wyoming(checkpoint: Path, text: str, reason: str, streamed: bool) -> None:
    simulation = simulated(checkpoint, reason)
    kinds = ("synthesize-start", "synthesize-chunk", "synthesize-stop") if streamed else ("synthesize",)

    async def client() -> list[tuple[str, object]]:
        reader, writer = asyncio.StreamReader(), Writer()
        limits = PlaybackLimits(sample_rate_hz=24_000, frame_samples=1920, buffer_ms=30_000)
        async with simulation.session("wyoming", limits) as session:
            connection = WyomingConnection(simulation.state, session, reader, writer)  # type: ignore[arg-type]
            served = asyncio.create_task(connection.run())
            for kind in kinds:
                reader.feed_data(b"".join(wyoming_bytes(wyoming_event(kind, text))))
            await asyncio.sleep(100.0)
            reader.feed_eof()
            await served
        found: list[tuple[str, object]] = []
        while (event := await async_read_event(writer.received)) is not None:
            if event.type in ("audio-stop", "synthesize-stopped"):
                found.append((event.type, event.data.get("finish_reason")))
        return found

    stopped = [("synthesize-stopped", reason)] if streamed else []
    assert simulation.run(client()) == [("audio-stop", reason), *stopped]


BODY = {"input": "Some words.", "voice": "ryan", "max_new_tokens": 3, "response_format": "pcm"}


def test_http_events_headers_and_request_record(speaker: Running) -> None:
    with httpx.Client(base_url=speaker.url, timeout=60) as web:
        events = web.post("/v1/audio/speech", json={**BODY, "stream_format": "sse"}).text
        done = json.loads(events.strip().rpartition("data: ")[2])
        assert (done["type"], done["finish_reason"]) == ("speech.audio.done", "max_frames")
        whole = web.post("/v1/audio/speech", json={**BODY, "stream": False})
        assert whole.headers["X-Finish-Reason"] == "max_frames"
        streamed = web.post("/v1/audio/speech", json=BODY)
        record = web.get(f"/v1/requests/{streamed.headers['X-Request-Id']}").json()
        assert record["finish_reason"] == "max_frames"


def test_python_client_and_metrics(speaker: Running) -> None:
    assert speaker.tts.say("Some words.", voice="ryan", max_frames=3).finish_reason.value == "max_frames"
    with httpx.Client(base_url=speaker.url, timeout=60) as web:
        # The engine retires a stream, and counts it, shortly after its last packet.
        wait_for(lambda: 'legato_streams_total{finish_reason="max_frames"' in web.get("/metrics").text)
