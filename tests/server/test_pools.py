"""Work of one kind does not hold up another: clones, stopped ffmpeg processes, clients that leave meanwhile."""

from __future__ import annotations

import asyncio
import base64
import io
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import soundfile

from legato.api import Legato, load
from legato.audio import aac
from legato.audio.aac import AacEncoder
from legato.client.http import IncompleteResponseError, ServerError
from legato.client.socket import SpeechClient
from legato.config.server import ServerConfig
from legato.errors import GenerationError
from legato.server.bridge import THREADS, Bridge, Pool
from legato.types import Packet, StreamId
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, slots_free, wait_for

BLOCKED_S = 3.0
GAP_S = 1.5
FRAMES = 60
"""More audio than a pipe holds."""
TEXT = "Words and words. " * 10

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")


@pytest.fixture(scope="module")
def server(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    config = ServerConfig(model_id="tiny", warm_up=False)
    with load(tiny_checkpoint("tiny-custom-voice"), max_num_seqs=8, max_seq_len=512) as tts, running(tts, config) as up:
        yield up


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every ffmpeg of an AAC encoder is stopped when it starts."""
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def stopped(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(*arguments, **options)  # type: ignore[call-overload]
        process.send_signal(signal.SIGSTOP)
        started.append(process)
        return process

    monkeypatch.setattr(aac.subprocess, "Popen", stopped)  # type: ignore[attr-defined]
    yield started
    for process in started:
        process.kill()


@contextmanager
def background(count: int, job: Callable[[], object]) -> Iterator[None]:
    threads = [threading.Thread(target=job, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(60)


def speak(server: Running, response_format: str, frames: int = FRAMES) -> bytes:
    with server.client().speak(TEXT, voice="ryan", response_format=response_format, max_new_tokens=frames) as response:
        return response.read()


def recording() -> str:
    """Two seconds of a tone as a WAV file in base64."""
    file = io.BytesIO()
    soundfile.write(file, 0.2 * np.sin(np.arange(48_000) / 20), 24_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


def idle(server: Running) -> bool:
    return slots_free(server.tts) and not any(server.state.bridge.jobs().values())


def test_listener_has_no_gap_while_six_clones_are_encoded(
    tiny_checkpoint: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one pool for everything, the packets of the listener waited behind the recordings."""
    voice = recording()
    encoding = threading.Semaphore(0)
    open_stream = Legato.open

    def slow_open(tts: Legato, *arguments: object, **options: object) -> object:
        encoding.release()
        time.sleep(BLOCKED_S)
        return open_stream(tts, *arguments, **options)  # type: ignore[arg-type]

    def clone() -> None:
        with cloner.client().speak("Mine.", ref_audio=voice, ref_text="x", max_new_tokens=3) as response:
            response.read()

    config = ServerConfig(model_id="tiny", warm_up=False)
    with (
        load(tiny_checkpoint("tiny-base"), max_num_seqs=8, max_seq_len=1024) as tts,
        running(tts, config) as cloner,
        cloner.client().speak(TEXT, ref_audio=voice, ref_text="x", max_new_tokens=600) as listener,
    ):
        pieces = iter(listener)
        next(pieces)
        monkeypatch.setattr(Legato, "open", slow_open)
        with background(6, clone):
            assert encoding.acquire(timeout=20)
            gaps, last_s = [], time.monotonic()
            for _piece in pieces:
                gaps.append(time.monotonic() - last_s)
                last_s = time.monotonic()
                time.sleep(0.005)
            assert cloner.state.bridge.jobs()["reference"] > THREADS[Pool.REFERENCE]
        assert max(gaps) < GAP_S


@needs_ffmpeg
@pytest.mark.parametrize("count", [4, 6])
def test_pcm_and_mp3_go_on_while_ffmpeg_processes_are_stopped(
    server: Running, processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(aac, "PIPE_TIMEOUT_S", 4.0)
    failures: list[Exception] = []

    def stuck() -> None:
        try:
            speak(server, "aac")
        except (ServerError, IncompleteResponseError) as error:
            failures.append(error)

    with background(count, stuck):
        wait_for(lambda: server.state.bridge.jobs()["ffmpeg"] >= 4)
        for response_format in ("pcm", "mp3", "wav", "flac", "opus"):
            started_s = time.monotonic()
            assert speak(server, response_format)
            assert time.monotonic() - started_s < 3
    assert len(failures) == count
    wait_for(lambda: idle(server))
    assert all(process.poll() is not None for process in processes)


@needs_ffmpeg
def test_client_that_left_frees_its_thread_and_kills_its_ffmpeg(
    server: Running, processes: list[subprocess.Popen[bytes]]
) -> None:
    body = f'{{"input": "{TEXT}", "voice": "ryan", "response_format": "aac", "max_new_tokens": {FRAMES}}}'.encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_for(lambda: server.state.bridge.jobs()["ffmpeg"] == 1)
        time.sleep(0.5)
    left_s = time.monotonic()
    wait_for(lambda: idle(server) and processes[0].poll() is not None)
    assert time.monotonic() - left_s < aac.PIPE_TIMEOUT_S / 2


@needs_ffmpeg
def test_socket_client_that_left_kills_its_ffmpeg(server: Running, processes: list[subprocess.Popen[bytes]]) -> None:
    async def leave() -> None:
        url = server.url.replace("http", "ws")
        options = {"voice": "ryan", "response_format": "aac", "max_new_tokens": FRAMES}
        async with SpeechClient(url, options) as client:
            await client.write(TEXT)
            await client.done()
            await asyncio.sleep(0.1)
            while server.state.bridge.jobs()["ffmpeg"] != 1:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 60))
    left_s = time.monotonic()
    wait_for(lambda: idle(server) and processes[0].poll() is not None)
    assert time.monotonic() - left_s < aac.PIPE_TIMEOUT_S / 2


