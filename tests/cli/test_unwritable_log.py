"""A log that cannot be written must not stop the work: full disk, closed pipe, closed standard error."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import urllib.request
import wave
from pathlib import Path

import pytest

from legato.cli.best_effort import BestEffortStream

LEGATO = f"{sys.executable} -m legato"
TEXT = "'A short text.'"


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2> >(true)", "2>&1 | true"])
@pytest.mark.parametrize("flags", ["", "--verbose"])
def test_say_writes_its_file(tmp_path: Path, stderr: str, flags: str) -> None:
    target = tmp_path / "speech.wav"
    command = f"sleep 0.3; set -o pipefail; {LEGATO} {flags} say {TEXT} -o {target} {stderr}"
    status = subprocess.run(["bash", "-c", command], timeout=120, check=False).returncode
    assert status == 0
    with wave.open(str(target)) as file:
        assert file.getnframes() > 10_000


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_errors_keep_their_exit_code(stderr: str) -> None:
    command = f"{LEGATO} say {TEXT} --voice no-such-voice -o /dev/null {stderr}"
    assert subprocess.run(["bash", "-c", command], timeout=120, check=False).returncode == 2


@pytest.mark.parametrize("pipe", ["2>&1 | head -3", "2>/dev/full", "2>&-"])
def test_serve_goes_on_serving(unused_port: int, pipe: str) -> None:
    command = f"exec {LEGATO} serve --port {unused_port} --threads 1 --no-voices {pipe}"
    # `exec` in a pipeline runs in a subshell, so the process group is what has to be ended.
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.DEVNULL, start_new_session=True)
    url = f"http://127.0.0.1:{unused_port}"
    try:
        _wait_until_ready(url)
        for _ in range(5):  # each writes a line to the log
            body = b'{"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "pcm"}'
            request = urllib.request.Request(url + "/v1/audio/speech", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as response:
                assert len(response.read()) > 10_000
    finally:
        subprocess.run(["kill", "--", f"-{process.pid}"], check=False)
        process.wait(30)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_until_ready(url: str) -> None:
    end_s = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url + "/ready", timeout=5):
                return
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


class Full(io.StringIO):
    """A stream whose writes fail after some characters."""

    def __init__(self, room: int, error: Exception) -> None:
        super().__init__()
        self._room = room
        self._error = error

    def write(self, text: str, /) -> int:
        if self.tell() + len(text) > self._room:
            raise self._error
        return super().write(text)


@pytest.mark.parametrize("error", [OSError(28, "full"), BrokenPipeError(), ValueError("I/O operation on closed file")])
def test_text_after_a_failed_write_is_dropped(error: Exception) -> None:
    full = Full(10, error)
    stream = BestEffortStream(full)
    for line in ("four", "five", "six", "four"):
        assert stream.write(line) == len(line)
        stream.flush()
    assert full.getvalue() == "fourfive"
