"""The most costly input of each row of the table in docs/server.md: memory and event loop of a server process.

The server runs in a process of its own, so that its peak memory and the delay of `/health` are those of the server. The
limits are those of the table. The delay is for an idle machine, so on a busy one it is multiplied by the load.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from legato.audio.reference import MAX_CHANNELS, MAX_RATE_HZ, ReferenceLimits
from legato.config.server import ServerConfig
from legato.server import auth, bodies, json_body, remote_audio, uvicorn_server
from tests.conftest import TinyCheckpoint
from tests.server.openai.test_voices import LOW
from tests.server.running import wait_for

MIB = 2**20
MEMORY_MIB = 200
DELAY_S = 0.2
SPEECH, VOICES, PLAYOUT = "/v1/audio/speech", "/v1/audio/voices", "/v1/requests/req_0/playout"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
PARTS = {"content-type": "multipart/form-data; boundary=x"}

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")


@dataclass(frozen=True, slots=True)
class Process:
    """A server process."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory_mib(self, field: str) -> float:
        """`VmRSS` (now) or `VmHWM` (peak since `reset_peak`)."""
        (kib,) = re.findall(rf"{field}:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        return int(kib) / 1024

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")


@pytest.fixture(scope="module")
def process(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    command = [sys.executable, "-m", "legato", "serve", "--port", "0", "--threads", "1", "--name", "tiny"]
    command += ["-m", str(tiny_checkpoint("tiny-base")), "--voices", str(tmp_path_factory.mktemp("voices"))]
    log = tmp_path_factory.mktemp("log") / "stderr"
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as run:
        try:
            wait_for(lambda: "listening on" in log.read_text(), seconds=120)
            (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)", log.read_text())
            found = Process(run.pid, int(port))
            wait_for(lambda: httpx.get(f"{found.url}/ready").status_code == 200, seconds=120)
            clone = {"input": "A.", "ref_audio": base64.b64encode(LOW).decode(), "max_new_tokens": 2}
            assert httpx.post(found.url + SPEECH, json=clone, timeout=60).status_code == 200
            yield found
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(60)
            assert "Traceback" not in log.read_text()


_WATCH = """
import http.client, select, sys, time
connection, ended = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60), False
while True:
    started_s = time.perf_counter()
    connection.request("GET", "/health")
    response = connection.getresponse()
    response.read()
    print(time.perf_counter() - started_s if response.status == 200 else "status", flush=True)
    if ended:
        break
    ended = bool(select.select([sys.stdin], [], [], 0.01)[0])
"""


def delays_s(process: Process, attack: Callable[[], None]) -> list[float]:
    """Response times of `/health` during an attack, measured by another process, which the attack cannot slow."""
    command = [sys.executable, "-S", "-c", _WATCH, str(process.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        first = watch.stdout.readline()
        try:
            attack()
        finally:
            rest, _ = watch.communicate("end", timeout=120)
    return sorted(map(float, (first, *rest.split())))


# --- the most costly inputs -------------------------------------------------------------------------------------------


def audio(kind: str) -> bytes:
    """A small file that decodes to much: the longest, at the highest rate, with the most channels; or longer."""
    file = io.BytesIO()
    rate_hz, channels = {"FLAC": (192_000, 8), "WAV": (192_000, 8), "MP3": (48_000, 2), "OGG": (48_000, 8)}[kind]
    seconds = 6.4 if kind == "WAV" else 61.0
    block = np.zeros((rate_hz // 2, channels), dtype="int16")
    block[::2] = 8000
    with soundfile.SoundFile(file, "w", rate_hz, channels, format=kind) as sound:
        for _ in range(round(2 * seconds)):
            sound.write(block)
    return file.getvalue()


def clone_body(kind: str) -> bytes:
    return json.dumps({"input": "A.", "ref_audio": base64.b64encode(audio(kind)).decode()}).encode()


def part(name: str, content: bytes, *, file: bool = False) -> bytes:
    filename = '; filename="f"' if file else ""
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'.encode() + content + b"\r\n"


BODIES: dict[str, Callable[[], tuple[str, bytes, dict[str, str]]]] = {
    "json of lists": lambda: (SPEECH, b"[" + b"[]," * (10 * MIB) + b"0]", JSON),
    "json of lists beside a recording": lambda: (
        SPEECH,
        b'{"ref_audio": "' + b"A" * 20 * MIB + b'", "x": [' + b"0," * 99_000 + b"0]}",
        JSON,
    ),
    "nested json": lambda: (SPEECH, b"[" * 99_000, JSON),
    "json of escapes": lambda: (SPEECH, b'{"ref_audio": "' + b"\\n" * (15 * MIB) + b'"}', JSON),
    "most escapes": lambda: (SPEECH, b'{"ref_audio": "' + b"\\u0041" * 990_000 + b'"}', JSON),
    "long text": lambda: (SPEECH, json.dumps({"input": "word " * (6 * MIB)}).encode(), JSON),
    "long name": lambda: (SPEECH, json.dumps({"input": "A.", "voice": "x" * 20 * MIB}).encode(), JSON),
    "largest recording": lambda: (SPEECH, b'{"input": "A.", "ref_audio": "' + b"A" * 26 * MIB + b'"}', JSON),
    "flac": lambda: (SPEECH, clone_body("FLAC"), JSON),
    "wav": lambda: (SPEECH, clone_body("WAV"), JSON),
    "mp3": lambda: (SPEECH, clone_body("MP3"), JSON),
    "ogg": lambda: (SPEECH, clone_body("OGG"), JSON),
    "many form fields": lambda: (SPEECH, b"a=b&" * (8 * MIB), FORM),
    "long form": lambda: (SPEECH, b"ref_audio=" + b"%41" * (10 * MIB), FORM),
    "many parts": lambda: (SPEECH, part("a", b"b") * 300_000 + b"--x--", PARTS),
    "large parts": lambda: (SPEECH, part("a", b"b" * (MIB - 100)) * 30 + b"--x--", PARTS),
    "half boundaries": lambda: (VOICES, part("audio_sample", b"\r\n--y" * (3 * MIB), file=True) + b"--x--", PARTS),
    "line feeds": lambda: (VOICES, part("audio_sample", b"\r" * (12 * MIB), file=True) + b"--x--", PARTS),
    "flac upload": lambda: (VOICES, part("name", b"a") + part("file", audio("FLAC"), file=True) + b"--x--", PARTS),
    "large playout": lambda: (PLAYOUT, b"[" + b"[]," * (10 * MIB) + b"0]", JSON),
    "playout": lambda: (PLAYOUT, b"[" + b"[]," * (21 * 1024) + b"0]", JSON),
    "upload to a route without a body": lambda: ("/v1/models", b"x" * 31 * MIB, JSON),
}


def post(process: Process, path: str, body: bytes, headers: dict[str, str]) -> int:
    """The status of a response; 0 if the server closed the connection before the body was sent."""
    try:
        return httpx.post(process.url + path, content=body, headers=headers, timeout=120).status_code
    except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        return 0


def check_bounded(process: Process, attack: Callable[[], None]) -> None:
    """Run an attack. Memory and the delay of `/health` must stay within the limits.

    Other processes of the machine can only add to the delay, so the smallest of up to three attempts counts.
    """
    calm_s = delays_s(process, lambda: time.sleep(0.5))[-1]
    for _ in range(3):
        process.reset_peak()
        before_mib = process.memory_mib("VmRSS")
        delays = delays_s(process, attack)
        p99_s = delays[min(len(delays) - 1, int(0.99 * len(delays)))]
        grown_mib = process.memory_mib("VmHWM") - before_mib
        print(f"p99 {1000 * p99_s:.0f} ms of {len(delays)} (idle max {1000 * calm_s:.0f} ms), +{grown_mib:.0f} MiB")
        assert grown_mib < MEMORY_MIB
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        if p99_s < DELAY_S * busy + calm_s:
            return
    raise AssertionError(f"/health took {1000 * p99_s:.0f} ms in every attempt")


@pytest.mark.parametrize("name", list(BODIES))
def test_worst_case_is_bounded(process: Process, name: str) -> None:
    path, body, headers = BODIES[name]()

    def attack() -> None:
        with ThreadPoolExecutor(3) as clients:
            statuses = list(clients.map(lambda _: post(process, path, body, headers), range(3)))
        assert all(status in (0, 200, 503) or 400 <= status < 500 for status in statuses), statuses

    check_bounded(process, attack)


def test_thousand_refused_requests_are_bounded(process: Process) -> None:
    body = json.dumps({"input": "A.", "voice": "é" * 150_000}).encode()

    def attack() -> None:
        with httpx.Client(base_url=process.url, timeout=60) as web:
            for number in range(1000):
                path = SPEECH if number % 2 else f"/v1/{'x' * 30_000}"
                assert web.post(path, content=body if number % 2 else b"", headers=JSON).status_code in (400, 404)

    check_bounded(process, attack)


@pytest.mark.parametrize("path", ["/v1/audio/speech/stream", "/api-ws/v1/realtime"])
@pytest.mark.parametrize("message", ["[" + "[]," * (10 * MIB) + "0]", "[" * MIB, "x" * 40 * MIB, "[" + "[]," * 20_000])
def test_socket_messages_are_bounded(process: Process, path: str, message: str) -> None:
    def attack() -> None:
        for _ in range(3):
            with suppress(ConnectionClosed, OSError), connect(process.url.replace("http", "ws") + path) as client:
                for _ in range(10):
                    client.send(message)
                    client.recv(timeout=60)

    check_bounded(process, attack)


def test_headers_are_bounded(process: Process) -> None:
    def attack() -> None:
        for line in (b"X: " + b"a" * MIB, b"X: a\r\n" * 200_000, b"a" * MIB):
            for _ in range(5):
                with suppress(OSError), socket.create_connection(("127.0.0.1", process.port), timeout=20) as raw:
                    raw.sendall(b"GET /health HTTP/1.1\r\n" + line)
                    raw.recv(1000)

    check_bounded(process, attack)


def test_table_has_the_limits_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    table = page[page.index("## Cost of one request") :].partition("\n## ")[0]
    config, limits = ServerConfig(), ReferenceLimits()
    for text in (
        f"{config.body_bytes // MIB} MiB, file {config.reference_bytes // MIB} MiB",
        f"{bodies.JSON_BYTES // MIB} MiB | {json_body.MAX_ELEMENTS:,} | {json_body.MAX_DEPTH}",
        f"{json_body.MAX_ESCAPES:,} escapes",
        f"{bodies.MAX_FIELDS} fields",
        f"{auth.SMALL_BODY_BYTES // 1024} KiB",
        f"{config.bodies_bytes // MIB} MiB together",
        f"{limits.max_s + 1:.0f} s x {MAX_RATE_HZ:,} Hz x {MAX_CHANNELS} channels",
        f"{remote_audio.MAX_DOWNLOAD_S:.0f} s",
        f"{uvicorn_server.MAX_SOCKET_MESSAGE_BYTES // MIB} MiB",
        f"{config.text_characters:,} characters",
        f"{config.header_s:.0f} s",
        f"{config.body_s:.0f} s",
        f"{config.request_s:.0f} s",
        f"{MEMORY_MIB} MiB",
        f"{1000 * DELAY_S:.0f} ms",
    ):
        assert text in table, text


def test_process_is_alive_and_speaks_at_the_end(process: Process) -> None:
    os.kill(process.pid, 0)
    clone = {"input": "A.", "ref_audio": base64.b64encode(LOW).decode(), "max_new_tokens": 2}
    assert httpx.post(process.url + SPEECH, json=clone, timeout=60).status_code == 200
