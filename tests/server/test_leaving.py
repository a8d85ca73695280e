"""Clients that disconnect, queue, exceed the limits or stop reading: slots are released, and others are unaffected."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.types import Message

from legato.api import Legato
from legato.client.http import Client, IncompleteResponseError, ServerError
from legato.config.server import ServerConfig
from legato.engine.core import EngineCore
from legato.engine.request import SpeechRequest
from legato.engine.stream import Command
from legato.server.bridge import Bridge
from tests.server.running import Running, running, slots_free, wait_for

LONG = "One more word and " * 12


@pytest.fixture(autouse=True)
def _empty(speaker: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test must release all slots. The engine is slowed down, or it could finish before the client disconnects."""
    step = EngineCore.step

    def slow(self: EngineCore, commands: Iterable[Command]) -> bool:
        time.sleep(0.004)
        return step(self, commands)

    monkeypatch.setattr(EngineCore, "step", slow)
    yield
    wait_for(lambda: slots_free(speaker.tts))


def stopped_at(tts: Legato) -> int:
    """Frames generated until all slots were free. That must happen soon, and no frame may follow."""
    wait_for(lambda: slots_free(tts), seconds=20)
    frames = tts.stats().frames
    time.sleep(0.2)
    assert tts.stats().frames == frames
    return frames


@pytest.mark.parametrize("route", ["bytes", "events"])
def test_disconnect_from_stream_cancels_it(speaker: Running, route: str) -> None:
    before = speaker.tts.stats().frames
    client = speaker.client()
    speak = client.speak if route == "bytes" else client.speak_events
    with speak(LONG, voice="ryan", max_new_tokens=150) as body:
        next(iter(body))
    assert stopped_at(speaker.tts) - before < 140
    wait_for(lambda: client.request(body.request_id)["status"] == "cancelled")
    assert client.request(body.request_id)["finish_reason"] == "cancelled"


def test_disconnect_before_complete_file_cancels_it(speaker: Running) -> None:
    before = speaker.tts.stats().frames
    body = b'{"input": "' + LONG.encode() + b'", "voice": "ryan", "max_new_tokens": 150, "stream": false}'
    with socket.create_connection(("127.0.0.1", speaker.port)) as raw:
        head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        raw.sendall(head.encode() + body)
        wait_for(lambda: speaker.tts.stats().frames > before)
    assert stopped_at(speaker.tts) - before < 140


def test_disconnect_in_queue_releases_place(speaker: Running) -> None:
    with (
        speaker.client().speak(LONG, voice="ryan", max_new_tokens=150) as one,
        speaker.client().speak(LONG, voice="ryan", max_new_tokens=150) as two,
    ):
        with socket.create_connection(("127.0.0.1", speaker.port)) as raw:
            body = b'{"input": "waiting", "voice": "ryan"}'
            head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(head.encode() + body)
            wait_for(lambda: speaker.tts.stats().streams_open == 3)
        wait_for(lambda: speaker.tts.stats().streams_open == 2)
        assert next(iter(one))
        assert next(iter(two))


def test_ten_clients_with_limit_of_four(speaker: Running) -> None:
    """Two are served, two queue, six get Retry-After; accepted clients receive complete audio."""
    all_ready = threading.Barrier(10)

    def send_request(number: int) -> int | ServerError:
        all_ready.wait()
        try:
            with speaker.client().speak(LONG, voice="ryan", max_new_tokens=12, seed=number) as body:
                return len(body.read())
        except ServerError as error:
            return error

    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(send_request, range(10)))
    rejected = [each for each in outcomes if isinstance(each, ServerError)]
    lengths = [each for each in outcomes if isinstance(each, int)]
    assert lengths == [12 * 1920 * 2] * len(lengths)
    assert len(lengths) >= 4
    assert rejected, "ten clients at once were all accepted"
    assert {(each.status, each.code, each.retry_after_s) for each in rejected} == {(429, "queue_full", 1.0)}


def test_requests_with_equal_or_missing_ids_are_independent(speaker: Running) -> None:
    """The server ignores ids from clients: each request gets its own audio and its own id."""
    expected = [speaker.tts.say(f"Number {n}.", voice="ryan", seed=n, max_frames=4).samples for n in range(4)]

    def send_request(n: int) -> tuple[str, bytes]:
        client = speaker.client()
        client.headers["X-Request-Id"] = "" if n % 2 else "mine"
        with client.speak(f"Number {n}.", voice="ryan", seed=n, max_new_tokens=4) as body:
            return body.request_id, body.read()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send_request, range(4)))
    assert len({request_id for request_id, _ in answers}) == 4
    for (_, data), samples in zip(answers, expected, strict=True):
        assert np.abs(np.frombuffer(data, "<i2") / 32768 - np.clip(samples, -1, 1)).max() < 1e-4


def test_slow_reader_pauses_generation_and_catches_up(speaker: Running) -> None:
    """Through the bridge: generation stops while nothing is read, then delivers everything."""

    async def slow_reader() -> tuple[int, int]:
        bridge = Bridge(speaker.tts, ahead_frames=8)
        request = SpeechRequest(voice="ryan", max_frames=40, packet_frames=(1,))
        async with await bridge.open(request, LONG) as stream:
            for _ in range(600):
                await asyncio.sleep(0.02)
                generated = stream.frames
                if generated > 8 and await stopped(speaker.tts):
                    break
            total = sum([packet.frames async for packet in stream])
        bridge.close()
        return generated, total

    async def stopped(tts: Legato) -> bool:
        before = tts.stats().frames
        await asyncio.sleep(0.5)
        return tts.stats().frames == before

    generated, total = asyncio.run(slow_reader())
    assert 8 < generated < 30
    assert total == 40


def test_client_that_accepts_no_data_is_dropped(speaker: Running) -> None:
    """A socket that accepts no byte: the stream is cancelled after `stall_s`."""

    async def stalled_client() -> list[str]:
        from legato.server.app import create_app

        app = create_app(speaker.tts, ServerConfig(stall_s=0.2, warm_up=False))
        app.state.legato.readiness.warm = True
        kinds: list[str] = []
        requests = [
            {"type": "http.request", "body": b'{"input": "Hello there.", "voice": "ryan", "response_format": "pcm"}'}
        ]

        async def receive() -> Message:
            if requests:
                return requests.pop()
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

    assert asyncio.run(stalled_client()) == ["http.response.start", "http.response.body"]


def test_error_after_first_audio_aborts_body(tiny_checkpoint_server: Running) -> None:
    """An incomplete body is recognizable: its connection is aborted."""
    server = tiny_checkpoint_server
    with server.client().speak(LONG, voice="ryan", max_new_tokens=150) as body:
        pieces = iter(body)
        next(pieces)
        server.tts.close()
        with pytest.raises(IncompleteResponseError):
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


def test_health_responds_while_all_slots_generate(speaker: Running) -> None:
    """Encoding and generation do not block the event loop. The bound allows for a busy machine."""
    elapsed_s: list[float] = []
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
            elapsed_s.append(time.perf_counter() - began_s)
        for reader in readers:
            reader.join()
    assert sorted(elapsed_s)[len(elapsed_s) // 2] < 0.1
