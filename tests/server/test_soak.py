"""A short soak in the test's own process; `python -m tests.server.soak` is the long one, with figures."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for
from tests.server.soak import Ask, Outcome, asks, deterministic, soak, visit, watched_health
from tests.server.test_voices import recording

ROUNDS, STREAMS = 3, 10


@pytest.fixture(scope="module")
def steady(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    with deterministic(tiny_checkpoint("tiny-custom-voice")) as tts, running(tts, ServerConfig()) as server:
        yield server


def test_survivors_are_whole_and_nothing_is_left_behind(steady: Running) -> None:
    visit(steady.url, Ask("Warm.", 0, 2, "socket", -1))
    threads = threading.active_count()
    outcome = soak(steady.url, ROUNDS, STREAMS, pid=os.getpid())
    assert outcome.wrong == []
    assert outcome.whole + outcome.left == ROUNDS * STREAMS
    assert min(outcome.whole, outcome.left) > 5
    assert outcome.health_s, "health was not answered"
    wait_for(lambda: slots_free(steady.tts))
    wait_for(lambda: not steady.state.bridge.streams)
    assert threading.active_count() <= threads + 4, "the bridge has four threads, and nobody else has any"


def test_control_another_sound_would_be_noticed(steady: Running) -> None:
    heard = visit(steady.url, Ask("One text.", 1, 4, "bytes", -1))
    assert len(heard) == 2 * 4 * 1920
    assert visit(steady.url, Ask("One text.", 2, 4, "events", -1)) != heard
    assert visit(steady.url, Ask("One text.", 1, 4, "socket", -1)) == heard


def test_the_visits_are_the_same_each_time_and_of_every_kind() -> None:
    assert list(asks(2, 20)) == list(asks(2, 20))
    kinds = {(ask.route, ask.stays) for each in asks(2, 20) for ask in each}
    assert len(kinds) == 6
    assert Outcome(health_s=[0.001, 0.002, 0.5]).health_percentile_ms(99) == 500


def test_health_is_answered_while_a_recording_is_read_and_sound_is_coded(cloner: Running) -> None:
    """Row R64 of the known faults. The bound is for the median, because any single answer may wait for a busy core."""
    client = cloner.client()
    health_s: list[float] = []
    client.upload_voice("Ann", recording(140), transcript="Said in it.")
    with ThreadPoolExecutor(8) as pool, watched_health(cloner.url, health_s):
        spoken = [pool.submit(_speak, cloner, number) for number in range(8)]
        client.upload_voice("Bob", recording(220, seconds=30.0), transcript="A long one.")
        assert all(each.result() for each in spoken)
    for name in ("Ann", "Bob"):
        client.delete_voice(name)
    assert sorted(health_s)[len(health_s) // 2] < 0.1


def _speak(server: Running, number: int) -> bytes:
    options = {"voice": "Ann", "seed": number, "max_new_tokens": 6}
    with server.client().speak("Words.", response_format="mp3", **options) as body:
        return body.read()
