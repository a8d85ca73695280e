"""Runs `legato cluster serve` as a process, with two replicas of the embedded voice and a tiny model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.server.running import wait_for

LONG_TEXT = "One two three four five six seven eight nine ten eleven twelve. " * 8


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that is ready."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def speak(self, text: str = "Hello there.", **fields: object) -> httpx.Response:
        """One whole response in PCM."""
        body = {"input": text, "response_format": "pcm", **fields}
        return httpx.post(f"{self.url}/v1/audio/speech", json=body, timeout=120)

    def replicas_that_answer(self, requests: int = 6) -> set[str]:
        """Names of the replicas that answer some requests."""
        return {replica_of(self.speak("Hi.")) for _ in range(requests)}


def replica_of(response: httpx.Response) -> str:
    """The name of the replica, which is a part of the request id."""
    assert response.status_code == 200, response.text
    return response.headers["x-request-id"].removeprefix("req_").partition("-")[0]


def replica_processes() -> list[int]:
    """Process ids of all replicas on this machine. Ray sets the titles of its processes."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and b"ServeReplica:legato:Replica" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # the process ended
            continue
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def cluster_of(folder: Path, checkpoint: Path, *options: str) -> Iterator[Cluster]:
    """Start a cluster, and stop it at the end."""
    port, log = free_port(), folder / "log"
    command = [sys.executable, "-m", "legato", "cluster", "serve", "--replicas", "2", "--port", str(port)]
    command += ["--threads", "1", "--max-num-seqs", "2", "--max-queue", "1", "--voices", str(folder / "voices")]
    command += ["-m", "embedded", "-m", str(checkpoint), "--name", "embedded", "--name", "tiny", *options]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_for(lambda: b"listening on" in log.read_bytes() or process.poll() is not None, seconds=180)
            assert process.poll() is None, log.read_text()
            cluster = Cluster(f"http://127.0.0.1:{port}", process, log)
            wait_for(lambda: httpx.get(f"{cluster.url}/ready", timeout=20).status_code == 200, seconds=120)
            wait_for(lambda: len(cluster.replicas_that_answer(4)) == 2, seconds=60)
            yield cluster
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes], *, seconds: float = 60.0) -> int:
    """Stop the cluster as Ctrl-C does; returns the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        deadline_s = time.monotonic() + 20
        while replica_processes() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for pid in replica_processes():
            os.kill(pid, signal.SIGKILL)
