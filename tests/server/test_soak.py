"""A short soak test in the test process. `python -m tests.server.soak` runs the long one and prints its results."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import recording
from tests.server.running import Running, running, slots_free, wait_for
from tests.server.soak import (
    SoakRequest,
    SoakResult,
    load_deterministic,
    run_request,
    soak,
    soak_requests,
    watched_health,
)

ROUNDS, STREAMS = 3, 10


@pytest.fixture(scope="module")
def server(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    with (
        load_deterministic(tiny_checkpoint("tiny-custom-voice")) as tts,
        running(tts, ServerConfig()) as started,
    ):
        yield started


def test_complete_streams_are_correct_and_nothing_leaks(server: Running) -> None:
    run_request(server.url, SoakRequest("Warm.", 0, 2, "socket", None))
    threads = threading.active_count()
    result = soak(server.url, ROUNDS, STREAMS, pid=os.getpid())
    assert result.mismatches == []
    assert result.complete + result.disconnected == ROUNDS * STREAMS
    assert min(result.complete, result.disconnected) > 5
    assert result.health_s, "/health did not respond"
    wait_for(lambda: slots_free(server.tts))
    wait_for(lambda: not server.state.bridge.streams)
    assert threading.active_count() <= threads + 4, "only the four threads of the bridge may remain"


def test_control_different_audio_is_detected(server: Running) -> None:
    received = run_request(server.url, SoakRequest("One text.", 1, 4, "bytes", None))
    assert len(received) == 2 * 4 * 1920
    assert run_request(server.url, SoakRequest("One text.", 2, 4, "events", None)) != received
    assert run_request(server.url, SoakRequest("One text.", 1, 4, "socket", None)) == received


def test_soak_requests_are_reproducible_and_cover_all_kinds() -> None:
    assert list(soak_requests(2, 20)) == list(soak_requests(2, 20))
    kinds = {(request.route, request.stays) for each in soak_requests(2, 20) for request in each}
    assert len(kinds) == 6
    assert SoakResult(health_s=[0.001, 0.002, 0.5]).health_percentile_ms(99) == 500


def test_health_responds_during_reference_decoding_and_encoding(cloner: Running) -> None:
    """Row R64 of docs/faults.md. The bound applies to the median, because one response may wait for a busy core."""
    client = cloner.client()
    health_s: list[float] = []
    client.upload_voice("Ann", recording(140), transcript="Said in it.")
    with ThreadPoolExecutor(8) as pool, watched_health(cloner.url, health_s):
        answers = [pool.submit(_speak, cloner, number) for number in range(8)]
        client.upload_voice("Bob", recording(220, seconds=30.0), transcript="A long one.")
        assert all(each.result() for each in answers)
    for name in ("Ann", "Bob"):
        client.delete_voice(name)
    assert sorted(health_s)[len(health_s) // 2] < 0.1


def _speak(server: Running, number: int) -> bytes:
    options = {"voice": "Ann", "seed": number, "max_new_tokens": 6}
    with server.client().speak("Words.", response_format="mp3", **options) as body:
        return body.read()
