"""Every program in `examples/` runs as its head says, on the embedded voice or a tiny checkpoint, and makes audio."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import wave
from pathlib import Path

import numpy as np
import pytest

from legato.api import load
from legato.config.server import ServerConfig
from tests.conftest import TinyCheckpoint
from tests.server.running import running

ROOT = Path(__file__).resolve().parents[2]
TESTED = {
    "clone_voice",
    "fastapi_app",
    "minimal",
    "save_file",
    "stream_llm_tokens",
    "stream_to_speaker",
    "voice_agent",
}


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]


def environment() -> dict[str, str]:
    """This checkout's package, and a fake audio device."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'examples' / 'fake_device'}"}


def run(folder: Path, name: str, *arguments: str, stdin: str = "") -> str:
    """Run an example and return its standard output."""
    done = subprocess.run(
        command(name, *arguments),
        cwd=folder,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def seconds(path: Path) -> float:
    """Duration of a WAV file whose samples are not all zero."""
    with wave.open(str(path)) as file:
        data = file.readframes(file.getnframes())
        assert any(data)
        return float(file.getnframes() / file.getframerate())


def played_seconds(folder: Path) -> float:
    """Duration of what the fake device played, without leading and trailing silence."""
    samples = np.frombuffer((folder / "played.pcm").read_bytes(), dtype="<i2")
    (loud,) = np.nonzero(samples)
    return float(loud[-1] - loud[0]) / 24_000


def test_every_example_is_tested() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == TESTED


def test_minimal_is_short() -> None:
    assert len((ROOT / "examples" / "minimal.py").read_text(encoding="utf-8").splitlines()) <= 250


def test_save_file(tmp_path: Path) -> None:
    assert "ended by track_end" in run(tmp_path, "save_file")
    assert seconds(tmp_path / "out.wav") > 0.5


def test_stream_to_speaker(tmp_path: Path) -> None:
    assert "first audio after" in run(tmp_path, "stream_to_speaker", "Hello there.")
    assert played_seconds(tmp_path) > 0.3


def test_stream_llm_tokens(tmp_path: Path) -> None:
    assert "wrote" in run(tmp_path, "stream_llm_tokens")
    assert seconds(tmp_path / "out.wav") > 0.5


def test_clone_voice(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    times = np.arange(36_000) / 24_000
    samples = (0.3 * 32767 * np.sin(2 * np.pi * 220 * times)).astype("<i2")
    with wave.open(str(tmp_path / "me.wav"), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    run(tmp_path, "clone_voice", "me.wav", "A tone.", "Hello.", str(tiny_checkpoint("tiny-base")), "cloned.wav", "6")
    assert seconds(tmp_path / "cloned.wav") == pytest.approx(6 * 0.08)


def test_minimal(tmp_path: Path) -> None:
    assert "frames" in run(tmp_path, "minimal", "embedded", "Hello.", "out.wav", "--voice", "michael")
    assert seconds(tmp_path / "out.wav") > 0.4


def test_fastapi_app(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--app-dir", str(ROOT / "examples"), "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "fastapi_app:app", *options], cwd=tmp_path, env=environment()
    )
    try:
        url = f"http://127.0.0.1:{port}/say?text="
        body = get_when_up(url + "Hello")
        assert body[:4] == b"RIFF"
        assert len(body) > 24_000
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{url}Hello&voice=unknown", timeout=60)
    finally:
        server.terminate()
        assert server.wait(60) in (0, -15)


def get_when_up(url: str) -> bytes:
    """The body at `url`, from a server that is starting."""
    until_s = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.URLError:
            assert time.monotonic() < until_s, "the server did not start"
            time.sleep(0.1)


def test_voice_agent(tmp_path: Path) -> None:
    """Two lines at once: the second interrupts the first answer, and the second answer is played to its end."""
    with load() as tts, running(tts, ServerConfig(warm_up=False)) as server:
        run(tmp_path, "voice_agent", server.url.replace("http", "ws"), stdin="Tell me a story.\nStop.\n")
        assert tts.stats().streams_open == 0
    assert played_seconds(tmp_path) > 2.0