def packet(first_sample: int, samples: int) -> Packet:
    return Packet(
        stream=StreamId(0),
        first_sample=first_sample,
        frames=1,
        sample_rate_hz=24_000,
        float32_le=np.zeros(samples, "<f4").tobytes(),
        last=False,
        finish_reason=None,
    )


@needs_ffmpeg
def test_encoder_of_a_stopped_ffmpeg_fails_in_time(
    processes: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aac, "PIPE_TIMEOUT_S", 0.3)
    writing = AacEncoder(24_000)
    with pytest.raises(GenerationError, match="accepted no data"):
        writing.encode(packet(0, 100_000))
    finishing = AacEncoder(24_000)
    finishing.encode(packet(0, 1_000))
    with pytest.raises(GenerationError, match="did not exit"):
        finishing.finish()
    assert all(process.poll() is not None for process in processes)


@needs_ffmpeg
def test_abort_frees_a_blocked_write(processes: list[subprocess.Popen[bytes]]) -> None:
    encoder = AacEncoder(24_000)
    threading.Timer(0.3, encoder.abort).start()
    started_s = time.monotonic()
    with pytest.raises(GenerationError):
        encoder.encode(packet(0, 100_000))
    assert time.monotonic() - started_s < aac.PIPE_TIMEOUT_S / 2
    assert processes[0].poll() is not None


def test_cancelled_work_that_waits_for_a_thread_never_starts(server: Running) -> None:
    async def run() -> list[int]:
        bridge = Bridge(server.tts)
        release = threading.Event()
        ran: list[int] = []
        blocking = [
            asyncio.create_task(bridge.in_thread(Pool.DISK, release.wait, 30)) for _ in range(THREADS[Pool.DISK])
        ]
        waiting = [asyncio.create_task(bridge.in_thread(Pool.DISK, ran.append, number)) for number in range(3)]
        await asyncio.sleep(0.05)
        assert bridge.jobs()["disk"] == THREADS[Pool.DISK] + 3
        assert await bridge.in_thread(Pool.OPEN, lambda: "other pools go on")
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        release.set()
        await asyncio.gather(*blocking, *waiting, return_exceptions=True)
        await asyncio.sleep(0.05)
        assert not any(bridge.jobs().values())
        bridge.close()
        return ran

    assert asyncio.run(run()) == [0, 2]
