"""Positions on the wire count samples at the output rate, exactly: chunks, play positions and reports.

In simulated time (`simulation.py`); the samples are zeros, and only their numbers matter.
"""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from legato.server.dashscope.socket import RealtimeSocket
from legato.server.session_json import convert_samples
from legato.server.speech_ws.socket import SpeechSocket
from tests.conftest import TinyCheckpoint
from tests.server.simulation import SimulatedSocket, Simulation

RATES_HZ = (8_000, 12_000, 16_000, 22_050, 24_000, 44_100, 48_000)
MODEL_HZ = 24_000
FRAME = 1920
FRAMES = 23


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("tiny-custom-voice")


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("packets", [[1, 2, 4], [1], [3, 5]])
def test_audio_chunks_are_contiguous_at_the_output_rate(checkpoint: Path, rate_hz: int, packets: list[int]) -> None:
    simulation = Simulation(checkpoint)

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(SpeechSocket)
        options = {"max_new_tokens": FRAMES, "sample_rate": rate_hz, "packet_frames": packets}
        socket.put({"type": "session.config", "voice": "ryan", "audio_transport": "base64", **options})
        socket.put({"type": "input.text", "text": "Hello there."})
        socket.put({"type": "session.close"})
        await closed
        return socket

    socket = simulation.run(client())
    sent = 0
    for chunk in socket.of("audio.chunk"):
        assert chunk["first_sample"] == sent
        assert chunk["samples"] == len(base64.b64decode(chunk["audio_b64"])) // 2
        sent += chunk["samples"]
    (done,) = socket.of("audio.done")
    assert done["samples"] == sent == FRAMES * FRAME * rate_hz // MODEL_HZ
    assert done["total_bytes"] == 2 * sent


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("played", [0, 1, 777, 1501])
def test_play_position_of_the_speech_socket_is_at_the_output_rate(checkpoint: Path, rate_hz: int, played: int) -> None:
    simulation = Simulation(checkpoint)

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(SpeechSocket)
        socket.put({"type": "session.config", "voice": "ryan", "max_new_tokens": 100, "sample_rate": rate_hz})
        socket.put({"type": "input.text", "text": "A text that is interrupted."})
        socket.put({"type": "input.done"})
        await asyncio.sleep(2.0)
        position = {"utterance_index": 0, "played_through_sample": played}
        socket.put({"type": "input.cancel", **position})
        socket.put({"type": "session.close"})
        await closed
        return socket

    socket = simulation.run(client())
    (report,) = socket.of("input.cancelled")[0]["utterances"]
    assert (report["sample_rate"], report["played_by"]) == (rate_hz, "acknowledged")
    # Never more than the client said; up to one sample of the model less, which is up to two of the output.
    assert played - 2 <= report["played_samples"] <= played
    assert report["played_samples"] == played or rate_hz > MODEL_HZ or MODEL_HZ % rate_hz
    assert report["sent_samples"] > 2 * rate_hz


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 48_000])
def test_play_position_of_the_realtime_socket_is_at_the_output_rate(checkpoint: Path, rate_hz: int) -> None:
    simulation = Simulation(checkpoint)

    async def client() -> SimulatedSocket:
        socket, closed = simulation.connect(RealtimeSocket)
        socket.put({"type": "session.update", "session": {"max_new_tokens": 100, "sample_rate": rate_hz}})
        socket.put({"type": "input_text_buffer.append", "text": "A text that is interrupted."})
        socket.put({"type": "input_text_buffer.commit"})
        await asyncio.sleep(2.0)
        socket.put({"type": "response.cancel", "played_through_sample": rate_hz // 2})
        socket.put({"type": "session.finish"})
        await closed
        return socket

    socket = simulation.run(client())
    (done,) = socket.of("response.done")
    details = done["response"]["status_details"]
    assert (details["played_samples"], details["played_by"]) == (rate_hz // 2, "acknowledged")
    assert details["sent_samples"] > 2 * rate_hz


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_client_that_played_everything_never_claims_more_than_was_sent(rate_hz: int) -> None:
    for sent in (*range(1, 50), FRAME - 1, FRAME, 23 * FRAME + 7):
        at_client = convert_samples(sent, from_hz=MODEL_HZ, to_hz=rate_hz)
        assert convert_samples(at_client, from_hz=rate_hz, to_hz=MODEL_HZ) <= sent
        assert at_client * MODEL_HZ <= sent * rate_hz < (at_client + 1) * MODEL_HZ
