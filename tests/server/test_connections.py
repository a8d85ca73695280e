"""Half requests: time limits for headers, bodies and idle connections, and a limit of open connections."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from legato.api import load
from legato.client.http import Client
from legato.config.server import ServerConfig
from legato.server.connections import max_connections
from tests.conftest import TinyCheckpoint
from tests.server.running import Running, running, wait_for

HEAD = "POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LIMIT_S = 0.5


@pytest.fixture(scope="module")
def impatient(tiny_checkpoint: TinyCheckpoint) -> Iterator[Running]:
    """A server whose time limits for headers, bodies and idle connections are half a second."""
    config = ServerConfig(model_id="tiny", warm_up=False, header_s=LIMIT_S, body_s=LIMIT_S, keep_alive_s=LIMIT_S)
    with load(tiny_checkpoint("tiny-custom-voice"), max_seq_len=256) as tts, running(tts, config) as server:
        yield server


def connect(port: int, data: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(data.encode())
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize(
    "data",
    [
        "",
        "GET",
        "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        HEAD + "Content-Length: 1000\r\n\r\n",
        HEAD + 'Content-Length: 1000\r\n\r\n{"input": "',
        HEAD + "Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
        "GET /v1/audio/speech/stream HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
        "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",  # a whole request, and none after it
        "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /health HT",  # a whole request and half of another one
    ],
)
def test_half_requests_are_closed_in_time(impatient: Running, data: str) -> None:
    started_s = time.monotonic()
    with connect(impatient.port, data) as connection:
        read_to_end(connection)
    assert time.monotonic() - started_s < LIMIT_S + 5


@pytest.mark.parametrize(
    "head", ["GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", HEAD + "Content-Length: 100000\r\n\r\n"]
)
def test_requests_sent_byte_by_byte_are_closed_in_time(impatient: Running, head: str) -> None:
    started_s = time.monotonic()
    with connect(impatient.port, head) as connection, contextlib.suppress(OSError):  # it is reset or broken
        while time.monotonic() - started_s < 20:
            connection.sendall(b"x")
            time.sleep(LIMIT_S / 20)
    assert time.monotonic() - started_s < LIMIT_S + 5


def test_late_header_is_answered_with_408(impatient: Running) -> None:
    with connect(impatient.port, "GET /health HTTP/1.1\r\n") as connection:
        assert read_to_end(connection).startswith(b"HTTP/1.1 408 ")


def test_responses_longer_than_the_limits_are_complete(impatient: Running) -> None:
    """The limits end with the request; they do not apply to the response."""
    with impatient.client().speak("A few words.", voice="ryan", max_new_tokens=60) as response:
        length = 0
        for piece in response:
            length += len(piece)
            time.sleep(LIMIT_S / 20)
    assert length == 60 * 1920 * 2


SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from legato.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("half", ["GET /health HTTP/1.1\r\n", ""])
def test_health_responds_during_and_after_140_half_requests_with_128_files(half: str) -> None:
    command = [sys.executable, "-c", SCRIPT, "serve", "--port", "0", "--threads", "1", "--no-voices"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            threading.Thread(target=lambda: lines.extend(process.stderr or []), daemon=True).start()
            wait_for(lambda: any("listening on" in line for line in lines))
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+", "".join(lines))
            client = Client(url, timeout_s=20)
            wait_for(client.ready)
            connections = [connect(int(url.rsplit(":", 1)[1]), half) for _ in range(140)]
            time.sleep(0.5)
            for _ in range(3):
                assert client.health()
            with client.speak("Still here.") as response:
                assert response.read()
            for connection in connections:
                connection.close()
            assert client.health()
            assert not any("Traceback" in line for line in lines)
        finally:
            process.kill()


def test_new_connection_is_refused_if_all_are_in_use(tiny_checkpoint: TinyCheckpoint) -> None:
    config = ServerConfig(model_id="tiny", warm_up=False, connections=2, drain_s=1.0)
    body = 'Content-Length: 100\r\n\r\n{"input'
    with load(tiny_checkpoint("tiny-custom-voice"), max_seq_len=256) as tts, running(tts, config) as server:
        with connect(server.port, HEAD + body), connect(server.port, HEAD + body):
            time.sleep(0.2)
            with connect(server.port, "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") as third:
                assert read_to_end(third).startswith(b"HTTP/1.1 503 ")
        wait_for(lambda: server.client().health())


def test_connection_limit_leaves_files_for_other_uses() -> None:
    assert max_connections(10) == 10
    assert max_connections(10**9) < 10**9
