"""SIGTERM drains HTTP, both WebSockets and Wyoming, refuses new work, and reports cut streams in the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import websockets
from wyoming.client import AsyncTcpClient
from wyoming.tts import Synthesize

from legato.client.http import Client
from legato.server.drain import Drain
from tests.conftest import TinyCheckpoint
from tests.server.running import wait_for

FRAME_BYTES = 1920 * 2
LONG = "one two three four five six seven eight nine ten " * 8
SPEECH_WS, REALTIME = "/v1/audio/speech/stream", "/api-ws/v1/realtime"


@contextlib.contextmanager
def serving(model: str, drain_s: float) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """`legato serve` with all four protocols: the process, its URL, and the Wyoming port."""
    options = ["--port", "0", "--wyoming", "0", "--threads", "1", "--no-voices", "--max-num-seqs", "4"]
    command = [sys.executable, "-m", "legato", "serve", *options, "--drain-s", str(drain_s), "-m", model]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        assert process.stderr is not None
        threading.Thread(target=lambda: lines.extend(process.stderr or []), daemon=True).start()
        try:
            wait_for(lambda: any("listening on http" in line for line in lines))
            text = "".join(lines)
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+", text)
            wait_for(Client(url).ready)
            yield process, url, int(re.findall(r"Wyoming listens on \S+:(\d+)", text)[0])
        finally:
            process.kill()


async def speech_socket(url: str, frames: int, started: asyncio.Event, stopping: asyncio.Event) -> list[str]:
    """Speaks one utterance; after the signal tries a second one. Returns the types and codes of all messages."""
    async with websockets.connect(url + SPEECH_WS) as socket:
        await socket.send(json.dumps({"type": "session.config", "voice": "ryan", "max_new_tokens": frames}))
        await socket.send(json.dumps({"type": "input.text", "text": LONG}))
        await socket.send(json.dumps({"type": "input.done"}))
        return await converse(socket, "audio.start", {"type": "input.text", "text": "New."}, started, stopping)


async def realtime_socket(url: str, frames: int, started: asyncio.Event, stopping: asyncio.Event) -> list[str]:
    """The same over the DashScope protocol."""
    async with websockets.connect(url + REALTIME) as socket:
        session = {"voice": "ryan", "mode": "server_commit", "max_new_tokens": frames}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await socket.send(json.dumps({"type": "input_text_buffer.append", "text": LONG}))
        await socket.send(json.dumps({"type": "input_text_buffer.commit"}))
        new = {"type": "input_text_buffer.append", "text": "New."}
        return await converse(socket, "response.audio.delta", new, started, stopping)


async def converse(
    socket: websockets.ClientConnection,
    first: str,
    new: dict[str, str],
    started: asyncio.Event,
    stopping: asyncio.Event,
) -> list[str]:
    kinds: list[str] = []

    async def ask_for_more() -> None:
        await stopping.wait()
        await socket.send(json.dumps(new))

    more = asyncio.create_task(ask_for_more())
    with contextlib.suppress(websockets.ConnectionClosed):
        while True:
            frame = await socket.recv()
            if isinstance(frame, bytes):
                continue
            message = json.loads(frame)
            error = message.get("error") if isinstance(message.get("error"), dict) else message
            kinds.append(message["type"] + (f" {error['code']}" if message["type"] == "error" else ""))
            if message["type"] == first:
                started.set()
    more.cancel()
    kinds.append(f"closed {socket.close_code}")
    return kinds


async def wyoming_client(port: int, started: asyncio.Event, stopping: asyncio.Event) -> list[str]:
    kinds: list[str] = []
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Synthesize(text=LONG).event())

        async def ask_for_more() -> None:
            await stopping.wait()
            await client.write_event(Synthesize(text="New.").event())

        more = asyncio.create_task(ask_for_more())
        while event := await client.read_event():
            kinds.append(f"error {event.data['code']}" if event.type == "error" else event.type)
            if event.type == "audio-chunk":
                started.set()
        more.cancel()
    return [*kinds, "closed"]


def http_body(base: str, started: threading.Event, frames: int) -> int:
    with Client(base).speak(LONG, voice="ryan", max_new_tokens=frames) as response:
        length = 0
        for piece in response:
            length += len(piece)
            started.set()
    return length


async def speak_everywhere(
    process: subprocess.Popen[str], base: str, wyoming: int, frames: int
) -> list[list[str] | int | BaseException]:
    """Speak on all four protocols, send SIGTERM when all have audio, and return what each client received."""
    url = base.replace("http", "ws")
    http_started, stopping = threading.Event(), asyncio.Event()
    started = [asyncio.Event() for _ in range(3)]
    work: list[asyncio.Task[list[str]] | asyncio.Task[int]] = [
        asyncio.create_task(speech_socket(url, frames, started[0], stopping)),
        asyncio.create_task(realtime_socket(url, frames, started[1], stopping)),
        asyncio.create_task(wyoming_client(wyoming, started[2], stopping)),
        asyncio.create_task(asyncio.to_thread(http_body, base, http_started, frames)),
    ]
    for event in started:
        await event.wait()
    await asyncio.to_thread(http_started.wait)
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    stopping.set()
    await asyncio.wait(work, timeout=100)
    return [task.exception() or task.result() for task in work]


def test_all_protocols_finish_and_refuse_new_work(tiny_checkpoint: TinyCheckpoint) -> None:
    with serving(str(tiny_checkpoint("tiny-custom-voice")), 60) as (process, base, port):
        speech, realtime, wyoming, body = asyncio.run(speak_everywhere(process, base, port, 60))
        assert process.wait(60) == 0
    assert body == 60 * FRAME_BYTES
    assert isinstance(speech, list)
    assert isinstance(realtime, list)
    assert isinstance(wyoming, list)
    assert {"audio.done", "session.done", "error not_ready"} <= set(speech)
    assert {"response.done", "error not_ready"} <= set(realtime)
    assert {"audio-stop", "error not_ready"} <= set(wyoming)
    assert speech[-1] == realtime[-1] == "closed 1012"
    assert wyoming[-1] == "closed"


def test_streams_cut_after_the_drain_time_are_told_and_the_exit_code_says_so(tiny_checkpoint: TinyCheckpoint) -> None:
    with serving(str(tiny_checkpoint("tiny-custom-voice")), 1) as (process, base, port):
        speech, realtime, wyoming, body = asyncio.run(speak_everywhere(process, base, port, 1500))
        assert process.wait(60) == 3
    assert isinstance(body, Exception)  # an incomplete body
    assert isinstance(speech, list)
    assert isinstance(realtime, list)
    assert isinstance(wyoming, list)
    for kinds in (speech, realtime):
        assert kinds[-2:] == ["error server_stopping", "closed 1012"]
    assert wyoming[-2:] == ["error server_stopping", "closed"]


def test_idle_connections_do_not_delay_the_exit(tiny_checkpoint: TinyCheckpoint) -> None:
    async def idle(process: subprocess.Popen[str], base: str, port: int) -> None:
        url = base.replace("http", "ws")
        async with (
            websockets.connect(url + SPEECH_WS) as speech,
            websockets.connect(url + REALTIME) as realtime,
            AsyncTcpClient("127.0.0.1", port) as wyoming,
        ):
            await asyncio.sleep(0.5)  # the handshake ends before the server's own check
            process.send_signal(signal.SIGTERM)
            for socket in (speech, realtime):
                with contextlib.suppress(websockets.ConnectionClosed):
                    while True:
                        await asyncio.wait_for(socket.recv(), 20)
                assert socket.close_code == 1012
            assert await asyncio.wait_for(wyoming.read_event(), 20) is None

    with serving(str(tiny_checkpoint("tiny-custom-voice")), 50) as (process, base, port):
        asyncio.run(idle(process, base, port))
        assert process.wait(20) == 0


@pytest.mark.parametrize(("active_s", "limit_s", "cut"), [(0.0, 5.0, 0), (0.2, 5.0, 0), (5.0, 0.2, 1)])
def test_drain_waits_for_tracked_work(active_s: float, limit_s: float, cut: int) -> None:
    async def run() -> Drain:
        drain = Drain()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + active_s
        with drain.track(lambda: loop.time() < end_s), drain.track(lambda: False):
            await drain.run(limit_s)
        return drain

    drain = asyncio.run(run())
    assert drain.cut == cut
    assert drain.started.is_set()
    assert drain.expired.is_set()


def test_second_interrupt_aborts_the_drain() -> None:
    async def run() -> int:
        drain = Drain()
        with drain.track(), drain.track():
            await asyncio.wait_for(drain.run(60, abort=lambda: True), 5)
        return drain.cut

    assert asyncio.run(run()) == 2
