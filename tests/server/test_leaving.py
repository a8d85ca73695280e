"""Clients that leave, wait, crowd or sleep: their rows come back at once, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.types import Message

from legato.api import Legato
from legato.client.http import BrokenOffError, Client, ServerError
from legato.config.server import ServerConfig
from legato.engine.resolve import SpeechRequest
from legato.server.bridge import Bridge
from tests.server.running import Running, running, slots_free, wait_for

LONG = "One more word and " * 12


@pytest.fixture(autouse=True)
def _empty(speaker: Running) -> Iterator[None]:
    yield
    wait_for(lambda: slots_free(speaker.tts))


def stopped_at(tts: Legato) -> int:
    """Frames that were made when everything was given back; it must not take long, and no frame may follow."""
    wait_for(lambda: slots_free(tts), seconds=20)
    frames = tts.stats().frames
    time.sleep(0.2)
    assert tts.stats().frames == frames
    return frames


@pytest.mark.parametrize("route", ["bytes", "events"])
def test_leaving_a_stream_stops_it(speaker: Running, route: str) -> None:
    before = speaker.tts.stats().frames
    client = speaker.client()
    speak = client.speak if route == "bytes" else client.speak_events
    with speak(LONG, voice="ryan", max_new_tokens=150) as body:
        next(iter(body))
    assert stopped_at(speaker.tts) - before < 140
    wait_for(lambda: client.request(body.request_id)["status"] == "cancelled")
    assert client.request(body.request_id)["finish_reason"] == "cancelled"


def test_leaving_before_the_answer_of_a_whole_file_stops_it(speaker: Running) -> None:
    before = speaker.tts.stats().frames
    body = b'{"input": "' + LONG.encode() + b'", "voice": "ryan", "max_new_tokens": 150, "stream": false}'
    with socket.create_connection(("127.0.0.1", speaker.port)) as raw:
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        wait_for(lambda: speaker.tts.stats().frames > before)
    assert stopped_at(speaker.tts) - before < 140


def test_leaving_the_queue_gives_the_place_back(speaker: Running) -> None:
    with (
        speaker.client().speak(LONG, voice="ryan", max_new_tokens=150) as one,
        speaker.client().speak(LONG, voice="ryan", max_new_tokens=150) as two,
    ):
        with socket.create_connection(("127.0.0.1", speaker.port)) as raw:
            body = b'{"input": "waiting", "voice": "ryan"}'
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
            wait_for(lambda: speaker.tts.stats().streams_open == 3)
        wait_for(lambda: speaker.tts.stats().streams_open == 2)
        assert next(iter(one))
        assert next(iter(two))


def test_ten_clients_on_a_limit_of_four(speaker: Running) -> None:
    """Two speak, two wait, six are told when to come back; those who were let in hear all of it."""
    everybody_in = threading.Barrier(10)

    def visit(number: int) -> int | ServerError:
        everybody_in.wait()
        try:
            with speaker.client().speak(LONG, voice="ryan", max_new_tokens=12, seed=number) as body:
                return len(body.read())
        except ServerError as error:
            return error

    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(visit, range(10)))
    refused = [each for each in outcomes if isinstance(each, ServerError)]
    heard = [each for each in outcomes if isinstance(each, int)]
    assert heard == [12 * 1920 * 2] * len(heard)
    assert len(heard) >= 4
    assert refused, "ten at once were all let in"
    assert {(each.status, each.code, each.retry_after_s) for each in refused} == {(429, "queue_full", 1.0)}


def test_requests_with_the_same_or_no_id_do_not_meet(speaker: Running) -> None:
    """A client's own ids mean nothing to the server: each of four gets what it asked for, under an id of its own."""
    alone = [speaker.tts.say(f"Number {n}.", voice="ryan", seed=n, max_frames=4).samples for n in range(4)]

    def visit(n: int) -> tuple[str, bytes]:
        client = speaker.client()
        client.headers["X-Request-Id"] = "" if n % 2 else "mine"
        with client.speak(f"Number {n}.", voice="ryan", seed=n, max_new_tokens=4) as body:
            return body.request_id, body.read()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(visit, range(4)))
    assert len({request_id for request_id, _ in answers}) == 4
    for (_, data), samples in zip(answers, alone, strict=True):
        assert np.abs(np.frombuffer(data, "<i2") / 32768 - np.clip(samples, -1, 1)).max() < 1e-4


