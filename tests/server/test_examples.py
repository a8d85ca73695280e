"""Runs the examples of `docs/server.md` and the server examples of the README unchanged, except for the ports.

They use the embedded voice; examples that need another kind of model use a tiny one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.api import load
from legato.config.server import ServerConfig
from tests.server.openai.test_voices import LOW
from tests.server.running import Running, running, slots_free, wait_for

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8").split("## Server")[1].split("\n## ")[0]
CLIENTS = PAGE.split("## Clients")[1].split("\n## ")[0]


def blocks(language: str, text: str = CLIENTS) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


COMMANDS = [command for block in blocks("sh") for command in block.strip().split("\n\n")]
PROGRAMS = blocks("python")


@pytest.fixture(scope="module")
def voice() -> Iterator[Running]:
    config = ServerConfig(warm_up=False, wyoming_port=0)
    with load(max_num_seqs=2) as tts, running(tts, config) as server:
        wait_for(lambda: server.state.wyoming_port is not None)
        yield server


def run(command: list[str], server: Running, folder: Path) -> str:
    """Run an example and return its standard output."""
    ports = {"127.0.0.1:8000": f"127.0.0.1:{server.port}"}
    ports["10200"] = str(server.state.wyoming_port)
    for documented, real in ports.items():
        command = [word.replace(documented, real) for word in command]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """The environment with a fake `aplay` that writes its input to a file."""
    player = folder / "aplay"
    player.write_text('#!/bin/sh\necho "$@" > played.options\ncat > played.pcm\n')
    player.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_curl_examples(voice: Running, cloner: Running, tmp_path: Path) -> None:
    (tmp_path / "ann.wav").write_bytes(LOW)
    assert len(COMMANDS) == 5
    outputs = [
        run(["bash", "-euo", "pipefail", "-c", command], cloner if "ann.wav" in command else voice, tmp_path)
        for command in COMMANDS
    ]
    assert (tmp_path / "hello.mp3").read_bytes()[:2] in (b"\xff\xf3", b"\xff\xfb")
    assert (tmp_path / "played.options").read_text().split() == ["-r", "24000", "-f", "S16_LE", "-c", "1"]
    assert (tmp_path / "played.pcm").stat().st_size > 24_000
    for kind in ("speech.audio.delta", "speech.audio.timestamps", "speech.audio.done"):
        assert f'"type":"{kind}"' in outputs[2]
    assert '"name":"Ann"' in outputs[4]
    with zipfile.ZipFile(tmp_path / "speech.zip") as archive:
        assert sorted(archive.namelist()) == ["0000.mp3", "0001-second.mp3", "results.json"]
    cloner.client().delete_voice("Ann")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: re.findall(r"from (\w+)", text)[0])
def test_python_examples(voice: Running, tmp_path: Path, program: str) -> None:
    output = run([sys.executable, "-c", program], voice, tmp_path)
    if "hello.wav" in program:
        assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"
    elif "cancel" in program:
        assert "'heard_by': 'words'" in output
        assert "'played_samples': 12000" in output
    else:
        sizes = [int(line) for line in output.splitlines() if line.isdecimal()]
        assert sum(sizes) > 5000
    wait_for(lambda: slots_free(voice.tts))


def test_readme_examples(voice: Running, tmp_path: Path) -> None:
    (command,) = [block for block in blocks("sh", README) if block.startswith("curl")]
    (program,) = blocks("python", README)
    run(["bash", "-euo", "pipefail", "-c", command], voice, tmp_path)
    run([sys.executable, "-W", "error", "-c", program], voice, tmp_path)
    assert (tmp_path / "hello.mp3").read_bytes()[:2] in (b"\xff\xf3", b"\xff\xfb")
    assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"
    wait_for(lambda: slots_free(voice.tts))


def test_every_client_has_an_example() -> None:
    for client in ("openai", "legato.client.http", "legato.client.socket", "dashscope", "wyoming"):
        assert sum(f"from {client}" in program for program in PROGRAMS) == 1, client
