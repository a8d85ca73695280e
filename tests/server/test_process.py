"""`legato serve` as a process: it logs its address, and drains on SIGTERM."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from legato.client.http import Client, ServerError
from tests.conftest import TinyCheckpoint
from tests.server.running import wait_for


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    command = [sys.executable, "-m", "legato", "serve", "--port", "0", "--threads", "1", "--no-voices", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or []))
        reader.start()
        try:
            yield process, lines
        finally:
            process.kill()
            reader.join()


def test_sigterm_lets_active_streams_finish(tiny_checkpoint: TinyCheckpoint) -> None:
    with serving("-m", str(tiny_checkpoint("tiny-custom-voice")), "--name", "tiny") as (process, lines):
        wait_for(lambda: any("listening on" in line for line in lines), seconds=120)
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", "".join(lines))
        client = Client(url)
        wait_for(client.ready, seconds=120)
        with client.speak("Words and words and words.", voice="ryan", max_new_tokens=40) as body:
            pieces = iter(body)
            first = next(pieces)
            process.send_signal(signal.SIGTERM)
            assert len(first + b"".join(pieces)) == 40 * 1920 * 2
        assert process.wait(60) == 0
        with pytest.raises((OSError, ServerError)):
            client.health()
    assert any(body.request_id in line and "-> 200" in line for line in lines)
    assert not any("Traceback" in line for line in lines)