def test_a_reader_who_sleeps_is_held_back_and_catches_up(speaker: Running) -> None:
    """At the bridge: nothing is taken, so generation stops; then all of it is there."""

    async def sleepy() -> tuple[int, int]:
        bridge = Bridge(speaker.tts, ahead_frames=8)
        asked = SpeechRequest(voice="ryan", max_frames=40, packet_frames=(1,))
        async with await bridge.open(asked, LONG) as stream:
            for _ in range(600):
                await asyncio.sleep(0.02)
                made = stream.frames
                if made > 8 and await no_more(speaker.tts):
                    break
            total = sum([packet.frames async for packet in stream])
        bridge.close()
        return made, total

    async def no_more(tts: Legato) -> bool:
        before = tts.stats().frames
        await asyncio.sleep(0.5)
        return tts.stats().frames == before

    made, total = asyncio.run(sleepy())
    assert 8 < made < 30
    assert total == 40


def test_a_client_that_takes_nothing_is_dropped(speaker: Running) -> None:
    """A socket that accepts no byte: after `stall_s` the stream is over."""

    async def stuck() -> list[str]:
        from legato.server.app import create_app

        app = create_app(speaker.tts, ServerConfig(stall_s=0.2, warm_up=False))
        app.state.legato.readiness.warm = True
        kinds: list[str] = []
        asked = [
            {"type": "http.request", "body": b'{"input": "Hello there.", "voice": "ryan", "response_format": "pcm"}'}
        ]

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            kinds.append(message["type"])
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        scope: dict[str, object] = {"type": "http", "method": "POST", "path": "/v1/audio/speech", "headers": []}
        scope |= {
            "query_string": b"",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "server": ("x", 1),
        }
        await asyncio.wait_for(app(scope, receive, send), 30)
        app.state.legato.bridge.close()
        return kinds

    assert asyncio.run(stuck()) == ["http.response.start", "http.response.body"]


def test_an_error_after_the_first_sound_breaks_the_body_off(tiny_checkpoint_server: Running) -> None:
    """Nobody takes a part for the whole: bytes end without their end, events say so."""
    server = tiny_checkpoint_server
    with server.client().speak(LONG, voice="ryan", max_new_tokens=150) as body:
        pieces = iter(body)
        next(pieces)
        server.tts.close()
        with pytest.raises(BrokenOffError):
            list(pieces)
    with pytest.raises(ServerError) as refused:
        server.client().speak("After.", voice="ryan")
    assert refused.value.status == 503


@pytest.fixture
def tiny_checkpoint_server(tiny_checkpoint: object) -> Iterator[Running]:
    from legato.api import load

    assert callable(tiny_checkpoint)
    with load(tiny_checkpoint("tiny-custom-voice")) as tts, running(tts, ServerConfig(warm_up=False)) as server:
        yield server


def test_health_answers_while_everybody_speaks(speaker: Running) -> None:
    """Encoding and generation are off the loop: health is answered meanwhile. Bounds leave room for a busy machine."""
    spent: list[float] = []
    with (
        speaker.client().speak(LONG, response_format="mp3", voice="ryan", max_new_tokens=150) as one,
        speaker.client().speak(LONG, response_format="opus", voice="ryan", max_new_tokens=150) as two,
    ):
        readers = [threading.Thread(target=lambda body=body: next(iter(body))) for body in (one, two)]
        for reader in readers:
            reader.start()
        client = Client(speaker.url)
        for _ in range(30):
            began_s = time.perf_counter()
            assert client.health()
            spent.append(time.perf_counter() - began_s)
        for reader in readers:
            reader.join()
    assert sorted(spent)[len(spent) // 2] < 0.1
